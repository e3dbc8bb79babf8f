"""The shortest steady state of a loop: binary search on the period.

Feasibility is monotone in the period (idle time can be added at its end, and no two phases
overlap more), so the search is exact. It starts at the lower bound, where most loops end, and
from the serial order, so that stopping it early leaves a valid schedule that is never worse
than running one group after the other.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from rose_opt.schedule.bounds import bounds
from rose_opt.schedule.model import (
    LoopProblem,
    ModuloSchedule,
    PhaseId,
    Placed,
    serial_modes,
    serial_ns,
)
from rose_opt.schedule.solver import FOUND, Budget, SolverSettings
from rose_opt.schedule.steady import SteadyModel
from rose_opt.schedule.ticks import (
    TickLoop,
    TickPlacement,
    choose_tick_ns,
    settled,
    tick_loop,
    to_ticks,
)

_PERIOD_SHARE = 0.9  # ours: of the work, for the period; the rest is for filling and draining
_COARSE = 0.01  # ours: of the period, left by the binary search where phases contend
_PROBE_SHARE = 0.05  # ours: of the work left, for one period of the binary search
_SPAN_SLACK = 0.001  # ours: of the makespan, not worth work on filling and draining
_SPAN_SLACK_LEAST = 0.02  # ours: of the period, likewise


@dataclass(slots=True)
class _Search:
    """State of the search [ticks]; periods below `proven` are impossible."""

    best: TickPlacement
    proven: int
    improved: bool = False


def solve_modulo(problem: LoopProblem, settings: SolverSettings | None = None) -> ModuloSchedule:
    """Return the schedule of `problem` with the shortest period found, then the least span.

    The result is the same on every run unless the wall limit ends the search.

    Args:
        problem: The loop.
        settings: Limits of the search.

    Returns:
        The schedule, with its lower bound, what was proven and how the search ended.
    """
    began = time.perf_counter()
    settings = settings or SolverSettings()
    durations = [mode.duration_ns for phase in problem.phases for mode in phase.modes]
    tick_ns = choose_tick_ns(durations, serial_ns(problem), bool(problem.kappa))
    loop = tick_loop(problem, tick_ns)
    bound_ns = bounds(problem).best_ns
    search = _Search(_serial_placement(problem, loop), to_ticks(bound_ns, tick_ns))
    period_budget = Budget(
        replace(settings, deterministic_s=settings.deterministic_s * _PERIOD_SHARE)
    )
    enough = max(search.proven, int(bound_ns / tick_ns / (1.0 - settings.gap)))
    _shorten_period(loop, search, enough, period_budget)
    placement = settled(loop, search.best)
    if search.improved:
        span_budget = Budget(
            settings, settings.deterministic_s * _PERIOD_SHARE, period_budget.wall_used_s
        )
        slack = max(_SPAN_SLACK * problem.count, _SPAN_SLACK_LEAST) * placement.period
        placement = settled(loop, _shorten_span(loop, placement, slack, span_budget))
    status = "optimal" if placement.period <= search.proven else "feasible"
    return ModuloSchedule(
        period_ns=placement.period * tick_ns,
        span_ns=placement.span * tick_ns,
        placed=_placed(problem, placement, tick_ns),
        lower_bound_ns=bound_ns,
        proven_ns=search.proven * tick_ns,
        status=status if search.improved or status == "optimal" else "serial",
        seconds=time.perf_counter() - began,
    )


def _serial_placement(problem: LoopProblem, loop: TickLoop) -> TickPlacement:
    """One group after the other, every phase in its fastest mode."""
    modes = serial_modes(problem)
    placed: dict[PhaseId, tuple[int, int, int]] = {}
    now = 0
    for phase in loop.phases:
        mode = next(mode for mode in phase.modes if mode.index == modes[phase.id])
        placed[phase.id] = now, mode.ticks, mode.index
        now += mode.ticks
    return TickPlacement(period=now, span=now, placed=placed)


def _shorten_period(loop: TickLoop, search: _Search, enough: int, budget: Budget) -> None:
    """Bring the period down to `enough`: first by binary search, then by minimising.

    A period that the solver leaves open is taken as too short, but not as proven so. The binary
    search stays coarse where phases contend; minimising over all that is open does the rest.
    """
    low, fineness = search.proven, 1
    probe = low
    if loop.kappa:
        fineness = 1 + int(_COARSE * search.proven)
        probe = (low + search.best.period) // 2
    while search.best.period > enough and low + fineness <= search.best.period:
        if _probe(loop, search, (probe, probe), budget, _PROBE_SHARE) not in FOUND:
            low = probe + 1
        probe = min((low + search.best.period) // 2, search.best.period - 1)
    if search.best.period > max(enough, search.proven) and not budget.exhausted:
        _probe(loop, search, (search.proven, search.best.period - 1), budget, 1.0, enough)


def _probe(
    loop: TickLoop,
    search: _Search,
    periods: tuple[int, int],
    budget: Budget,
    share: float,
    enough: int = 0,
) -> cp_model.CpSolverStatus:
    """Look for a schedule with a period in `periods`; of several, for one of about `enough`."""
    steady = SteadyModel(loop, *periods, minimize="period" if periods[0] < periods[1] else None)
    steady.hint(search.best)
    solver, status = budget.solve(steady.model, share=share, slack=max(0, enough - search.proven))
    if status in FOUND:
        search.best, search.improved = steady.solution(solver), True
        if periods[0] < periods[1]:
            search.proven = max(search.proven, math.ceil(solver.best_objective_bound - 1e-6))
    elif status == cp_model.INFEASIBLE and periods[0] == search.proven:
        search.proven = periods[1] + 1
    return status


def _shorten_span(
    loop: TickLoop, found: TickPlacement, slack: float, budget: Budget
) -> TickPlacement:
    """Return the schedule with the period of `found` that fills and drains fastest."""
    steady = SteadyModel(loop, found.period, found.period, minimize="span")
    steady.hint(found)
    solver, status = budget.solve(steady.model, slack=slack)
    if status not in FOUND:
        return found
    better = steady.solution(solver)
    return better if better.span < found.span else found


def _placed(problem: LoopProblem, found: TickPlacement, tick_ns: int) -> tuple[Placed, ...]:
    """Return `found` in nanoseconds; durations are exact where nothing contends."""
    placed: list[Placed] = []
    for phase in problem.phases:
        start, length, mode = found.placed[phase.id]
        solo_ns = phase.modes[mode].duration_ns
        contended = length > to_ticks(solo_ns, tick_ns)
        duration_ns = length * tick_ns if contended else solo_ns
        placed.append(Placed(phase.id, phase.engine, start * tick_ns, duration_ns, mode))
    return tuple(placed)
