"""Readers on a private copy: the overlap that shared weights forbid, with the native bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rose_trace as rose
from rose_exec.boundary import Boundary
from rose_exec.fuzz import fuzz
from rose_exec.live import LiveProgram, LiveReplay
from rose_exec.private_copies import PrivateCopies
from rose_exec.replay import replay
from rose_exec.workers import ProcessWorker
from rose_opt.facts import build_facts
from rose_opt.optimize import plan as make_plan
from rose_opt.plan import Plan, PlanRefused, verify
from rose_opt.settings import PlanSettings
from rose_opt.verify import verify_traces
from rose_trace import hooks
from rose_trace.component import program
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.shared_weights import EPOCHS, ROWS, STEPS, Actor, Arm, build
from tests.rose_exec.test_replay import assert_identical

PRIVATE = "privatise{state=actor.weights readers=iteration/rollout}"
REWIRE = "rewire{node=iteration/learn beside=iteration/rollout}"
SPLIT = "split-spatial{loop=iteration/rollout/interact groups=2}"


def native(make: Callable[[], Callable[[], Any]] = build, iterations: int = 3) -> list[Any]:
    with program():
        iteration = make()
        return [iteration() for _ in range(iterations)]


def planned(*transforms: str, processes: tuple[str, ...] = ("arm",)) -> Plan:
    return observed_plan(build, *transforms, rows=ROWS, processes=processes)


def test_without_the_copy_the_overlap_is_refused() -> None:
    with pytest.raises(PlanRefused, match=r"read of 'actor\.weights' against update of"):
        verify(planned(REWIRE))
    verify(planned(PRIVATE, REWIRE))


@pytest.mark.parametrize(
    ("transforms", "processes"),
    [
        ((PRIVATE,), ()),
        ((PRIVATE, REWIRE), ("arm",)),
        ((PRIVATE, SPLIT, "interleave", "merge", REWIRE), ()),
    ],
    ids=["alone", "beside", "split"],
)
def test_training_with_a_copy_gives_the_native_weights(
    transforms: tuple[str, ...], processes: tuple[str, ...]
) -> None:
    plan = planned(*transforms, processes=processes)
    with replay(plan, build=build, strict=True) as session:
        found = [session.built() for _ in range(3)]
        assert not session.native
    assert_identical(found, native())


def test_every_order_that_the_copy_allows_gives_the_native_bits() -> None:
    """Among them some in which learning starts before the last epoch is collected."""
    found = fuzz(build, plan=planned(PRIVATE, REWIRE), seeds=range(3), iterations=2)
    assert found.differences == ()
    assert found.overtakings > 0


def test_a_copy_that_is_not_made_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second iteration then acts with the weights of the first."""
    made: list[str] = []
    tasks = PrivateCopies.tasks

    def once(self: PrivateCopies, flying: Any, here: Any, path: str) -> None:
        if len(made) < 1:
            tasks(self, flying, here, path)
        made.append(path)

    monkeypatch.setattr(PrivateCopies, "tasks", once)
    found = fuzz(build, plan=planned(PRIVATE, REWIRE), seeds=range(1), iterations=2)
    assert made == 2 * ["iteration/rollout"]
    assert [d.subject for d in found.differences] == ["iteration/rollout/interact/actor.act[1,0,0]"]


def test_readers_that_forget_their_copy_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """They read the weights themselves, which learning changes meanwhile."""

    def nowhere(*_: object) -> None:
        return None

    monkeypatch.setattr(PrivateCopies, "place", nowhere)
    found = fuzz(build, plan=planned(PRIVATE, REWIRE), seeds=range(6), iterations=2)
    assert found.differences


