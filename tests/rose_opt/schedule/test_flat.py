from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_opt.schedule import Capacity, Mode, ScheduleError
from rose_opt.schedule.activities import (
    Activity,
    FlatProblem,
    Predecessor,
    makespan_ns,
    serial_flat,
)
from rose_opt.schedule.checks import check_flat
from rose_opt.schedule.flat import solve_flat
from rose_opt.schedule.flat_bounds import flat_bound_ns
from rose_opt.schedule.solver import SolverSettings
from tests.properties import examples
from tests.rose_opt.schedule.problems import MS

QUICK = SolverSettings(deterministic_s=0.5, gap=0.0)


def iteration(epochs: int, learn_cores: float, barrier: bool = False) -> FlatProblem:
    """Epochs of reset, interact and value, then their learning, in native order."""
    activities: list[Activity] = []
    for e in range(epochs):
        last = (Predecessor(f"value#{e - 1}"),) if e else ()
        activities += [
            Activity(f"reset#{e}", ("simulator",), (Mode(2 * MS, cores=1),), last, "reset"),
            Activity(
                f"interact#{e}",
                ("simulator", "policy"),
                (Mode(20 * MS, cores=1),),
                (Predecessor(f"reset#{e}"),),
                "interact",
            ),
            Activity(
                f"value#{e}",
                ("policy",),
                (Mode(1 * MS, cores=1),),
                (Predecessor(f"interact#{e}"),),
                "value",
            ),
        ]
    for e in range(epochs):
        waits = [Predecessor(f"value#{epochs - 1 if barrier else e}")]
        waits += [Predecessor(f"learn#{e - 1}")] if e else []
        modes = (Mode(12 * MS, cores=learn_cores),)
        activities.append(Activity(f"learn#{e}", ("trainer",), modes, tuple(waits), "learn"))
    return FlatProblem(tuple(activities), Capacity(cores=2))


def test_learning_runs_beside_later_epochs() -> None:
    problem = iteration(4, learn_cores=1)
    schedule = solve_flat(problem)
    check_flat(problem, schedule)
    assert makespan_ns(serial_flat(problem)) == 4 * 35 * MS
    assert schedule.makespan_ns == (4 * 23 + 12) * MS
    assert schedule.status == "optimal"
    assert schedule.gap == 0.0


def test_learning_that_needs_every_core_keeps_the_native_order() -> None:
    problem = iteration(4, learn_cores=2)
    schedule = solve_flat(problem)
    check_flat(problem, schedule)
    assert schedule.status == "serial"
    assert schedule.makespan_ns == schedule.lower_bound_ns == 4 * 35 * MS


def test_learning_over_all_epochs_waits_for_them() -> None:
    problem = iteration(3, learn_cores=1, barrier=True)
    assert solve_flat(problem).makespan_ns == 3 * 35 * MS


def test_all_activities_of_a_kind_share_a_mode() -> None:
    modes = (Mode(10, cores=2), Mode(15, cores=1))
    activities = tuple(Activity(f"a#{i}", (f"w{i}",), modes, (), "a") for i in range(4))
    problem = FlatProblem(activities, Capacity(cores=2))
    schedule = solve_flat(problem)
    check_flat(problem, schedule)
    assert {placed.mode for placed in schedule.placed} == {1}
    assert schedule.makespan_ns == 30


def test_memory_and_lags_hold() -> None:
    big = (Mode(10, memory_bytes=3 << 30),)
    activities = (
        Activity("a", ("x",), big),
        Activity("b", ("y",), big),
        Activity("c", ("z",), (Mode(5),), (Predecessor("a", lag_ns=4),)),
    )
    problem = FlatProblem(activities, Capacity(memory_bytes=4 << 30))
    schedule = solve_flat(problem)
    check_flat(problem, schedule)
    assert schedule.makespan_ns == 20
    room = dataclasses.replace(problem, capacity=Capacity(memory_bytes=6 << 30))
    assert solve_flat(room).makespan_ns == 19


def test_contention_can_make_the_native_order_the_best() -> None:
    activities = (
        Activity("a", ("x",), (Mode(100),)),
        Activity("b", ("y",), (Mode(100),)),
    )
    for kappa, expected in ((0.25, 134), (1.5, 200)):
        problem = FlatProblem(activities, kappa={("a", "b"): kappa, ("b", "a"): kappa})
        schedule = solve_flat(problem)
        check_flat(problem, schedule)
        assert schedule.makespan_ns == expected


def test_predecessors_come_first() -> None:
    activities = (
        Activity("a", ("x",), (Mode(1),), (Predecessor("b"),)),
        Activity("b", ("x",), (Mode(1),)),
    )
    with pytest.raises(ValueError, match="a: expected predecessors earlier in native order"):
        FlatProblem(activities)


def test_the_recheck_finds_an_overlap_that_was_not_paid_for() -> None:
    activities = (Activity("a", ("x",), (Mode(100),)), Activity("b", ("y",), (Mode(100),)))
    free = solve_flat(FlatProblem(activities))
    contended = FlatProblem(activities, kappa={("b", "a"): 0.5})
    with pytest.raises(ScheduleError, match="b: expected at least 150 ns with its overlaps, got"):
        check_flat(contended, free)


@st.composite
def flat_problems(draw: st.DrawFn) -> FlatProblem:
    count = draw(st.integers(1, 9))
    activities: list[Activity] = []
    for i in range(count):
        names = [activity.name for activity in activities]
        waits = draw(st.lists(st.sampled_from(names), unique=True, max_size=2)) if names else []
        modes = tuple(
            Mode(
                draw(st.integers(1, 50)) * draw(st.sampled_from([1, 37, MS])),
                cores=draw(st.sampled_from([0, 0.5, 1, 2])),
                sms=draw(st.sampled_from([0, 40, 100])),
                memory_bytes=draw(st.integers(0, 3)) << 20,
            )
            for _ in range(draw(st.integers(1, 2)))
        )
        lags = tuple(Predecessor(name, draw(st.sampled_from([0, 0, 11]))) for name in waits)
        engines = draw(st.lists(st.sampled_from("xyz"), unique=True, max_size=2))
        activities.append(Activity(f"a{i}", tuple(engines), modes, lags))
    kappa = {
        (f"a{draw(st.integers(0, count - 1))}", f"a{draw(st.integers(0, count - 1))}"): 0.37
        for _ in range(draw(st.integers(0, 4)))
    }
    return FlatProblem(tuple(activities), Capacity(2, 132, 4 << 20), kappa)


@examples(40, 30)
@given(flat_problems())
def test_every_schedule_passes_the_recheck_and_beats_or_keeps_the_native_order(
    problem: FlatProblem,
) -> None:
    schedule = solve_flat(problem, QUICK)
    check_flat(problem, schedule)
    native_ns = makespan_ns(serial_flat(problem))
    assert flat_bound_ns(problem) <= schedule.lower_bound_ns <= schedule.makespan_ns <= native_ns
