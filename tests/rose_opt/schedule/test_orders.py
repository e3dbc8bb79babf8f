from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from rose_opt.schedule import (
    Capacity,
    CyclicOrders,
    LoopProblem,
    Mode,
    ModuloSchedule,
    OrderEdge,
    Phase,
    PhaseId,
    cyclic_orders,
    least_period_ns,
    live,
)
from rose_opt.schedule.checks import Run, check_capacity, check_engines
from rose_opt.schedule.modulo import solve_modulo
from rose_opt.schedule.solver import SolverSettings
from tests.properties import examples
from tests.rose_opt.schedule.problems import MS, loops, vla_loop

Durations = Callable[[PhaseId, int], int]


def replay(
    edges: Sequence[OrderEdge], durations: Durations, steps: int
) -> dict[tuple[PhaseId, int], tuple[int, int]]:
    """Run every phase as soon as all that it waits for has ended: (start, end) by (phase, step)."""
    waits = {edge.after: [e for e in edges if e.after == edge.after] for edge in edges}
    done: dict[tuple[PhaseId, int], tuple[int, int]] = {}
    while len(done) < len(waits) * steps:
        before = len(done)
        for phase, incoming in waits.items():
            for step in range(steps):
                needed = [
                    (e.before, step - e.distance)
                    for e in incoming
                    if 0 <= step - e.distance < steps
                ]
                if (phase, step) not in done and all(key in done for key in needed):
                    start = max((done[key][1] for key in needed), default=0)
                    done[phase, step] = start, start + durations(phase, step)
        assert len(done) > before, "deadlock"
    return done


def runs_of(
    problem: LoopProblem,
    schedule: ModuloSchedule,
    times: dict[tuple[PhaseId, int], tuple[int, int]],
) -> list[Run]:
    placed = schedule.by_id
    return [
        Run(
            f"{key} of step {step}",
            placed[key].engine,
            start,
            end,
            problem.phase(key).modes[placed[key].mode],
        )
        for (key, step), (start, end) in times.items()
    ]


def jittered(seed: int, durations: dict[PhaseId, int], spread: float) -> Durations:
    def duration(key: PhaseId, step: int) -> int:
        factor = random.Random(f"{seed} {key} {step}").uniform(1 - spread, 1 + spread)
        return max(1, round(durations[key] * factor))

    return duration


def test_replaying_the_orders_of_a_split_policy_keeps_its_period_and_makespan() -> None:
    problem = vla_loop(2, count=24)
    schedule = solve_modulo(problem)
    orders = cyclic_orders(problem, schedule)
    durations = {placed.id: placed.duration_ns for placed in schedule.placed}
    assert live(orders.edges)
    assert least_period_ns(orders.edges, durations) == schedule.period_ns == 720 * MS
    times = replay(orders.edges, lambda key, _: durations[key], 24)
    assert max(end for _, end in times.values()) <= schedule.makespan_ns(24)
    assert orders.engines["policy.backbone"] == (PhaseId(0, "backbone"), PhaseId(1, "backbone"))
    assert all(0 <= cap <= 2 for cap in orders.lag_caps.values())


def test_noise_costs_little_over_the_busiest_clique() -> None:
    problem = vla_loop(2, count=64)
    schedule = solve_modulo(problem)
    orders = cyclic_orders(problem, schedule)
    durations = {placed.id: placed.duration_ns for placed in schedule.placed}
    duration = jittered(1, durations, 0.2)
    times = replay(orders.edges, duration, 64)
    policy = sum(
        duration(key, step)
        for key in durations
        if key.name in ("backbone", "denoise")
        for step in range(64)
    )
    assert policy <= max(end for _, end in times.values()) <= 1.03 * policy


def test_a_cycle_without_distance_is_not_live() -> None:
    a, b = PhaseId(0, "a"), PhaseId(1, "a")
    edges = [OrderEdge(a, b, 0, "engine"), OrderEdge(b, a, 0, "engine")]
    assert not live(edges)
    assert least_period_ns(edges, {a: 3, b: 4}) is None
    edges[1] = OrderEdge(b, a, 1, "engine")
    assert live(edges)
    assert least_period_ns(edges, {a: 3, b: 4}) == 7
    assert not live([OrderEdge(a, b, 1, "engine"), OrderEdge(b, a, -1, "engine")])


def test_a_group_stays_within_its_lag_cap() -> None:
    problem = vla_loop(3, count=12)
    schedule = solve_modulo(problem)
    orders = cyclic_orders(problem, schedule)
    slow = jittered(5, {placed.id: placed.duration_ns for placed in schedule.placed}, 0.9)
    times = replay(orders.edges, slow, 12)
    for (ahead, behind), cap in orders.lag_caps.items():
        for step in range(max(cap, 0), 12):
            if step - cap < 12:
                end = times[PhaseId(behind, "simulate"), step - cap][1]
                assert times[PhaseId(ahead, "observe"), step][0] >= end


def test_first_steps_are_in_order_where_their_neighbours_in_the_cycle_do_not_run_yet() -> None:
    def chain(group: int) -> tuple[Phase, ...]:
        phases = (("p0", "w1", 1), ("p1", "w0", 7), ("p2", "w1", 1))
        return tuple(Phase(name, engine, (Mode(ns),), group) for name, engine, ns in phases)

    problem = LoopProblem((chain(0), chain(1)), 1, Capacity())
    schedule = solve_modulo(problem, SolverSettings(deterministic_s=0.1, gap=0.0))
    orders = cyclic_orders(problem, schedule)
    durations = {placed.id: placed.duration_ns for placed in schedule.placed}
    check_engines(runs_of(problem, schedule, replay(orders.edges, jittered(0, durations, 0.0), 5)))


@examples(30, 20)
@given(loops(), st.integers(0, 1_000))
def test_no_replay_exceeds_a_worker_or_the_machine(problem: LoopProblem, seed: int) -> None:
    schedule = solve_modulo(problem, SolverSettings(deterministic_s=0.1, gap=0.0))
    orders: CyclicOrders = cyclic_orders(problem, schedule)
    assert live(orders.edges)
    durations = {placed.id: placed.duration_ns for placed in schedule.placed}
    period_ns = least_period_ns(orders.edges, durations)
    assert period_ns is not None
    assert period_ns <= schedule.period_ns
    for duration in (jittered(seed, durations, 0.0), jittered(seed, durations, 0.9)):
        runs = runs_of(problem, schedule, replay(orders.edges, duration, 5))
        check_engines(runs)
        check_capacity(runs, problem.capacity)
