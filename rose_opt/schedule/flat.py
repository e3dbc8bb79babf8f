"""The shortest schedule of one iteration, as one CP-SAT model.

Every activity is one interval. Workers and sets that never fit together are disjunctive, the
rest of the capacity is cumulative, and each duration pays for its overlaps. The search starts
from the native order, so that stopping it early never gives a slower schedule than that.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace

from ortools.sat.python import cp_model

from rose_opt.schedule.activities import (
    Activity,
    FlatProblem,
    FlatSchedule,
    PlacedActivity,
    makespan_ns,
    ordered_pairs,
    serial_flat,
)
from rose_opt.schedule.capacity import RESOURCES
from rose_opt.schedule.flat_bounds import flat_bound_ns, flat_conflicts
from rose_opt.schedule.model import usable_modes
from rose_opt.schedule.solver import FOUND, Budget, SolverSettings, weighted, when
from rose_opt.schedule.ticks import KAPPA_SCALE, choose_tick_ns, scaled_kappa, to_ticks


def solve_flat(problem: FlatProblem, settings: SolverSettings | None = None) -> FlatSchedule:
    """Return the schedule of `problem` with the least makespan found.

    The result is the same on every run unless the wall limit ends the search.

    Args:
        problem: The iteration.
        settings: Limits of the search.

    Returns:
        The schedule, with its lower bound and how the search ended.
    """
    began = time.perf_counter()
    settings = settings or SolverSettings()
    native = serial_flat(problem)
    native_ns = makespan_ns(native)
    lower_ns = flat_bound_ns(problem)
    durations = [mode.duration_ns for a in problem.activities for mode in a.modes]
    lags = [p.lag_ns for a in problem.activities for p in a.predecessors]
    tick_ns = choose_tick_ns([*durations, *lags], native_ns, bool(problem.kappa))
    model = _FlatModel(problem, tick_ns, to_ticks(lower_ns, tick_ns))
    model.hint(native)
    solver, status = Budget(settings).solve(model.model, slack=settings.gap * lower_ns / tick_ns)
    placed, verdict = native, "serial"
    if status in FOUND:
        found = _settled(problem, model.solution(solver))
        rounding = 0 if model.exact else len(found) * (1 + 2 * model.worst_kappa)
        proven = math.ceil(solver.best_objective_bound - 1e-6) - rounding
        lower_ns = min(native_ns, makespan_ns(found), max(lower_ns, proven * tick_ns))
        if makespan_ns(found) < native_ns:
            placed = found
            verdict = "optimal" if lower_ns == makespan_ns(found) else "feasible"
    return FlatSchedule(placed, makespan_ns(placed), lower_ns, verdict, time.perf_counter() - began)


def _settled(
    problem: FlatProblem, placed: tuple[PlacedActivity, ...]
) -> tuple[PlacedActivity, ...]:
    """Shorten every duration to what its overlaps cost; the solver only keeps them long enough."""
    while problem.kappa:
        shorter = tuple(
            replace(mine, duration_ns=min(mine.duration_ns, math.ceil(needed)))
            for activity, mine in zip(problem.activities, placed, strict=True)
            for needed in (
                activity.modes[mine.mode].duration_ns
                + sum(
                    problem.kappa.get((activity.label, other.label), 0.0)
                    * max(0, min(mine.end_ns, p.end_ns) - max(mine.start_ns, p.start_ns))
                    for other, p in zip(problem.activities, placed, strict=True)
                    if other is not activity
                ),
            )
        )
        if shorter == placed:
            break
        placed = shorter
    return placed


@dataclass(slots=True)
class _Op:
    """Variables of one activity."""

    activity: Activity
    start: cp_model.IntVar
    length: cp_model.IntVar
    end: cp_model.IntVar
    interval: cp_model.IntervalVar
    chosen: dict[int, cp_model.IntVar]
    overlaps: list[tuple[int, cp_model.IntVar]] = field(
        default_factory=list[tuple[int, cp_model.IntVar]]
    )


class _FlatModel:
    """The CP-SAT model of one iteration.

    Args:
        problem: The iteration.
        tick_ns: Length of a tick [ns].
        low: Lower bound on the makespan [ticks].
    """

    def __init__(self, problem: FlatProblem, tick_ns: int, low: int) -> None:
        self.model = cp_model.CpModel()
        self._problem = problem
        self._tick_ns = tick_ns
        self._horizon = sum(
            to_ticks(placed.duration_ns, tick_ns) for placed in serial_flat(problem)
        ) + sum(to_ticks(p.lag_ns, tick_ns) for a in problem.activities for p in a.predecessors)
        self._kappa = scaled_kappa(problem.kappa)
        times = [mode.duration_ns for a in problem.activities for mode in a.modes]
        times += [p.lag_ns for a in problem.activities for p in a.predecessors]
        self.exact = not self._kappa and not any(time_ns % tick_ns for time_ns in times)
        rows: defaultdict[str, int] = defaultdict(int)
        for (activity, _), weight in self._kappa.items():
            rows[activity] += weight
        self.worst_kappa = -(-max(rows.values(), default=0) // KAPPA_SCALE)
        self._ops = {a.name: self._add_op(a) for a in problem.activities}
        self._tie_modes()
        self._add_precedence()
        for clique in flat_conflicts(problem):
            self.model.add_no_overlap(self._ops[name].interval for name in clique)
        self._limit_resources()
        if self._kappa:
            self._add_contention()
        makespan = self.model.new_int_var(min(low, self._horizon), self._horizon, "makespan")
        for op in self._ops.values():
            self.model.add(op.end <= makespan)
        self.model.minimize(makespan)

    def _add_op(self, activity: Activity) -> _Op:
        model, horizon = self.model, self._horizon
        chosen = {
            index: model.new_bool_var(f"mode {activity.name} {index}")
            for index in usable_modes(activity.name, activity.modes, self._problem.capacity)
        }
        start = model.new_int_var(0, horizon, f"start {activity.name}")
        length = model.new_int_var(1, horizon, f"length {activity.name}")
        end = model.new_int_var(0, horizon, f"end {activity.name}")
        interval = model.new_interval_var(start, length, end, activity.name)
        model.add_exactly_one(chosen.values())
        op = _Op(activity, start, length, end, interval, chosen)
        if self._kappa:
            model.add(length >= self._solo(op))
        else:
            model.add(length == self._solo(op))
        return op

    def _solo(self, op: _Op) -> cp_model.LinearExpr:
        return weighted(
            [
                (to_ticks(op.activity.modes[index].duration_ns, self._tick_ns), on)
                for index, on in op.chosen.items()
            ]
        )

    def _tie_modes(self) -> None:
        if self._problem.shared_modes:
            first: dict[str, _Op] = {}
            for op in self._ops.values():
                leader = first.setdefault(op.activity.label, op)
                for index in leader.chosen.keys() | op.chosen.keys():
                    self.model.add(leader.chosen.get(index, 0) == op.chosen.get(index, 0))

    def _add_precedence(self) -> None:
        for op in self._ops.values():
            for predecessor in op.activity.predecessors:
                lag = to_ticks(predecessor.lag_ns, self._tick_ns)
                self.model.add(op.start >= self._ops[predecessor.name].end + lag)

    def _limit_resources(self) -> None:
        limits = self._problem.capacity.units()
        for axis in range(len(RESOURCES)):
            limit = limits[axis]
            if limit is None:
                continue
            intervals: list[cp_model.IntervalVar] = []
            demands: list[int] = []
            for op in self._ops.values():
                for index, on in op.chosen.items():
                    demand = op.activity.modes[index].units()[axis]
                    if demand:
                        demands.append(demand)
                        intervals.append(
                            self.model.new_optional_interval_var(
                                op.start, op.length, op.end, on, ""
                            )
                        )
            if sum(demands) > limit:
                self.model.add_cumulative(intervals, demands, limit)

    def _add_contention(self) -> None:
        """Every duration pays for the overlaps that it has: d >= T + sum(kappa * overlap)."""
        ordered = ordered_pairs(self._problem)
        for a, b in itertools.combinations(self._ops.values(), 2):
            left, right = a.activity, b.activity
            weights = (
                self._kappa.get((left.label, right.label), 0),
                self._kappa.get((right.label, left.label), 0),
            )
            if (left.name, right.name) in ordered or {*left.engines} & {*right.engines}:
                continue
            if any(weights):
                overlap = self._overlap(a, b)
                a.overlaps.append((weights[0], overlap))
                b.overlaps.append((weights[1], overlap))
        for op in self._ops.values():
            needed = KAPPA_SCALE * self._solo(op) + weighted(op.overlaps)
            self.model.add(KAPPA_SCALE * op.length >= needed)

    def _overlap(self, a: _Op, b: _Op) -> cp_model.IntVar:
        """A variable that is at least the overlap of two activities [ticks]."""
        model = self.model
        overlap = model.new_int_var(0, self._horizon, "")
        a_first, inside = model.new_bool_var(""), model.new_bool_var("")
        for early, late, order in ((a, b, a_first), (b, a, ~a_first)):
            when(model.add(early.start <= late.start), order)
            when(model.add(overlap >= early.end - late.start), order, ~inside)
            when(model.add(overlap >= late.length), order, inside)
        model.add(overlap <= a.length)
        model.add(overlap <= b.length)
        return overlap

    def hint(self, placed: tuple[PlacedActivity, ...]) -> None:
        """Start the search from `placed`."""
        now = 0
        ends: dict[str, int] = {}
        for item in placed:
            op = self._ops[item.name]
            length = to_ticks(item.duration_ns, self._tick_ns)
            ready = [
                ends[p.name] + to_ticks(p.lag_ns, self._tick_ns) for p in op.activity.predecessors
            ]
            start = max([now, *ready])
            now = ends[item.name] = start + length
            self.model.add_hint(op.start, start)
            self.model.add_hint(op.length, length)
            self.model.add_hint(op.end, now)
            for index, on in op.chosen.items():
                self.model.add_hint(on, index == item.mode)

    def solution(self, solver: cp_model.CpSolver) -> tuple[PlacedActivity, ...]:
        """Return what `solver` found; durations are exact where nothing contends."""
        placed: list[PlacedActivity] = []
        for op in self._ops.values():
            mode = next(index for index, on in op.chosen.items() if solver.value(on))
            solo_ns = op.activity.modes[mode].duration_ns
            length = solver.value(op.length)
            contended = length > to_ticks(solo_ns, self._tick_ns)
            duration_ns = length * self._tick_ns if contended else solo_ns
            start_ns = solver.value(op.start) * self._tick_ns
            placed.append(PlacedActivity(op.activity.name, start_ns, duration_ns, mode))
        return tuple(placed)
