"""Tuning trains: the same bits as native training, whatever is tried, and whenever it is cut short."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rose_trace as rose
from rose_exec.driver import Driver
from rose_exec.guard import Guard, GuardSettings
from rose_exec.tune import TuneSettings, Tuning, tune
from rose_opt.measure import (
    Alternative,
    AlternativeTrial,
    Composed,
    GraphSearchSettings,
    IterationMeasurement,
    IterationMeasurer,
    QuotaLevel,
    TrialFailed,
)
from rose_opt.plan import Plan
from rose_trace import hooks
from rose_trace.component import program
from tests.rose_exec import programs
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.test_replay import assert_identical, native

SPLIT = "split-spatial{loop=iteration/rollout/interact groups=2}"
REWIRE = "rewire{node=iteration/learn beside=iteration/rollout}"
ROLLOUT = "iteration/rollout"


class PlansAreFaster:
    """A clock that ticks ten times as fast in native code as under a plan."""

    def __init__(self, planned: int = 1_000_000, native: int = 10_000_000) -> None:
        self.now, self.planned, self.native = 0, planned, native

    def __call__(self) -> int:
        self.now += self.planned if isinstance(hooks.active, Driver) else self.native
        return self.now


@dataclass
class Offered:
    """A search with one target per transform; each round offers what the plan does not have yet."""

    plans: dict[str, Plan]
    base: Plan
    graph: str = ROLLOUT
    runs: float = 3.0
    begun: int = 0
    seen: list[IterationMeasurement] = field(default_factory=list[IterationMeasurement])

    def native(self) -> Plan:
        return self.base

    def targets(self, plan: Plan, reference: IterationMeasurement, limit: int) -> Sequence[str]:
        self.begun += 1
        self.seen.append(reference)
        return [name for name in self.plans if not plan.transforms][:limit]

    def alternatives(self, plan: Plan, target: str) -> Sequence[Alternative]:
        return (Alternative(target, target, self.plans[target]),)

    def comparison_graph(self, plan: Plan, alternatives: Sequence[Alternative]) -> str:
        return self.graph

    def runs_per_iteration(self, comparison_graph: str) -> float:
        return self.runs

    def combine(self, plan: Plan, trials: Sequence[AlternativeTrial]) -> Sequence[Composed]:
        best = max(trials, key=lambda trial: trial.gain_ns)
        found = best.alternative
        return (Composed(found.plan, (found.text,), best.gain_ns, "greedy"),)


def offered() -> Offered:
    """One plan, all of it in this process."""
    base = replace(observed_plan(programs.build), kept_native=True, reason="nothing is faster")
    return Offered({REWIRE: observed_plan(programs.build, REWIRE)}, base, "iteration", 1.0)


def split(*transforms: str, processes: tuple[str, ...] = ()) -> Offered:
    """One plan with shards of the simulator in processes."""
    search = offered()
    plan = observed_plan(
        programs.build,
        *(SPLIT, "interleave", "merge", *transforms),
        rows=programs.ROWS,
        processes=processes,
    )
    return Offered({SPLIT: plan}, search.base)


def run(
    folder: Path,
    search: Offered | None,
    build: Callable[[], Callable[..., Any]] | None = programs.build,
    program_of: Callable[[], Callable[..., Any]] = programs.build,
    clock: Callable[[], int] | None = None,
    **settings: Any,
) -> tuple[Tuning, list[Any], Callable[..., Any]]:
    with program():
        iteration = program_of()
    results: list[Any] = []
    tuning = tune(
        iteration,
        build,
        folder=folder,
        search=None if search is None else lambda _: search,
        on_iteration=lambda index, result: results.append((index, result)),
        settings=TuneSettings(activity="none", clock=clock or PlansAreFaster(), **settings),
    )
    assert [index for index, _ in results] == list(range(tuning.iterations))
    return tuning, [result for _, result in results], iteration


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def test_tuned_training_is_native_training(tmp_path: Path) -> None:
    search = split(REWIRE, processes=("policy", "trainer"))
    tuning, results, iteration = run(tmp_path, search)
    assert tuning.plan is not None
    assert [str(t) for t in tuning.plan.transforms] == [SPLIT, "interleave", "merge", REWIRE]
    assert tuning.search is not None
    assert tuning.search.rounds[0].accepted == 0
    assert search.begun == 2  # the second round found nothing more
    assert not tuning.interrupted
    # Two recorded, the reference, one to warm the plan up and the one that proved it.
    assert tuning.iterations == 5
    results.append(iteration())  # natively, from where tuning left it
    with tuning.replay(guard=Guard(GuardSettings(every=1))) as session:
        results += [iteration(), iteration()]  # planned, and for comparison in program order
        assert not session.native
    results.append(iteration())
    assert_identical(results, native(9))


def test_everything_is_logged_and_accounted_for(tmp_path: Path) -> None:
    tuning, _, _ = run(tmp_path, offered())
    log = entries(tmp_path)
    assert [entry["what"] for entry in log] == [
        *("traced", "traced", "iteration", "round", "local", "local", "warm-up", "iteration"),
        *("round", "round", "round", "result"),
    ]
    local = [entry for entry in log if entry["what"] == "local"]
    assert [entry["graph"] for entry in local] == ["iteration", "iteration"]
    assert [entry["seconds"] for entry in local] == [0.010, 0.001]
    assert [entry["decision"] for entry in local] == ["baseline", "gains: +9.000 ms per run"]
    iterations = [entry for entry in log if entry.get("retained")]
    assert [entry["decision"] for entry in iterations][2:] == [
        *("reference", "not counted", "fast enough"),
    ]
    assert sum(entry["seconds"] for entry in iterations) == pytest.approx(tuning.retained_ns * 1e-9)
    assert tuning.net_ns == tuning.total_ns - tuning.retained_ns > 0
    assert log[-1]["net_s"] == pytest.approx(tuning.net_ns * 1e-9)
    saved = Plan.load(tmp_path / "plan.json")
    assert saved == tuning.plan
    assert saved.reason == "measured 1.0 ms per iteration, native 10.0"
    assert saved.notes[0] == (
        "Tuning: 2 local trials, 1 plans as complete iterations; measured 1.0 ms per iteration, native 10.0."
    )


def test_a_local_trial_runs_one_body_and_then_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bodies of an epoch are run, the first to warm up; learning is not."""
    search = split()
    updates: list[Any] = []
    node: Any = getattr(programs.Trainer.update, "__rose_node__")  # noqa: B009
    entry = node.entry

    def update(component: Any, epoch: Any) -> Any:
        updates.append(epoch)
        return entry(component, epoch)

    monkeypatch.setattr(node, "entry", update)
    tuning, results, _ = run(tmp_path, search, repeats=1)
    assert len(updates) == 3 * (tuning.iterations - 1)  # the reference runs outside any resolver
    local = [entry for entry in entries(tmp_path) if entry["what"] == "local"]
    assert [entry["graph"] for entry in local] == [ROLLOUT, ROLLOUT]
    assert [entry["seconds"] for entry in local] == [0.010, 0.001]
    assert tuning.search is not None
    (trial,) = tuning.search.rounds[0].targets[0].trials
    assert trial.gain_ns == 27_000_000  # three epochs
    assert_identical(results, native(len(results)))


