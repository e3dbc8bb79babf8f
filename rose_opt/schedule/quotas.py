"""SM quotas as decisions of a schedule, in the two forms that hardware offers.

A percentage of a daemon is fixed for a process's life, so every worker has one level throughout: an outer
loop over levels, each a loop problem of its own, since durations and contention change with the level.
Levels whose bound is no better than what was found are left out. A partition of a process (a green
context) may change from phase to phase, so levels are modes of the phase inside one model.

Paper: §4.4 (Alg. 2 measures instead).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rose_opt.schedule.bounds import bounds
from rose_opt.schedule.capacity import Mode
from rose_opt.schedule.model import LoopProblem, ModuloSchedule
from rose_opt.schedule.modulo import solve_modulo
from rose_opt.schedule.solver import SolverSettings

Levels = Mapping[str, int]
"""SMs of each limited worker, by worker."""


@dataclass(frozen=True, slots=True)
class LevelTrial:
    """One assignment of levels that was looked at.

    Attributes:
        levels: SMs by worker.
        bound_ns: No schedule at these levels takes less per step [ns].
        period_ns: Time per step of the best schedule found [ns]; ``None`` where the bound already
            ruled the levels out.
    """

    levels: Levels
    bound_ns: int
    period_ns: int | None


@dataclass(frozen=True, slots=True)
class QuotaSchedule:
    """The best levels and their schedule.

    Attributes:
        levels: SMs by worker.
        schedule: The steady state at these levels.
        trials: What was looked at, most promising first.
    """

    levels: Levels
    schedule: ModuloSchedule
    trials: tuple[LevelTrial, ...]

    @property
    def lower_bound_ns(self) -> int:
        """No schedule at any of the levels takes less per step [ns]."""
        return min(trial.bound_ns for trial in self.trials)

    @property
    def gap(self) -> float:
        """Share of the period above the lower bound [fraction]."""
        return 1.0 - self.lower_bound_ns / self.schedule.period_ns


def solve_levels(
    offered: Mapping[str, Sequence[int]],
    problem_at: Callable[[Levels], LoopProblem],
    settings: SolverSettings | None = None,
) -> QuotaSchedule:
    """Find the levels at which the loop's period is shortest.

    Args:
        offered: Levels of each worker that is limited [SMs]; workers that share one process share a
            level by being limited under one name.
        problem_at: The loop at given levels, its durations and contention as measured there.
        settings: Limits of each solve.

    Returns:
        The best; of equal periods, the levels that come last (the largest, where offers increase).

    Raises:
        ValueError: If a worker is offered no level.
    """
    settings = settings or SolverSettings()
    for worker, levels in offered.items():
        if not levels:
            raise ValueError(
                f"{worker}: expected at least one level, got none. Offer the worker all SMs."
            )
    assignments = [
        dict(zip(offered, levels, strict=True))
        for levels in itertools.product(*(reversed(levels) for levels in offered.values()))
    ]
    problems = [problem_at(levels) for levels in assignments]
    bounded = [bounds(problem).best_ns for problem in problems]
    best: tuple[Levels, ModuloSchedule] | None = None
    trials: list[LevelTrial] = []
    for index in sorted(range(len(assignments)), key=bounded.__getitem__):
        levels, bound_ns = assignments[index], bounded[index]
        if best is not None and bound_ns >= best[1].period_ns:
            trials.append(LevelTrial(levels, bound_ns, None))
            continue
        schedule = solve_modulo(problems[index], settings)
        trials.append(LevelTrial(levels, bound_ns, schedule.period_ns))
        if best is None or schedule.period_ns < best[1].period_ns:
            best = levels, schedule
    assert best is not None, "there is at least one assignment, the empty one"
    return QuotaSchedule(*best, tuple(trials))


def level_modes(duration_ns: Mapping[int, int], like: Mode) -> tuple[Mode, ...]:
    """Modes of a phase that may be limited while it runs.

    Args:
        duration_ns: Its duration at each level, by SMs [ns].
        like: Its other demands.

    Returns:
        One mode per level that is worth having, most SMs first: a level that is no faster than one
        with fewer SMs is left out.

    >>> [(m.sms, m.duration_ns) for m in level_modes({132: 90, 66: 90, 33: 150}, Mode(1))]
    [(66, 90), (33, 150)]
    """
    kept: list[Mode] = []
    for sms, duration in sorted(duration_ns.items()):
        if not kept or duration < kept[-1].duration_ns:
            kept.append(
                Mode(duration, like.cores, sms, like.threads, f"{sms} SMs", like.memory_bytes)
            )
    return tuple(reversed(kept))


def at_level(measured: Mapping[int, float], sms: int) -> float:
    """A measured curve (a duration, or a contention) at a level, linear between measured ones.

    Args:
        measured: Values by SMs.
        sms: The level [SMs].

    Returns:
        The value.

    Raises:
        ValueError: If the level lies outside what was measured: curves are not extrapolated.

    >>> at_level({60: 1.0, 120: 0.4}, 80)
    0.8
    """
    below = max((k for k in measured if k <= sms), default=None)
    above = min((k for k in measured if k >= sms), default=None)
    if below is None or above is None:
        raise ValueError(
            f"level of {sms} SMs: expected one within the measured {min(measured, default=0)} to "
            f"{max(measured, default=0)} SMs, got one outside. Measure there, or offer other levels."
        )
    if below == above:
        return measured[below]
    share = (sms - below) / (above - below)
    return measured[below] + share * (measured[above] - measured[below])
