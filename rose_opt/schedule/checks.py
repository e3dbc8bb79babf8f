"""Recheck a schedule without the solver that made it.

Several steps are laid out in time and every rule is tested on them: order within a group, one
phase at a time per worker, capacity at every instant, and that every duration pays for the
overlap that it really has.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    """Check d >= T + sum(kappa * overlap) in the steady state, for a step in the middle.

    Raises:
        ScheduleError: If it does not.
    """
    placed = schedule.by_id
    reach = 2 + max(p.end_ns for p in schedule.placed) // schedule.period_ns
    for phase in problem.phases:
        mine = placed[phase.id]
        needed = float(phase.modes[mine.mode].duration_ns)
        for other in problem.phases:
            kappa = problem.kappa.get((phase.name, other.name), 0.0)
            if kappa and other.group != phase.group:
                theirs = placed[other.id]
                needed += kappa * sum(
                    max(
                        0,
                        min(mine.end_ns, theirs.end_ns + shift * schedule.period_ns)
                        - max(mine.start_ns, theirs.start_ns + shift * schedule.period_ns),
                    )
                    for shift in range(-reach, reach + 1)
                )
        if mine.duration_ns < needed - _KAPPA_TOLERANCE_NS:
            raise ScheduleError(
                f"{phase.id}: expected at least {needed:.0f} ns with its overlaps, got "
                f"{mine.duration_ns} ns. Plan again from the current trace."
            )


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