def test_a_plan_that_is_not_faster_is_not_kept(tmp_path: Path) -> None:
    tuning, results, iteration = run(tmp_path, offered(), clock=PlansAreFaster(10, 10))
    assert tuning.plan is not None
    assert tuning.plan.kept_native
    assert tuning.search is not None
    assert tuning.search.rounds[0].reason == "no alternative is faster on its comparison graph"
    assert tuning.iterations == 3
    results.append(iteration())
    assert_identical(results, native(4))


def test_without_copies_complete_iterations_decide(tmp_path: Path) -> None:
    tuning, results, _ = run(tmp_path, offered(), build=None)
    assert tuning.plan is not None
    assert tuning.plan.transforms
    assert tuning.notes == (
        "Local trials: expected trial copies, got none: no build= was given. Alternatives are measured by "
        "complete iterations only.",
    )
    assert "local" not in [entry["what"] for entry in entries(tmp_path)]
    assert_identical(results, native(len(results)))


def breaking(monkeypatch: pytest.MonkeyPatch, error: BaseException, at: Callable[[], bool]) -> None:
    """Let learning fail where it is half done: after the rollouts, and after the trainer counted."""

    def read(trainer: Any) -> Any:
        if at():
            raise error
        return trainer.__dict__["weights"]

    def write(trainer: Any, value: Any) -> None:
        trainer.__dict__["weights"] = value

    monkeypatch.setattr(programs.Trainer, "weights", property(read, write), raising=False)


