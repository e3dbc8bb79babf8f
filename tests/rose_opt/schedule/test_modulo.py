from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from rose_opt.schedule import LoopProblem, check_schedule, serial_ns
from rose_opt.schedule.bounds import bounds
from rose_opt.schedule.modulo import solve_modulo
from rose_opt.schedule.solver import FOUND, Budget, SolverSettings
from rose_opt.schedule.steady import SteadyModel
from rose_opt.schedule.ticks import choose_tick_ns, tick_loop, to_ticks
from tests.properties import examples
from tests.rose_opt.schedule.problems import MS, VLA_KAPPA, loops, two_core_loop, vla_loop

QUICK = SolverSettings(deterministic_s=0.2, gap=0.0)


@pytest.mark.parametrize(("groups", "period_ms"), [(2, 720), (4, 1_032), (8, 1_640)])
def test_the_known_optima_of_a_split_policy_are_found_and_proven(
    groups: int, period_ms: int
) -> None:
    problem = vla_loop(groups)
    schedule = solve_modulo(problem)
    check_schedule(problem, schedule)
    assert schedule.period_ns == period_ms * MS
    assert schedule.status == "optimal"
    assert schedule.gap < 1e-6
    assert bounds(problem).limiting == "clique"


def test_splitting_further_than_pays_is_slower_than_the_native_step() -> None:
    native_ns = serial_ns(vla_loop(1))
    assert native_ns == 869 * MS
    assert solve_modulo(vla_loop(2)).period_ns < native_ns
    assert solve_modulo(vla_loop(4)).period_ns > native_ns


def test_contention_is_paid_for_and_stays_close_to_the_bound() -> None:
    problem = vla_loop(2, kappa=VLA_KAPPA)
    schedule = solve_modulo(problem, SolverSettings(deterministic_s=0.4))
    check_schedule(problem, schedule)
    free = dataclasses.replace(problem, kappa={})
    assert schedule.period_ns > solve_modulo(free).period_ns
    assert schedule.gap < 0.02


def test_two_cores_gain_where_the_simulator_is_the_larger_part() -> None:
    native_ns = serial_ns(two_core_loop((55, 27), 70, groups=1))
    assert native_ns == 97 * MS
    problem = two_core_loop((55, 27), 70, groups=2)
    schedule = solve_modulo(problem)
    check_schedule(problem, schedule)
    assert schedule.period_ns == 70 * MS
    assert {placed.mode for placed in schedule.placed if placed.id.name == "policy"} == {0}


def test_two_cores_gain_nothing_where_the_policy_is_the_larger_part() -> None:
    native_ns = serial_ns(two_core_loop((72, 37), 25, groups=1))
    problem = two_core_loop((72, 37), 25, groups=2)
    schedule = solve_modulo(problem)
    check_schedule(problem, schedule)
    assert schedule.period_ns >= native_ns
    assert schedule.lower_bound_ns <= native_ns
    assert schedule.status in ("serial", "optimal")


def test_a_search_without_budget_returns_the_serial_order() -> None:
    problem = vla_loop(2, kappa=VLA_KAPPA)
    schedule = solve_modulo(problem, SolverSettings(deterministic_s=0.0))
    check_schedule(problem, schedule)
    assert schedule.status == "serial"
    assert schedule.period_ns == serial_ns(problem) == 1_054 * MS


def test_the_same_problem_gives_the_same_schedule() -> None:
    problem = vla_loop(3, kappa=VLA_KAPPA)
    first, second = (solve_modulo(problem, SolverSettings(deterministic_s=0.1)) for _ in range(2))
    assert first == second
    assert first.status == "feasible"


def test_an_invalid_model_raises() -> None:
    model = cp_model.CpModel()
    variable = model.new_int_var(0, 1, "x")
    model.add(variable <= 0)
    proto: Any = model.proto
    proto.variables[0].domain[0] = 2  # above its upper end
    with pytest.raises(RuntimeError, match="expected a valid model, got MODEL_INVALID"):
        Budget(SolverSettings()).solve(model)


@examples(40, 25)
@given(loops())
def test_every_schedule_passes_the_recheck_and_respects_the_bounds(problem: LoopProblem) -> None:
    _solve_and_check(problem)


@examples(15, 6)
@given(loops(contention=True))
def test_every_contended_schedule_passes_the_recheck(problem: LoopProblem) -> None:
    _solve_and_check(problem)


def _solve_and_check(problem: LoopProblem) -> None:
    schedule = solve_modulo(problem, QUICK)
    check_schedule(problem, schedule)
    lower_ns = bounds(problem).best_ns
    assert schedule.lower_bound_ns == lower_ns
    assert lower_ns <= schedule.proven_ns <= schedule.period_ns
    assert schedule.makespan_ns(problem.count) >= problem.count * lower_ns
    ticks = len(problem.phases) * choose_tick_ns(
        [mode.duration_ns for phase in problem.phases for mode in phase.modes], serial_ns(problem)
    )
    assert schedule.period_ns <= serial_ns(problem) + ticks


@examples(12, 8)
@given(loops(), st.booleans())
def test_feasibility_is_monotone_in_the_period(problem: LoopProblem, contend: bool) -> None:
    names = sorted({phase.name for phase in problem.phases})
    kappa = {(a, b): 0.4 for a in names for b in names} if contend else {}
    problem = dataclasses.replace(problem, kappa=kappa)
    serial = serial_ns(problem)
    tick_ns = max(
        serial // 60, 1, choose_tick_ns([m.duration_ns for p in problem.phases for m in p.modes], 1)
    )
    loop = tick_loop(problem, tick_ns)
    low = to_ticks(bounds(problem).recurrence_ns, tick_ns)
    feasible = False
    for period in range(max(1, low), low + 20):
        steady = SteadyModel(loop, period, period, minimize=None)
        _, status = Budget(SolverSettings(deterministic_s=0.3)).solve(steady.model)
        if status == cp_model.INFEASIBLE:
            assert not feasible
        feasible = feasible or status in FOUND