def test_from_a_trace_to_a_plan_with_a_copy_to_the_same_numbers(tmp_path: Path) -> None:
    with program():
        iteration = build()
        with rose.record(tmp_path / "trace.parquet"):
            for _ in range(2):
                iteration()
    facts = build_facts(tmp_path / "trace.parquet")
    weights = 4 * 8 + 8 + 8 * 4 + 4
    assert facts.memory["host_bytes of actor"] == 2 * weights * 4  # with their gradients
    settings = PlanSettings(cores=4.0, max_groups=2, transforms=f"{PRIVATE},{REWIRE}")
    made = make_plan(facts, settings)
    homes = {str(resident): worker.kind for worker in made.workers for resident in worker.residents}
    assert homes == {
        "actor": "inline",
        "learner": "inline",
        "arm": "process",
        "actor~rollout": "process",
    }
    made.save(tmp_path / "plan.json")
    with (
        replay(tmp_path / "plan.json", build=build, strict=True) as session,
        rose.record(tmp_path / "planned.parquet"),
    ):
        found = [session.built() for _ in range(2)]
        assert not session.native
    assert_identical(found, native(iterations=2))
    compared = verify_traces(tmp_path / "trace.parquet", tmp_path / "planned.parquet")
    assert compared.equal, compared.difference
    assert compared.invocations == 2 * (EPOCHS * (2 * STEPS + 2) + EPOCHS + 1)


def test_a_component_built_before_the_session_has_no_copy() -> None:
    with program():
        iteration = build()
        plan = planned(PRIVATE, REWIRE, processes=())
        with replay(plan, strict=True), pytest.raises(PlanRefused, match="and the plan copies it"):
            iteration()


def test_a_component_that_cannot_be_copied_is_refused_when_it_is_built() -> None:
    def stubborn() -> Callable[[], Any]:
        made = build()
        return made

    plan = planned(PRIVATE, REWIRE)
    setup = Actor.__init__.__wrapped__  # type: ignore[attr-defined]

    def awkward(self: Any, *args: Any) -> None:
        setup(self, *args)
        self.callback = lambda: None

    Actor.__init__.__wrapped__ = awkward  # type: ignore[attr-defined]
    try:
        with (
            pytest.raises(PlanRefused, match="expected a component that can be copied"),
            replay(plan, build=stubborn, strict=True),
        ):
            pass
    finally:
        Actor.__init__.__wrapped__ = setup  # type: ignore[attr-defined]


def test_a_worker_of_a_copy_that_dies_loses_nothing() -> None:
    with replay(planned(PRIVATE, REWIRE), build=build, strict=True) as session:
        found = [session.built()]
        worker = session._placement.workers["actor~rollout"]  # pyright: ignore[reportPrivateUsage]
        assert isinstance(worker, ProcessWorker)
        worker._process.kill()  # pyright: ignore[reportPrivateUsage]
        worker._process.join()  # pyright: ignore[reportPrivateUsage]
        worker._reader.join()  # pyright: ignore[reportPrivateUsage]
        found += [session.built() for _ in range(2)]
    assert_identical(found, native())


# Programs in which a copy would change what is computed ------------------------------------------


@rose.component
class Tally:
    """Counts what it acted on, and acts on the count."""

    def __init__(self) -> None:
        self.weights, self.seen = np.ones(2), 0

    @rose.node(reads="weights", updates="seen")
    def act(self, value: Any) -> Any:
        self.seen += 1
        return value * self.weights + self.seen

    @rose.node(updates="weights")
    def fit(self, value: Any) -> float:
        self.weights = np.cos(self.weights + value)
        return float(self.weights[0])


@rose.component
class Fresh:
    """Its weights are refreshed within the rollout that reads them."""

    def __init__(self) -> None:
        self.weights, self.scale = np.ones(2), 1.0

    @rose.node(reads=("weights", "scale"))
    def act(self, value: Any) -> Any:
        return value * self.weights * self.scale

    @rose.node(updates="weights")
    def fit(self, value: Any) -> float:
        self.weights = np.cos(self.weights + value)
        return float(self.weights[0])


@rose.node(updates="fresh.scale")
def anneal(model: Fresh, k: int) -> None:
    model.scale /= k + 2


@rose.node(reads="tally.weights")
def look(tally: Tally) -> Any:
    return tally.weights


def loops(make: Callable[[], Any], body: Callable[[Any, int], Any]) -> Callable[[], Any]:
    def built() -> Callable[[], Any]:
        model = make()

        @rose.loop
        def collect(_: None, k: int) -> Any:
            return None, body(model, k)

        @rose.loop
        def learn(_: None, value: Any) -> Any:
            return None, model.fit(value)

        @rose.iteration(name="root")
        def iteration() -> Any:
            _, values = collect(None, count=3)
            return learn(None, over=values)[1]

        return iteration

    return built


