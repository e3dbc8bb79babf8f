"""Recheck a schedule without the solver that made it.

Several steps are laid out in time and every rule is tested on them: order within a group, one
phase at a time per worker, capacity at every instant, and that every duration pays for the
overlap that it really has.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rose_opt.schedule.activities import FlatProblem, FlatSchedule
from rose_opt.schedule.capacity import Capacity, Mode
from rose_opt.schedule.model import LoopProblem, ModuloSchedule, PhaseId

_STEPS = 6
_CORE_TOLERANCE = 1e-6
_KAPPA_TOLERANCE_NS = 1.0


class ScheduleError(ValueError):
    """A schedule breaks a rule of its problem."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a phase or activity, laid out in time."""

    subject: str
    engine: str
    start_ns: int
    end_ns: int
    mode: Mode


def check_schedule(problem: LoopProblem, schedule: ModuloSchedule) -> None:
    """Check `schedule` against `problem`.

    Raises:
        ScheduleError: At the first rule that is broken.
    """
    placed = schedule.by_id
    missing = sorted({phase.id for phase in problem.phases} ^ set(placed))
    if missing:
        raise ScheduleError(
            f"ModuloSchedule: expected every phase placed once, got a difference in {missing[0]}. "
            "Plan again from the current trace."
        )
    _check_modes(problem, schedule)
    runs = _expand(problem, schedule, _STEPS)
    for chain in problem.chains:
        for step in range(_STEPS):
            for number, phase in enumerate(chain):
                after = chain[(number + 1) % len(chain)]
                next_step = step + (number + 1 == len(chain))
                if next_step < _STEPS:
                    check_before(runs[step, phase.id], runs[next_step, after.id], 0)
    check_engines(runs.values())
    check_capacity(runs.values(), problem.capacity)
    _check_contention(problem, schedule)
    _check_claims(schedule)


def check_flat(problem: FlatProblem, schedule: FlatSchedule) -> None:
    """Check `schedule` against `problem`.

    Raises:
        ScheduleError: At the first rule that is broken.
    """
    names = [activity.name for activity in problem.activities]
    if [placed.name for placed in schedule.placed] != names:
        raise ScheduleError(
            f"FlatSchedule: expected the activities {names}, got "
            f"{[placed.name for placed in schedule.placed]}. Plan again from the current trace."
        )
    runs: dict[str, Run] = {}
    occupied: list[Run] = []
    kinds: dict[str, int] = {}
    for activity, placed in zip(problem.activities, schedule.placed, strict=True):
        if not 0 <= placed.mode < len(activity.modes) or placed.start_ns < 0:
            raise ScheduleError(
                f"{placed.name}: expected a start of 0 or later in one of "
                f"{len(activity.modes)} modes, got mode {placed.mode} at {placed.start_ns} ns. "
                "Plan again from the current trace."
            )
        mode = activity.modes[placed.mode]
        first = kinds.setdefault(activity.label, placed.mode)
        if problem.shared_modes and placed.mode != first:
            raise ScheduleError(
                f"{placed.name}: expected mode {first} as in the first of its kind, got "
                f"{placed.mode}. Plan again from the current trace."
            )
        run = Run(placed.name, "", placed.start_ns, placed.end_ns, mode)
        runs[placed.name] = run
        occupied += [replace(run, engine=engine) for engine in activity.engines]
        for predecessor in activity.predecessors:
            check_before(runs[predecessor.name], run, predecessor.lag_ns)
    check_engines(occupied)
    check_capacity(runs.values(), problem.capacity)
    for activity in problem.activities:
        needed = float(runs[activity.name].mode.duration_ns) + sum(
            problem.kappa.get((activity.label, other.label), 0.0)
            * _overlap_ns(runs[activity.name], runs[other.name])
            for other in problem.activities
            if other is not activity
        )
        _check_duration(activity.name, runs[activity.name], needed)
    latest_ns = max(run.end_ns for run in runs.values())
    if latest_ns != schedule.makespan_ns or schedule.lower_bound_ns > latest_ns:
        raise ScheduleError(
            f"FlatSchedule: expected a makespan of {latest_ns} ns and a bound within it, got "
            f"{schedule.makespan_ns} and {schedule.lower_bound_ns} ns. Plan again from the "
            "current trace."
        )


def _overlap_ns(a: Run, b: Run) -> int:
    return max(0, min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns))


def _check_duration(subject: str, run: Run, needed_ns: float) -> None:
    """Check that a run is as long as its mode and its overlaps make it.

    Raises:
        ScheduleError: If it is not.
    """
    if run.end_ns - run.start_ns < needed_ns - _KAPPA_TOLERANCE_NS:
        raise ScheduleError(
            f"{subject}: expected at least {needed_ns:.0f} ns with its overlaps, got "
            f"{run.end_ns - run.start_ns} ns. Plan again from the current trace."
        )


