"""Whole ticks of time for the solver.

Durations are rounded up, so a schedule in ticks is a schedule in nanoseconds and no answer
falls below a lower bound. Where the durations share a large divisor the tick is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rose_opt.schedule.capacity import Limits, Units, within
from rose_opt.schedule.conflicts import entangled_pairs, least_units, maximal_cliques, most_units
from rose_opt.schedule.model import Kappa, LoopProblem, PhaseId, usable_modes

HORIZON_TICKS = 10_000  # ours: propagation creeps over larger domains; rounds by at most 1e-4
CONTENDED_TICKS = 1_000  # ours: a duration that contention lengthens is rounded by 0.1 %
KAPPA_SCALE = 1_000
"""The solver's kappa is in thousandths."""


def choose_tick_ns(durations_ns: Iterable[int], horizon_ns: int, contended: bool = False) -> int:
    """Return the length of a tick [ns].

    Args:
        durations_ns: Every duration and lag of the problem [ns].
        horizon_ns: The longest time that the solver has to represent [ns].
        contended: Whether durations grow with overlap; ticks then divide the horizon at least
            `CONTENDED_TICKS` times.

    Returns:
        The greatest common divisor where the horizon then fits `HORIZON_TICKS`, else the
        smallest tick with which it does.

    >>> choose_tick_ns([720_000_000, 12_000_000], 1_000_000_000)
    12000000
    >>> choose_tick_ns([720_000_001, 12_000_000], 1_000_000_000)
    100000
    >>> choose_tick_ns([100, 100], 200, contended=True)
    1
    """
    exact = math.gcd(*durations_ns)
    if exact * HORIZON_TICKS < horizon_ns:
        return -(-horizon_ns // HORIZON_TICKS)
    parts = -(-exact * CONTENDED_TICKS // horizon_ns) if contended else 1
    even = next((k for k in range(parts, 2 * parts) if exact % k == 0), parts)
    return max(1, exact // even)


def to_ticks(duration_ns: int, tick_ns: int) -> int:
    """Return `duration_ns` in ticks, rounded up."""
    return -(-duration_ns // tick_ns)


def scaled_kappa(kappa: Kappa) -> dict[tuple[str, str], int]:
    """Return kappa in thousandths, rounded up, without its zeros.

    >>> scaled_kappa({("S", "V"): 0.8301, ("V", "S"): 0.0})
    {('S', 'V'): 831}
    """
    return {pair: math.ceil(k * KAPPA_SCALE - 1e-9) for pair, k in kappa.items() if k > 0}


@dataclass(frozen=True, slots=True)
class TickMode:
    """A usable mode in ticks; `index` counts in the phase's own modes."""

    index: int
    ticks: int
    units: Units


@dataclass(frozen=True, slots=True)
class TickPhase:
    """A phase in ticks."""

    id: PhaseId
    engine: str
    modes: tuple[TickMode, ...]


@dataclass(frozen=True, slots=True)
class TickLoop:
    """A `LoopProblem` in ticks, with what the solver needs to know about conflicts.

    Args:
        chains: Per group, its phases in order.
        limits: Capacity in units.
        kappa: Contention in thousandths, rounded up, by the phases' names.
        shared_modes: See `LoopProblem`.
        cliques: Maximal sets of phases that can never run together.
        cumulative: Whether capacity forbids more than those cliques.
    """

    chains: tuple[tuple[TickPhase, ...], ...]
    limits: Limits
    kappa: Mapping[tuple[str, str], int]
    shared_modes: bool
    cliques: tuple[tuple[PhaseId, ...], ...]
    cumulative: bool

    @property
    def phases(self) -> list[TickPhase]:
        """All phases, group by group."""
        return [phase for chain in self.chains for phase in chain]


@dataclass(frozen=True, slots=True)
class TickPlacement:
    """One solution in ticks: period, span and (start, duration, mode index) per phase."""

    period: int
    span: int
    placed: Mapping[PhaseId, tuple[int, int, int]]


def tick_loop(problem: LoopProblem, tick_ns: int) -> TickLoop:
    """Return `problem` in ticks of `tick_ns`."""
    chains = tuple(
        tuple(
            TickPhase(
                phase.id,
                phase.engine,
                tuple(
                    TickMode(
                        i, to_ticks(phase.modes[i].duration_ns, tick_ns), phase.modes[i].units()
                    )
                    for i in usable_modes(str(phase.id), phase.modes, problem.capacity)
                ),
            )
            for phase in chain
        )
        for chain in problem.chains
    )
    phases = [phase for chain in chains for phase in chain]
    limits = problem.capacity.units()
    least = [least_units([mode.units for mode in phase.modes]) for phase in phases]
    most = [most_units([mode.units for mode in phase.modes]) for phase in phases]

    def conflict(a: int, b: int) -> bool:
        same_engine = phases[a].engine == phases[b].engine
        same_group = phases[a].id.group == phases[b].id.group
        return same_engine or same_group or not within([least[a], least[b]], limits)

    return TickLoop(
        chains=chains,
        limits=limits,
        kappa=scaled_kappa(problem.kappa),
        shared_modes=problem.shared_modes,
        cliques=tuple(
            tuple(phases[i].id for i in clique)
            for clique in maximal_cliques(len(phases), conflict)
            if len(clique) > 1
        ),
        cumulative=bool(entangled_pairs(most, limits, conflict)),
    )


def settled(loop: TickLoop, found: TickPlacement) -> TickPlacement:
    """Shorten every duration to what its overlaps cost; the solver only keeps them long enough.

    Shorter phases overlap less, so the durations fall until they fit the overlaps they leave.
    """
    if not loop.kappa:
        return found
    placed = dict(found.placed)
    while True:
        shorter = {
            phase.id: (placed[phase.id][0], _needed(loop, found.period, placed, phase), mode)
            for phase in loop.phases
            for mode in (placed[phase.id][2],)
        }
        if shorter == placed:
            return TickPlacement(found.period, max(s + n for s, n, _ in placed.values()), placed)
        placed = shorter


def _needed(
    loop: TickLoop,
    period: int,
    placed: Mapping[PhaseId, tuple[int, int, int]],
    phase: TickPhase,
) -> int:
    """Return the duration of `phase` with its present overlaps, at most its present one [ticks]."""
    start, length, chosen = placed[phase.id]
    lost = 0
    for other in loop.phases:
        weight = loop.kappa.get((phase.id.name, other.id.name), 0)
        if weight and other.id.group != phase.id.group and other.engine != phase.engine:
            begin, extent, _ = placed[other.id]
            lost += weight * overlap_ticks((start, length), (begin, extent), period)
    solo = next(mode.ticks for mode in phase.modes if mode.index == chosen)
    return min(length, solo + -(-lost // KAPPA_SCALE))


def overlap_ticks(a: tuple[int, int], b: tuple[int, int], period: int) -> int:
    """Return how long two (start, length) intervals overlap if both repeat each `period`.

    >>> overlap_ticks((0, 4), (8, 5), 10)
    3
    """
    ahead = (b[0] - a[0]) % period
    return max(0, min(a[1] - ahead, b[1])) + max(0, min(b[1] + ahead - period, a[1]))
