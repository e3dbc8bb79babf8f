"""What a composite touches itself keeps the program's order, whatever a plan asks for and wherever it runs."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable
from typing import Any

import pytest

import rose_trace as rose
from rose_exec.fuzz import fuzz
from rose_exec.replay import replay
from rose_opt.plan import Plan, PlanRefused
from rose_trace.component import program
from tests.rose_exec.observe import observed_plan

REWIRE = "rewire{node=root/second beside=root/first}"
INSIDE = "rewire{node=root/all/second beside=root/all/first}"


def digest(entries: list[int]) -> int:
    """Tells lists with other entries, or with the same in another order, apart."""
    return sum(7**k * entry for k, entry in enumerate(entries)) % 1_000_003


@rose.component
class Log:
    def __init__(self) -> None:
        self.entries: list[int] = []
        self.marks = 0

    @rose.node(updates="marks")
    def mark(self, value: int) -> int:
        self.marks = self.marks * 3 + value
        return self.marks

    @rose.node(updates="entries")
    def write(self, value: int) -> int:
        """Writes itself before and after it calls a node of its own."""
        self.entries.append(value)
        marked = self.mark(value)
        self.entries.append(int(marked) % 1000)
        return digest(self.entries)

    @rose.node(reads="entries")
    def all(self) -> int:
        return digest(self.entries)


@rose.component
class Worker:
    """Keeps no state that anybody else touches."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    @rose.node(reads="factor")
    def work(self, value: int) -> int:
        return value * self.factor + 1


class Shared:
    """What functions keep between calls."""

    def __init__(self) -> None:
        self.notes: list[int] = []


def declared(second: str = "update") -> Callable[[], Callable[[], Any]]:
    """Two loops whose bodies call a function that notes what a worker returns, before and after it asks."""

    def build() -> Callable[[], Any]:
        worker, other, shared = Worker(3), Worker(5), Shared()

        @rose.node(updates="run.notes")
        def noted(value: int, of: Worker) -> int:
            shared.notes.append(value)
            made = of.work(value + len(shared.notes))
            shared.notes.append(int(made) % 1000)
            return digest(shared.notes)

        @rose.node(reads="run.notes")
        def count() -> int:
            return digest(shared.notes)

        @rose.loop
        def first(_: None, k: int) -> Any:
            return None, noted(k, worker)

        @rose.loop
        def last(_: None, k: int) -> Any:
            return None, (noted(k, other) if second == "update" else other.work(k))

        last.name = "second"

        @rose.iteration(name="root")
        def iteration() -> Any:
            _, one = first(None, count=4)
            _, two = last(None, count=4)
            return one, two, count()

        return iteration

    return build


def methods() -> Callable[[], Any]:
    """Two loops that write one log by a method that calls another method of it."""
    log, worker = Log(), Worker(3)

    @rose.loop
    def first(_: None, k: int) -> Any:
        return None, log.write(k)

    @rose.loop
    def second(_: None, k: int) -> Any:
        return None, (log.write(worker.work(k)))

    @rose.iteration(name="root")
    def iteration() -> Any:
        _, one = first(None, count=4)
        _, two = second(None, count=4)
        return one, two, log.all()

    return iteration


def native(build: Callable[[], Callable[[], Any]]) -> list[Any]:
    with program():
        iteration = build()
        return [iteration() for _ in range(2)]


def planned(plan: Plan, build: Callable[[], Callable[[], Any]]) -> list[Any]:
    with replay(plan, build=build, strict=True) as session:
        return [session.built() for _ in range(2)]


@pytest.mark.parametrize(
    ("build", "state", "node"),
    [(declared(), "run.notes", "noted"), (methods, "log.entries", "log.write")],
    ids=["function", "method"],
)
def test_a_plan_that_would_reorder_its_calls_is_refused(
    build: Callable[[], Callable[[], Any]], state: str, node: str
) -> None:
    plan = observed_plan(build, REWIRE)
    with pytest.raises(PlanRefused) as caught:
        replay(plan, build=build, strict=True)
    assert str(caught.value).startswith(
        f"rewire(root/second beside root/first): expected no conflicting access, got update of '{state}' against "
        f"update of '{state}' (root/first/{node} before root/second/{node})."
    )


def without_accesses(plan: Plan) -> Plan:
    """The plan as if somebody had deleted what its composites touch."""
    data = json.loads(plan.to_json())
    for node in data["nodes"]:
        if node["composite"]:
            node["accesses"] = []
    return Plan.from_json(json.dumps(data))


@pytest.mark.parametrize("build", [declared(), methods], ids=["function", "method"])
def test_the_running_code_counts_not_what_the_plan_says_of_it(
    build: Callable[[], Callable[[], Any]],
) -> None:
    plan = without_accesses(observed_plan(build, REWIRE))
    with pytest.raises(PlanRefused, match="expected no conflicting access"):
        replay(plan, build=build, strict=True)
    with pytest.raises(PlanRefused, match="expected no conflicting access"):
        planned(plan, build)