def test_interrupt_inside_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    building = False

    def build() -> Callable[..., Any]:
        nonlocal building
        building = True
        return programs.build()

    search = offered()
    breaking(monkeypatch, KeyboardInterrupt(), lambda: building)
    tuning, results, iteration = run(tmp_path, search, build=build)
    building = False
    assert tuning.iterations == 3
    assert tuning.interrupted
    assert tuning.plan is not None
    assert tuning.plan.kept_native  # what was known
    assert Plan.load(tmp_path / "plan.json") == tuning.plan
    assert tuning.iterations == 3
    assert hooks.active is None
    results += [iteration(), iteration()]
    assert_identical(results, native(5))


@pytest.mark.parametrize("planned", [False, True], ids=["native", "planned"])
def test_interrupt_inside_a_kept_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: bool
) -> None:
    done: list[int] = []

    search = offered()
    if planned:  # the second iteration of a session, in which the policy is in a process
        search.plans[REWIRE] = observed_plan(programs.build, REWIRE, processes=("policy",))
    breaking(monkeypatch, KeyboardInterrupt(), lambda: len(done) == (4 if planned else 2))
    with program():
        iteration = programs.build()
    results: list[Any] = []

    def kept(index: int, result: Any) -> None:
        done.append(index)
        results.append(result)

    tuning = tune(
        iteration,
        folder=tmp_path,
        search=lambda _: search,
        on_iteration=kept,
        settings=TuneSettings(activity="none", clock=PlansAreFaster()),
    )
    assert tuning.interrupted
    assert tuning.iterations == len(results) == (4 if planned else 2)
    done.clear()
    results += [iteration(), iteration()]
    assert_identical(results, native(len(results)))


