"""Bounds on tasks: no execution of the simulator, in whatever order it picks, comes in below them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_opt.schedule import Capacity, Mode
from rose_opt.schedule.task_bounds import Demand, task_bounds
from rose_opt.simulator.engine import Machine, Task, simulate
from rose_opt.simulator.rates import Contention
from tests.properties import examples

Programs = tuple[list[Task], float, dict[tuple[str, str], float]]


@st.composite
def programs(draw: st.DrawFn) -> Programs:
    """Tasks in program order on up to three workers, cores, and contention between their names."""
    cores = draw(st.sampled_from([1.0, 2.0, 4.0]))
    tasks: list[Task] = []
    for index in range(draw(st.integers(1, 8))):
        after = draw(st.lists(st.integers(0, index - 1), max_size=2, unique=True)) if index else []
        tasks.append(
            Task(
                draw(st.sampled_from("abc")),
                (draw(st.sampled_from("xyz")),),
                1000 * draw(st.integers(1, 20)),
                tuple(sorted(after)),
                min(draw(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0])), cores),
            )
        )
    pairs = [(v, w) for v in "abc" for w in "abc"]
    kappa = {pair: draw(st.sampled_from([0.2, 0.7, 3.0])) for pair in pairs if draw(st.booleans())}
    return tasks, cores, kappa


def demands(tasks: Sequence[Task]) -> list[Demand]:
    return [
        Demand(t.name, t.workers, (Mode(round(t.solo_ns), cores=t.cores),), t.after) for t in tasks
    ]


def in_order(tasks: Sequence[Task], order: Sequence[int]) -> list[Task]:
    """The same tasks, submitted in another order that their waiting allows."""
    place = {index: position for position, index in enumerate(order)}
    return [
        Task(t.name, t.workers, t.solo_ns, tuple(place[a] for a in t.after), t.cores)
        for t in (tasks[index] for index in order)
    ]


@examples(200, 120)
@given(programs(), st.randoms(use_true_random=False))
def test_no_execution_is_done_earlier(given: Programs, randomness: random.Random) -> None:
    tasks, cores, kappa = given
    free = task_bounds(demands(tasks), Capacity(cores=cores)).best_ns
    slowed = task_bounds(demands(tasks), Capacity(cores=cores), kappa).best_ns
    assert free <= slowed
    for _ in range(5):
        keys = [randomness.random() for _ in tasks]
        order: list[int] = []
        while len(order) < len(tasks):
            ready = [
                i for i, t in enumerate(tasks) if i not in order and set(t.after) <= set(order)
            ]
            order.append(min(ready, key=keys.__getitem__))
        shuffled = in_order(tasks, order)
        assert simulate(shuffled, Machine(cores)).makespan_ns >= free - 1  # bounds are whole
        crowded = simulate(shuffled, Machine(cores), Contention(kappa))
        assert crowded.makespan_ns >= slowed - 1


def task(engine: str, ms: int, after: tuple[int, ...] = (), cores: float = 0.0) -> Demand:
    return Demand(engine, (engine,), (Mode(ms, cores=cores),), after)


def test_work_that_is_ready_late_and_followed_by_more_counts_with_both() -> None:
    # y waits for 10 and is followed by 7; x alone needs 10 + 7, y alone 12.
    tasks = [task("x", 10), task("y", 6, (0,)), task("y", 6, (0,)), task("x", 7, (1, 2))]
    found = task_bounds(tasks, Capacity())
    assert (found.path_ns, found.engine_ns, found.best_ns) == (23, 29, 29)
    assert found.limiting == "engine"


def test_cores_count_by_their_share() -> None:
    tasks = [task("x", 10, cores=1.0), task("y", 10, cores=1.0), task("z", 10, cores=1.0)]
    assert task_bounds(tasks, Capacity(cores=2)).area_ns == 15
    assert task_bounds(tasks, Capacity(cores=1)).clique_ns == 30


def test_each_bound_takes_the_mode_that_suits_it() -> None:
    modes = (Mode(10, cores=2.0), Mode(15, cores=1.0))
    tasks = [Demand("a", (engine,), modes) for engine in "xy"]
    found = task_bounds(tasks, Capacity(cores=2))
    assert (found.path_ns, found.area_ns, found.corun_ns) == (10, 15, 15)


def test_nothing_takes_no_time() -> None:
    assert task_bounds([], Capacity(cores=2)).best_ns == 0


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ([Demand("a", ("x",), (Mode(4),)), Demand("b", ("y",), (Mode(5),), (0,))], "path"),
        (
            [
                Demand("a", ("x",), (Mode(4),)),
                *(Demand("b", ("sim[0/2]",), (Mode(3),)) for _ in range(2)),
            ],
            "engine sim[0/2]",
        ),
        ([Demand(k, (k,), (Mode(5, cores=1.5),)) for k in "ab"], "clique"),
        ([Demand(k, (k,), (Mode(6, cores=1.0),)) for k in "abc"], "area (cores)"),
    ],
    ids=["path", "engine", "clique", "area"],
)
def test_the_bound_that_limits_is_told(tasks: list[Demand], told: str) -> None:
    found = task_bounds(tasks, Capacity(cores=2.0))
    assert found.told.startswith(told)
    assert getattr(found, f"{found.limiting}_ns") == found.best_ns