def tally(model: Any, k: int) -> Any:
    return model.act(np.full(2, float(k)))


def fresh(model: Any, k: int) -> Any:
    anneal(model, k)
    return model.act(np.full(2, float(k)))


def glance(model: Any, k: int) -> Any:
    return look(model) + k


@pytest.mark.parametrize(
    ("make", "body", "name", "reason"),
    [
        (Tally, tally, "tally", "got update of 'tally.seen' by root/collect/tally.act"),
        (Fresh, fresh, "fresh", "got read of 'fresh.scale' by root/collect/fresh.act, written by"),
        (Tally, glance, "tally", "expected readers that are methods of a component"),
    ],
    ids=["writes", "must-see-the-new-value", "function"],
)
def test_readers_that_a_copy_would_mislead_are_refused(
    make: Callable[[], Any], body: Callable[[Any, int], Any], name: str, reason: str
) -> None:
    text = f"privatise{{state={name}.weights readers=root/collect}}"
    rewire = "rewire{node=root/learn beside=root/collect}"
    plan = observed_plan(loops(make, body), text, rewire)
    with pytest.raises(PlanRefused, match=re.escape(reason)):
        verify(plan)


def test_shards_have_no_copy() -> None:
    plan = planned(PRIVATE, REWIRE)
    components = tuple(replace(c, shards=2) if c.name == "actor" else c for c in plan.components)
    with pytest.raises(PlanRefused, match="expected actor in one piece, got 2 shards"):
        verify(replace(plan, components=components))


def test_a_program_in_the_middle_of_training_is_given_copies() -> None:
    """Its components stay where they are; the arm moves, and comes back."""
    with program():
        iteration = build()
        boundary = Boundary()
        hooks.install_executor(boundary)
        try:
            found = [iteration()]
        finally:
            hooks.install_executor(None)
        with LiveReplay(planned(PRIVATE, REWIRE), LiveProgram(boundary), strict=True) as session:
            found.append(iteration())
            assert not session.native
        found.append(iteration())
    assert_identical(found, native())


def test_a_checked_session_watches_the_readers_where_they_are() -> None:
    plan = planned(PRIVATE, SPLIT, "interleave", "merge", REWIRE, processes=())
    with replay(plan, build=build, strict=True, check=True) as session:
        found = [session.built() for _ in range(2)]
        assert session.findings == ()
        assert [t.name for t in session.plan.transforms] == ["split-spatial", "interleave", "merge"]
    assert_identical(found, native(iterations=2))


def test_what_shares_a_state_stays_together() -> None:
    """In a process of its own the learner would train a copy of the weights that nobody acts with."""
    with pytest.raises(PlanRefused, match="worker\\(learner\\): expected learner in one process"):
        verify(planned(processes=("learner",)))


def test_the_private_instance_is_another_one(tmp_path: Path) -> None:
    """Readers run in the copy's process; what nobody privatised runs where it did."""
    plan = planned(PRIVATE, REWIRE)
    with (
        replay(plan, build=build, strict=True) as session,
        rose.record(tmp_path / "trace.parquet"),
    ):
        session.built()
    from rose_trace.parquet import read_spans

    rows = read_spans(tmp_path / "trace.parquet").select(["path", "worker"]).to_pylist()
    homes = {(row["path"].rpartition("/")[2], row["worker"]) for row in rows if row["worker"]}
    assert homes == {
        ("actor.act", "actor~rollout"),
        ("actor.value", "actor~rollout"),
        ("arm.reset", "arm"),
        ("arm.step", "arm"),
        ("learner.update", "inline"),
        ("learner.weights", "inline"),
    }


def test_the_program_of_this_page_is_what_it_seems() -> None:
    """Learning changes what acting returns, so an early update would show."""
    with program():
        actor, arm = Actor(3), Arm(ROWS)
        obs = arm.reset(0)
        before = actor.act(obs)
        with torch.no_grad():
            next(iter(actor.model.parameters())).add_(0.1)
        assert not torch.equal(before, actor.act(obs))