@pytest.mark.parametrize("build", [declared(), methods], ids=["function", "method"])
def test_the_executor_keeps_the_order_of_its_writes_by_itself(
    build: Callable[[], Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trusting(*_: object) -> None:
        """Takes every plan as legal."""

    monkeypatch.setattr(importlib.import_module("rose_exec.replay"), "verify", trusting)
    for plan in (observed_plan(build, REWIRE), without_accesses(observed_plan(build, REWIRE))):
        assert planned(plan, build) == native(build)


def test_what_does_not_touch_its_state_runs_beside_it() -> None:
    build = declared("nothing")
    assert planned(observed_plan(build, REWIRE), build) == native(build)
    with pytest.raises(PlanRefused, match=r"worker\(worker\)"):
        planned(observed_plan(build, REWIRE, processes=["worker", "worker#1"]), build)
    both = observed_plan(build, REWIRE, processes=["worker#1"])
    assert planned(both, build) == native(build)


def test_what_it_calls_must_live_where_it_runs() -> None:
    build = declared()
    plan = observed_plan(build, processes=["worker"])
    with pytest.raises(PlanRefused) as caught:
        replay(plan, build=build, strict=True)
    assert str(caught.value) == (
        "worker(worker): expected worker in the program's own process, whole, since root/first/noted has accesses "
        "of its own and calls it among others, got it apart. Move what noted touches itself into a node that it "
        "calls."
    )


def test_a_method_that_calls_only_its_own_component_goes_with_it() -> None:
    plan = observed_plan(methods, processes=["log", "worker"])
    assert planned(plan, methods) == native(methods)


def enclosing(loops: int) -> Callable[[], Callable[[], Any]]:
    def build() -> Callable[[], Any]:
        shared, one, two = Shared(), Worker(3), Worker(5)

        @rose.loop
        def first(_: None, k: int) -> Any:
            return None, one.work(k)

        @rose.loop
        def second(_: None, k: int) -> Any:
            return None, two.work(k)

        @rose.node(updates="run.notes", name="all")
        def everything() -> Any:
            shared.notes.append(len(shared.notes))
            made = first(None, count=loops)[1], second(None, count=loops)[1]
            shared.notes.append(sum(map(int, made[0])))
            return made, digest(shared.notes)

        @rose.iteration(name="root")
        def iteration() -> Any:
            return everything(), everything()

        return iteration

    return build


def test_loops_inside_it_run_inside_its_task() -> None:
    build = enclosing(3)
    with pytest.raises(PlanRefused, match="root/all/first inside root/all, which runs as one task"):
        replay(observed_plan(build, INSIDE), build=build, strict=True)
    assert planned(observed_plan(build), build) == native(build)


def test_without_accesses_it_is_glue_around_what_it_calls() -> None:
    def build() -> Callable[[], Any]:
        log, worker = Log(), Worker(3)

        @rose.node(pure=True)
        def both(value: int) -> Any:
            return log.mark(worker.work(value))

        @rose.loop
        def first(_: None, k: int) -> Any:
            return None, both(k)

        @rose.iteration(name="root")
        def iteration() -> Any:
            return first(None, count=4)[1], log.mark(1)

        return iteration

    assert planned(observed_plan(build, processes=["log", "worker"]), build) == native(build)
    with pytest.raises(PlanRefused, match=r"update of 'log\.marks'.*first/both/log\.mark"):
        replay(
            observed_plan(build, "rewire{node=root/log.mark beside=root/first}"),
            build=build,
            strict=True,
        )


@pytest.mark.parametrize(
    "build", [declared(), declared("nothing"), methods, enclosing(2)], ids=["1", "2", "3", "4"]
)
def test_in_every_order_that_the_declarations_allow(
    build: Callable[[], Callable[[], Any]],
) -> None:
    assert fuzz(build, seeds=range(4)).differences == ()


def test_a_checked_run_finds_nothing_against_it() -> None:
    for build in (declared(), methods):
        with replay(observed_plan(build), build=build, strict=True, check=True) as session:
            session.built()
        assert session.findings == ()


def test_a_checked_run_finds_what_glue_writes() -> None:
    def build() -> Callable[[], Any]:
        log = Log()

        @rose.node
        def both(value: int) -> Any:
            log.entries.append(value)
            return log.mark(value)

        @rose.iteration(name="root")
        def iteration() -> Any:
            return both(1), both(2)

        return iteration

    session = replay(observed_plan(build), build=build, strict=True, check=True)
    with pytest.warns(match="entries"), session:
        session.built()
    assert session.findings


def test_dropped_accesses_are_dropped() -> None:
    """The edit above does what it says."""
    plan = observed_plan(methods)
    (write, *_) = (n for n in without_accesses(plan).nodes if n.composite)
    assert write.accesses == ()
    assert dataclasses.replace(plan, nodes=()) == dataclasses.replace(
        without_accesses(plan), nodes=()
    )