def check_before(first: Run, then: Run, lag_ns: int) -> None:
    """Check that `then` starts at least `lag_ns` after the end of `first`.

    Raises:
        ScheduleError: If it does not.
    """
    if then.start_ns < first.end_ns + lag_ns:
        raise ScheduleError(
            f"{then.subject}: expected a start at or after {first.end_ns + lag_ns} ns, the end of "
            f"{first.subject}, got {then.start_ns} ns. Plan again from the current trace."
        )


def check_engines(runs: Iterable[Run]) -> None:
    """Check that no worker runs two things at once.

    Raises:
        ScheduleError: If it does not.
    """
    lanes: defaultdict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.start_ns, run.end_ns)):
        lanes[run.engine].append(run)
    for engine, lane in lanes.items():
        for first, then in itertools.pairwise(lane):
            if then.start_ns < first.end_ns:
                raise ScheduleError(
                    f"worker {engine}: expected one phase at a time, got {then.subject} at "
                    f"{then.start_ns} ns inside {first.subject}. Plan again from the current "
                    "trace."
                )


def check_capacity(runs: Iterable[Run], capacity: Capacity) -> None:
    """Check every resource at every instant.

    Raises:
        ScheduleError: If it does not.
    """
    events: list[tuple[int, int, Run]] = []
    for run in runs:
        events += [(run.start_ns, 1, run), (run.end_ns, -1, run)]
    cores, sms, memory = 0.0, 0, 0
    for time_ns, sign, run in sorted(events, key=lambda event: event[:2]):
        cores += sign * run.mode.cores
        sms += sign * run.mode.sms
        memory += sign * run.mode.memory_bytes
        for name, used, limit in (
            ("cores", cores, capacity.cores),
            ("sms", sms, capacity.sms),
            ("memory_bytes", memory, capacity.memory_bytes),
        ):
            if limit is not None and used > limit + _CORE_TOLERANCE:
                raise ScheduleError(
                    f"capacity: expected at most {limit} {name}, got {used} at {time_ns} ns when "
                    f"{run.subject} starts. Plan again from the current trace."
                )


def _check_modes(problem: LoopProblem, schedule: ModuloSchedule) -> None:
    """Check that every phase has one of its modes, on its worker.

    Raises:
        ScheduleError: If it has not.
    """
    shared: dict[str, int] = {}
    for phase in problem.phases:
        placed = schedule.by_id[phase.id]
        if not 0 <= placed.mode < len(phase.modes) or placed.engine != phase.engine:
            raise ScheduleError(
                f"{phase.id}: expected one of {len(phase.modes)} modes on {phase.engine}, got mode "
                f"{placed.mode} on {placed.engine}. Plan again from the current trace."
            )
        first = shared.setdefault(phase.name, placed.mode)
        if problem.shared_modes and placed.mode != first:
            raise ScheduleError(
                f"{phase.id}: expected mode {first} as in the first group, got {placed.mode}. "
                "Plan again from the current trace."
            )


def _expand(
    problem: LoopProblem, schedule: ModuloSchedule, steps: int
) -> dict[tuple[int, PhaseId], Run]:
    runs: dict[tuple[int, PhaseId], Run] = {}
    for step in range(steps):
        for phase in problem.phases:
            placed = schedule.by_id[phase.id]
            start_ns = placed.start_ns + step * schedule.period_ns
            runs[step, phase.id] = Run(
                f"{phase.id} of step {step}",
                placed.engine,
                start_ns,
                start_ns + placed.duration_ns,
                phase.modes[placed.mode],
            )
    return runs


def _check_contention(problem: LoopProblem, schedule: ModuloSchedule) -> None:
    """Check d >= T + sum(kappa * overlap) for a step in the middle of the steady state."""
    reach = 2 + max(placed.end_ns for placed in schedule.placed) // schedule.period_ns
    runs = _expand(problem, schedule, 2 * reach + 1)
    for phase in problem.phases:
        mine = runs[reach, phase.id]
        needed = float(mine.mode.duration_ns) + sum(
            problem.kappa.get((phase.name, key.name), 0.0) * _overlap_ns(mine, run)
            for (_, key), run in runs.items()
            if key.group != phase.group
        )
        _check_duration(str(phase.id), mine, needed)


def _check_claims(schedule: ModuloSchedule) -> None:
    """Check the figures that the schedule states about itself.

    Raises:
        ScheduleError: If it does not.
    """
    ends: Sequence[int] = [placed.end_ns for placed in schedule.placed]
    starts = [placed.start_ns for placed in schedule.placed]
    if min(starts) < 0 or max(ends) > schedule.span_ns:
        raise ScheduleError(
            f"ModuloSchedule: expected every phase within 0..{schedule.span_ns} ns, got "
            f"{min(starts)}..{max(ends)} ns. Plan again from the current trace."
        )
    if schedule.lower_bound_ns > schedule.period_ns:
        raise ScheduleError(
            f"ModuloSchedule: expected a period of at least {schedule.lower_bound_ns} ns, got "
            f"{schedule.period_ns} ns. Plan again from the current trace."
        )
