"""A plan that no longer fits or no longer pays gives way; results stay what they were."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rose_trace as rose
from rose_exec.guard import Guard, GuardSettings
from rose_exec.guarded import GuardedReplay
from rose_exec.replay import NativeOrderWarning
from tests.rose_exec import programs
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.test_replay import REWIRE, assert_identical, native

MS = 1_000_000


def played(guard: Guard, planned: Iterator[int] | int, native_ns: int, iterations: int) -> str:
    """Let a guard see durations; returns the orders that it asked for, one letter each."""
    orders = ""
    for _ in range(iterations):
        order = guard.next_order()
        orders += order[0]
        taken = planned if isinstance(planned, int) else next(planned)
        guard.ran(order, native_ns if order == "native" else taken)
    return orders


def settings(**changes: Any) -> GuardSettings:
    chosen = GuardSettings(every=4, every_suspect=1, window=3, min_samples=2, warm_up=1)
    return replace(chosen, **changes)


def test_a_fast_plan_stays_and_pays_one_native_iteration_in_every_few() -> None:
    guard = Guard(settings())
    assert played(guard, 8 * MS, 10 * MS, 15) == "ppppnppppnppppn"
    assert guard.reason == ""


def test_a_slow_plan_is_dropped_with_the_numbers() -> None:
    guard = Guard(settings())
    assert played(guard, 12 * MS, 10 * MS, 10) == "ppppnpnnnn"
    assert guard.reason == (
        "The plan is slower than the native order: 12.0 ms per iteration against 10.0 (medians of the last 3 and 2, "
        "scatter 0.0 ms, margin 5%). Plan again."
    )


def test_a_plan_within_the_margin_stays() -> None:
    guard = Guard(settings(margin=0.3))
    played(guard, 12 * MS, 10 * MS, 40)
    assert guard.reason == ""


def test_a_plan_that_is_slow_once_stays() -> None:
    slow_once = iter([8 * MS] * 6 + [900 * MS] + [8 * MS] * 60)
    guard = Guard(settings())
    played(guard, slow_once, 10 * MS, 40)
    assert guard.reason == ""


def test_one_slow_native_comparison_settles_nothing() -> None:
    """Both sides need several samples: a first native iteration that happens to be fast is not enough."""
    guard = Guard(settings(every_suspect=4))
    assert played(guard, 12 * MS, 10 * MS, 5) == "ppppn"
    assert guard.reason == ""


def test_scatter_is_no_slowness() -> None:
    scattered = iter([8 * MS, 30 * MS, 14 * MS] * 30)
    guard = Guard(settings(window=3))
    played(guard, scattered, 13 * MS, 60)
    assert guard.reason == ""


def test_the_warm_up_is_not_counted() -> None:
    first = iter([5000 * MS, *[8 * MS] * 60])
    guard = Guard(settings(warm_up=1))
    played(guard, first, 10 * MS, 3)
    assert list(guard.planned_ns) == [8 * MS, 8 * MS]


@pytest.mark.parametrize("wrong", [{"every": 0}, {"min_samples": 1}, {"min_samples": 4}])
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="GuardSettings: expected"):
        settings(**wrong)


class Scripted:
    """A clock that gives each iteration the duration of its order."""

    def __init__(self, planned: int, native_ns: int) -> None:
        self.planned, self.native_ns, self.now, self.asked = planned, native_ns, 0, 0
        self.guard: Guard | None = None

    def __call__(self) -> int:
        assert self.guard is not None
        self.asked += 1
        if self.asked % 2 == 0:
            slow = self.guard.next_order() == "native"
            self.now += self.native_ns if slow else self.planned
        return self.now


@pytest.mark.parametrize("planned", [5 * MS, 20 * MS], ids=["stays", "dropped"])
def test_results_are_native_whatever_the_guard_does(planned: int) -> None:
    plan = observed_plan(programs.build, REWIRE, processes=("trainer",))
    clock = Scripted(planned, 10 * MS)
    guard = clock.guard = Guard(settings(every=2, clock=clock))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with GuardedReplay(plan, build=programs.build, guard=guard) as session:
            results = [session.built() for _ in range(8)]
            dropped = session.native
            reason = session.reason
    assert dropped == (planned > 10 * MS)
    said = [str(w.message) for w in told if issubclass(w.category, NativeOrderWarning)]
    assert said == ([f"{reason} Running in native order."] if dropped else [])
    assert "20.0 ms per iteration against 10.0" in reason or not dropped
    assert_identical(results, native(8))


@rose.component
class Scaler:
    def __init__(self) -> None:
        self.total = np.zeros(2)

    @rose.node(reads="table")
    def scale(self, x: Any) -> Any:
        return np.ones(3) * x.sum()

    @rose.node(updates="total")
    def take(self, y: Any) -> Any:
        self.total = self.total + y.sum()
        return self.total.copy()


def scaling() -> Callable[..., Any]:
    scaler = Scaler()

    @rose.iteration(name="scaling")
    def iteration(rows: int = 4) -> Any:
        return scaler.take(scaler.scale(np.arange(float(rows))))

    return iteration


def test_other_inputs_than_before_fall_back_once() -> None:
    plan = observed_plan(scaling, processes=("scaler",))
    guard = Guard(settings(every=50))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with GuardedReplay(plan, build=scaling, guard=guard) as session:
            same = [session.built(4), session.built(4)]
            assert not session.native
            drifted = session.built(6)
            assert session.native  # from the next iteration on
            later = [session.built(7), session.built(4)]
    said = [str(w.message) for w in told if issubclass(w.category, NativeOrderWarning)]
    assert said == [
        "scaling/scaler.scale: expected inputs (float64[4]), got (float64[6]). The program has other shapes than "
        "the plan was made for: record and plan again. Running in native order."
    ]
    plain = scaling()
    assert_identical([*same, drifted, *later], [plain(n) for n in (4, 4, 6, 7, 4)])


def test_inputs_that_vary_by_themselves_are_not_watched() -> None:
    def build() -> Callable[..., Any]:
        scaler = Scaler()

        @rose.iteration(name="scaling")
        def iteration(last: int = 2) -> Any:
            return [scaler.take(np.zeros(rows)) for rows in (4, 4, last)]

        return iteration

    plan = observed_plan(build)
    guard = Guard(settings(every=50))
    with GuardedReplay(plan, build=build, guard=guard) as session:
        for last in (2, 3, 5):
            session.built(last)
        assert not session.native
        assert guard.reason == ""


def test_a_result_unlike_the_recorded_one_falls_back() -> None:
    def build() -> Callable[..., Any]:
        scaler = Scaler()

        @rose.iteration(name="scaling")
        def iteration(rows: int = 4) -> Any:
            return scaler.take(scaler.scale(np.arange(float(rows))))

        return iteration

    recorded = observed_plan(build)
    nodes = tuple(
        replace(node, structure=_wider(node.structure)) if node.name == "scaler.take" else node
        for node in recorded.nodes
    )
    guard = Guard(settings(every=50))
    plan = replace(recorded, nodes=nodes)
    with GuardedReplay(plan, build=build, guard=guard) as session:
        with pytest.warns(
            NativeOrderWarning, match=r"expected a result \(float64\[5\]\), got \(float64\[2\]\)"
        ):
            session.built()
        assert session.native


def _wider(structure: str | None) -> str:
    assert structure is not None
    assert "[2]" in structure
    return structure.replace("[2]", "[5]")


def test_a_guarded_session_that_never_uses_its_guard_is_a_replay() -> None:
    plan = observed_plan(programs.build)
    with GuardedReplay(plan, build=programs.build) as session:
        results = [session.built()]
        assert session.guard is None
    assert_identical(results, native(1))
