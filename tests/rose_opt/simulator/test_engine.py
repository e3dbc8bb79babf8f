"""The engine: who starts when, how fast it goes, and that no work is lost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_opt.schedule.model import LEAST_RATE
from rose_opt.simulator import Contention, DoesNotFit, Machine, Task, simulate
from tests.properties import examples


def test_tasks_wait_for_what_they_name_and_for_their_worker() -> None:
    tasks = [
        Task("a", ("x",), 3),
        Task("b", ("y",), 5, (0,)),
        Task("c", ("x",), 4),
        Task("d", ("y",), 1),
    ]
    timeline = simulate(tasks)
    assert timeline.start_ns == (0, 3, 3, 0)
    assert timeline.end_ns == (3, 8, 7, 1)
    assert timeline.makespan_ns == 8


def test_a_task_on_two_workers_holds_both() -> None:
    tasks = [Task("a", ("x", "y"), 3), Task("b", ("y",), 2), Task("c", ("z",), 2)]
    assert simulate(tasks).start_ns == (0, 3, 0)


def test_nothing_later_overtakes_what_waits_for_cores_or_memory() -> None:
    cores = [
        Task("a", ("x",), 3, cores=1.5),
        Task("b", ("y",), 4, cores=1.0),
        Task("c", ("z",), 1, cores=0.1),
    ]
    assert simulate(cores, Machine(cores=2.0)).start_ns == (0, 3, 3)
    memory = [Task(t.name, t.workers, t.solo_ns, memory_bytes=round(t.cores * 10)) for t in cores]
    assert simulate(memory, Machine(memory_bytes=20)).start_ns == (0, 3, 3)
    assert simulate(memory, Machine(memory_bytes=25)).start_ns == (0, 0, 3)


def test_a_task_larger_than_the_cores_runs_alone_but_memory_is_no_matter_of_waiting() -> None:
    tasks = [Task("a", ("x",), 3, cores=4.0), Task("b", ("y",), 2, cores=1.0)]
    assert simulate(tasks, Machine(cores=2.0)).start_ns == (0, 3)
    with pytest.raises(DoesNotFit, match="a: expected at most 10 bytes, got 11"):
        simulate([Task("a", ("x",), 3, memory_bytes=11)], Machine(memory_bytes=10))


def test_contention_costs_kappa_per_overlapped_time() -> None:
    # P loses nothing; S loses 0.8 per second while P runs: 2 s of P cost it 1.6 s.
    pair = [Task("P", ("p",), 2.0), Task("S", ("s",), 5.0)]
    timeline = simulate(pair, rates=Contention({("S", "P"): 0.8}))
    assert timeline.end_ns == pytest.approx((2.0, 5.0 + 0.8 * 2.0))


def test_rates_change_with_every_start_and_end() -> None:
    tasks = [Task("P", ("p",), 2.0), Task("P", ("p",), 2.0), Task("S", ("s",), 5.0)]
    timeline = simulate(tasks, rates=Contention({("S", "P"): 0.5, ("P", "S"): 0.2}))
    # Each P takes 2 / 0.8 = 2.5; after 5 s S has done 2.5 of its 5.
    assert timeline.end_ns == pytest.approx((2.5, 5.0, 7.5))


def test_what_contention_would_stop_creeps() -> None:
    pair = [Task("P", ("p",), 2.0), Task("S", ("s",), 5.0)]
    timeline = simulate(pair, rates=Contention({("S", "P"): 1.7}))
    assert timeline.end_ns == pytest.approx((2.0, 7.0 - 2.0 * LEAST_RATE))


def test_demand_beyond_the_device_is_shared_where_kappa_is_unknown() -> None:
    demand = {"V": 100.0, "D": 50.0, "small": 10.0}
    shared = Contention(demand_sms=demand, sms=100)
    assert shared(("V", "D")) == pytest.approx((2 / 3, 2 / 3))
    assert shared(("D", "small")) == (1.0, 1.0)
    assert shared(("V", "host")) == (1.0, 1.0)
    known = Contention({("V", "D"): 0.1, ("D", "V"): 0.3}, demand, 100)
    assert known(("V", "D")) == pytest.approx((0.9, 0.7))
    # Between V and D kappa speaks; the small task is shared with either.
    assert known(("V", "D", "small")) == pytest.approx((0.9 / 1.1, 0.7, 1 / 1.6))


def test_tasks_come_in_program_order() -> None:
    with pytest.raises(ValueError, match="got task 0 waiting for 1"):
        simulate([Task("a", ("x",), 1, (1,)), Task("b", ("x",), 1)])


def test_no_tasks_take_no_time() -> None:
    assert simulate([]).makespan_ns == 0


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Task], Contention, Machine]:
    count = draw(st.integers(1, 14))
    tasks = [
        Task(
            draw(st.sampled_from("PSV")),
            tuple(sorted(draw(st.sets(st.sampled_from("xyz"), min_size=1, max_size=2)))),
            draw(st.integers(1, 1000)) * 1e6,
            tuple(sorted(draw(st.sets(st.integers(0, index - 1), max_size=3)))) if index else (),
            draw(st.sampled_from([0.2, 1.0, 2.0, 3.0])),
            draw(st.integers(0, 5)),
        )
        for index in range(count)
    ]
    pairs = [(a, b) for a in "PSV" for b in "PSV"]
    kappa = {pair: draw(st.floats(0, 0.45)) for pair in draw(st.sets(st.sampled_from(pairs)))}
    machine = Machine(draw(st.none() | st.just(2.0)), draw(st.none() | st.integers(5, 12)))
    return tasks, Contention(kappa), machine


@examples(80, 50)
@given(programs())
def test_work_is_conserved_and_capacity_is_kept(
    program: tuple[list[Task], Contention, Machine],
) -> None:
    tasks, contention, machine = program
    timeline = simulate(tasks, machine, contention)
    moments = sorted({*timeline.start_ns, *timeline.end_ns})
    done = [0.0] * len(tasks)
    for begin, end in itertools.pairwise(moments):
        running = [
            index
            for index in range(len(tasks))
            if timeline.start_ns[index] <= begin and end <= timeline.end_ns[index]
        ]
        rates = contention(tuple(tasks[index].name for index in running))
        for index, rate in zip(running, rates, strict=True):
            done[index] += rate * (end - begin)
        workers = [worker for index in running for worker in tasks[index].workers]
        assert len(workers) == len(set(workers))
        if machine.cores is not None and len(running) > 1:
            assert sum(tasks[index].cores for index in running) <= machine.cores + 1e-9
        if machine.memory_bytes is not None:
            assert sum(tasks[index].memory_bytes for index in running) <= machine.memory_bytes
    for index, task in enumerate(tasks):
        assert done[index] == pytest.approx(task.solo_ns, rel=1e-6)
        for earlier in task.after:
            assert timeline.start_ns[index] >= timeline.end_ns[earlier]


@examples(40, 30)
@given(programs())
def test_observed_durations_are_those_of_the_fitted_model(
    program: tuple[list[Task], Contention, Machine],
) -> None:
    """T_obs = T_solo + sum of kappa * overlap, by which `fit_contention` explains traces."""
    tasks, contention, machine = program
    timeline = simulate(tasks, machine, contention)
    for index, task in enumerate(tasks):
        start, end = timeline.start_ns[index], timeline.end_ns[index]
        others = [o for o in range(len(tasks)) if o != index]
        if any(
            sum(contention.kappa.get((task.name, tasks[o].name), 0) for o in trio) > 1 - LEAST_RATE
            for trio in itertools.combinations(others, 2)
        ):
            continue
        lost = sum(
            contention.kappa.get((task.name, tasks[o].name), 0.0)
            * max(0.0, min(end, timeline.end_ns[o]) - max(start, timeline.start_ns[o]))
            for o in others
        )
        assert end - start == pytest.approx(task.solo_ns + lost, rel=1e-6)