@pytest.mark.parametrize("at", [2, 3], ids=["native", "planned"])
def test_a_signal_inside_a_kept_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The planned learning runs in a worker's thread; the program's own thread gets the signal."""
    search = offered()
    results: list[Any] = []
    sent: list[bool] = []

    def once() -> bool:
        if len(results) == at and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return False

    breaking(monkeypatch, AssertionError(), once)
    with program():
        iteration = programs.build()
    tuning = tune(
        iteration,
        folder=tmp_path,
        search=lambda _: search,
        on_iteration=lambda _, result: results.append(result),
        settings=TuneSettings(activity="none", clock=PlansAreFaster()),
    )
    assert tuning.interrupted
    assert tuning.iterations == len(results) == at
    assert hooks.active is None
    results += [iteration(), iteration()]
    assert_identical(results, native(len(results)))


def test_interrupt_before_there_is_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = offered()
    armed = True
    breaking(monkeypatch, KeyboardInterrupt(), lambda: armed)
    tuning, _, _ = run(tmp_path, search)
    assert tuning.interrupted
    assert tuning.plan is None
    assert tuning.iterations == 0
    assert tuning.notes == ("An iteration that was cut short is not taken back: it was the first.",)
    with pytest.raises(RuntimeError, match="expected a plan, got a run that was interrupted"):
        tuning.replay()


@pytest.mark.parametrize("at", [1, 2, 3], ids=["traced", "reference", "planned"])
def test_an_error_of_the_program_passes_and_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    kept: list[Any] = []
    search = offered()
    armed = True
    breaking(monkeypatch, ZeroDivisionError("its own"), lambda: armed and len(kept) == at)
    with program():
        iteration = programs.build()
    with pytest.raises(ZeroDivisionError, match="its own"):
        tune(
            iteration,
            folder=tmp_path,
            search=lambda _: search,
            on_iteration=lambda _, result: kept.append(result),
            settings=TuneSettings(activity="none", clock=PlansAreFaster()),
        )
    armed = False
    assert len(kept) == at
    kept += [iteration(), iteration()]  # what learning left behind shows in the second
    assert_identical(kept, native(at + 2))


@pytest.mark.parametrize("counted", [False, True], ids=["within", "at the end"])
def test_a_worker_that_dies_takes_nothing_with_it(tmp_path: Path, counted: bool) -> None:
    """Learning lives in a worker that is killed between two iterations, or after the last one."""
    search = offered()
    search.plans[REWIRE] = observed_plan(programs.build, REWIRE, processes=("trainer",))
    with program():
        iteration = programs.build()
    results: list[Any] = []

    def kept(index: int, result: Any) -> None:
        results.append(result)
        if index == (4 if counted else 3):
            for child in multiprocessing.active_children():
                child.kill()
                connection.wait([child.sentinel])  # its worker takes the exit code

    tuning = tune(
        iteration,
        folder=tmp_path,
        search=lambda _: search,
        on_iteration=kept,
        settings=TuneSettings(activity="none", clock=PlansAreFaster()),
    )
    assert tuning.plan is not None
    assert tuning.plan.kept_native
    assert len(results) == tuning.iterations == (5 if counted else 4)
    failed = [entry for entry in entries(tmp_path) if entry["decision"].startswith("failed: ")]
    assert (
        "worker trainer ended" in failed[0]["decision"].lower()
        or "signal 9" in failed[0]["decision"]
    )
    results += [iteration(), iteration()]
    assert_identical(results, native(len(results)))


def test_copies_begin_where_training_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = offered()
    trainers: list[Any] = []
    begun: list[bool] = []

    def watched() -> Callable[..., Any]:
        made = programs.build()
        begun.append(False)
        return made

    def read(trainer: Any) -> Any:
        if trainer not in trainers:
            trainers.append(trainer)
            if len(trainers) > 1:  # the first thing that a copy reads
                here, there = trainers[0].__dict__["weights"], trainer.__dict__["weights"]
                begun.append(bool((here == there).all() and (here != 1.0).all()))
        return trainer.__dict__["weights"]

    def write(trainer: Any, value: Any) -> None:
        trainer.__dict__["weights"] = value

    monkeypatch.setattr(programs.Trainer, "weights", property(read, write), raising=False)
    run(tmp_path, search, build=watched)
    assert begun == [False, True, False, True]  # a baseline and an alternative


@pytest.mark.parametrize("processes", [(), ("trainer",)], ids=["here", "in a process"])
def test_a_plan_that_fails_is_infeasible_and_taken_back(
    tmp_path: Path, processes: tuple[str, ...]
) -> None:
    """The plan expects another result than the trainer gives: Rose's own failure, not the program's."""
    search = offered()
    plan = observed_plan(programs.build, REWIRE, processes=processes)
    wrong = plan.node("iteration/learn/trainer.update")
    nodes = tuple(
        replace(node, structure=plan.node("iteration").structure) if node == wrong else node
        for node in plan.nodes
    )
    search.plans[REWIRE] = replace(plan, nodes=nodes)
    tuning, results, iteration = run(tmp_path, search, build=None)
    assert tuning.plan is not None
    assert tuning.plan.kept_native
    failed = [entry for entry in entries(tmp_path) if entry["decision"].startswith("failed: ")]
    assert len(failed) == 1
    assert "iteration/learn/trainer.update: expected the recorded result" in failed[0]["decision"]
    results += [iteration(), iteration()]
    assert_identical(results, native(len(results)))


@rose.component
class Counter:
    """A state that nobody can copy, and that lives on."""

    def __init__(self) -> None:
        self.total = 0.0
        self.step: Callable[[float], float] = lambda x: x + 1

    @rose.node(updates="total")
    def count(self) -> float:
        self.total = self.step(self.total)
        return self.total


def counting() -> Callable[[], Any]:
    counter = Counter()

    @rose.iteration
    def iteration() -> Any:
        return counter.count()

    return iteration


def test_what_cannot_be_copied_is_said_and_stays(tmp_path: Path) -> None:
    moved = observed_plan(counting, processes=("counter",))
    moved = replace(moved, cores=1.0)
    base = replace(observed_plan(counting), kept_native=True)
    search = Offered({"moved": moved}, base, graph="iteration", runs=1.0)
    tuning, results, iteration = run(tmp_path, search, build=counting, program_of=counting)
    assert results == [1.0, 2.0, 3.0, 4.0][: len(results)]
    assert iteration() == len(results) + 1
    assert tuning.plan is not None
    assert tuning.plan.kept_native
    (note,) = tuning.notes
    assert note.startswith(
        "Local trials: expected trial copies, got none: Counter: expected attributes"
    )
    failed = [entry for entry in entries(tmp_path) if entry["decision"].startswith("failed: ")]
    assert len(failed) == 1
    assert "Give the class snapshot() and restore(value)" in failed[0]["decision"]


class Levels:
    """A quota measurer with one valley."""

    def __init__(self, plan: Plan, iterations: IterationMeasurer) -> None:
        self.plan, self.iterations = plan, iterations
        self.tried: list[int] = []

    def completion_ns(self, level: QuotaLevel) -> int:
        self.tried.append(level.k)
        if level.k == 1:
            raise TrialFailed("no client starts")
        return 100 + abs(level.k - 4)

    def iteration_ns(self, level: QuotaLevel) -> int:
        assert level.k == 4
        return self.iterations.iteration(self.plan).duration_ns - 1


def test_quotas_are_searched_where_a_backend_is_given(tmp_path: Path) -> None:
    with program():
        iteration = programs.build()
    asked: list[Plan] = []
    levels = [QuotaLevel(k, 2 * k, 10 * k) for k in range(1, 8)]

    def quota(plan: Plan, iterations: IterationMeasurer) -> Any:
        asked.append(plan)
        return Levels(plan, iterations), levels

    tuning = tune(
        iteration,
        folder=tmp_path,
        search=lambda _: offered(),
        quota=quota,
        settings=TuneSettings(
            activity="none", clock=PlansAreFaster(), search=GraphSearchSettings(max_targets=1)
        ),
    )
    assert tuning.quota is not None
    assert tuning.quota.level.k == 4
    # Recorded, the reference, the alternative, its validation and the level: each plan warmed up.
    assert tuning.iterations == 2 + 1 + 2 + 2 + 2
    assert str(asked[0].transforms[0]) == REWIRE
    told = [entry for entry in entries(tmp_path) if entry["what"] == "quota"]
    assert [entry["decision"] for entry in told][-1] == tuning.quota.reason
    assert len(told) == len(tuning.quota.trials) + 1


@pytest.mark.slow
def test_the_planner_is_found_by_itself(tmp_path: Path) -> None:
    tuning, results, _ = run(tmp_path, None, max_alternatives=1, clock=PlansAreFaster(10, 10))
    assert tuning.iterations == 4  # one of them probed
    assert tuning.plan is not None
    assert tuning.plan.kept_native
    assert any(entry["what"] == "probed" for entry in entries(tmp_path))
    assert_identical(results, native(4))


def test_tuning_inside_a_recording_is_refused(tmp_path: Path) -> None:
    with (
        rose.record(tmp_path / "other.parquet", activity="none"),
        pytest.raises(RuntimeError, match=r"rose_exec.tune: expected a program that is neither"),
    ):
        tune(lambda: None, folder=tmp_path)


def test_a_program_without_an_iteration_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"expected an iteration decorated with rose.iteration"):
        tune(lambda: np.zeros(1), folder=tmp_path, settings=TuneSettings(activity="none"))
