"""Problems and schedules of one training loop, free of any solver.

A `LoopProblem` holds one chain of phases per group; the last phase of a step feeds the first
phase of the group's next step. A `ModuloSchedule` repeats every `period_ns`: phase p of step n
starts at `start_ns + n * period_ns`.

Does not handle: recurrences over more than one step, phases that belong to no group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rose_opt.schedule.capacity import Capacity, Mode, within

Kappa = Mapping[tuple[str, str], float]
"""Progress that phase v loses per second beside phase w, by (v, w) [fraction, >= 0]."""

LEAST_RATE = 0.02
"""Nothing stands still: contention that would stop a phase lets it creep. # ours"""


class PhaseId(NamedTuple):
    """One phase of one group."""

    group: int
    name: str

    def __str__(self) -> str:
        return f"{self.name}#{self.group}"


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of one step that runs on one worker without pause.

    Args:
        name: Name of the phase, the same in every group.
        engine: The worker that runs it; a worker runs one phase at a time.
        modes: Ways of running it; the schedule picks one.
        group: Group of the split loop that it belongs to [>= 0].
    """

    name: str
    engine: str
    modes: tuple[Mode, ...]
    group: int = 0

    def __post_init__(self) -> None:
        if not self.modes:
            raise ValueError(
                f"Phase({self.id}): expected at least one mode, got none. "
                "Give the phase's measured duration as its only mode."
            )

    @property
    def id(self) -> PhaseId:
        """Identity within the problem."""
        return PhaseId(self.group, self.name)


@dataclass(frozen=True, slots=True)
class LoopProblem:
    """One loop to be overlapped with itself, across its groups.

    Args:
        chains: Per group, the phases of one step in order.
        count: Steps of the loop [>= 1].
        capacity: What the machine has.
        kappa: Contention; phases of different groups that co-run slow each other by it.
        shared_modes: Whether a phase runs in the same mode in all groups (thread counts belong
            to a node, so this keeps its results the same whichever group runs it).

    Raises:
        ValueError: If a chain is empty or mixes groups, a phase occurs twice, a phase fits the
            machine in no mode, a kappa is negative or modes cannot be shared.
    """

    chains: tuple[tuple[Phase, ...], ...]
    count: int = 1
    capacity: Capacity = field(default_factory=Capacity)
    kappa: Kappa = field(default_factory=dict[tuple[str, str], float])
    shared_modes: bool = True

    def __post_init__(self) -> None:
        if self.count < 1 or not self.chains or not all(self.chains):
            raise ValueError(
                "LoopProblem: expected a count of at least 1 and one non-empty chain per group, "
                f"got count {self.count} and {[len(chain) for chain in self.chains]} phases. "
                "Plan only loops that ran."
            )
        if any(len({phase.group for phase in chain}) > 1 for chain in self.chains):
            raise ValueError(
                "LoopProblem: expected one group per chain, got a chain of several. "
                "Give every phase of a chain the same group."
            )
        ids = [phase.id for phase in self.phases]
        for repeated in sorted({i for i in ids if ids.count(i) > 1}):
            raise ValueError(
                f"LoopProblem: expected every phase once, got {repeated} {ids.count(repeated)} "
                "times. Number the groups apart and name the phases of a step apart."
            )
        for pair, value in self.kappa.items():
            if value < 0:
                raise ValueError(
                    f"LoopProblem: expected kappa >= 0, got {value} for {pair}. "
                    "Fit it with fit_contention, which never returns a negative value."
                )
        for phase in self.phases:
            usable_modes(str(phase.id), phase.modes, self.capacity)
        if self.shared_modes:
            for phase in self.phases:
                other = next(p for p in self.phases if p.name == phase.name)
                if len(other.modes) != len(phase.modes):
                    raise ValueError(
                        f"LoopProblem: expected as many modes of {phase.id} as of {other.id}, got "
                        f"{len(phase.modes)} and {len(other.modes)}. List the same modes in every "
                        "group, or set shared_modes=False."
                    )

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases, group by group in chain order."""
        return tuple(phase for chain in self.chains for phase in chain)

    def phase(self, key: PhaseId) -> Phase:
        """Return the phase `key`."""
        return next(phase for phase in self.phases if phase.id == key)


@dataclass(frozen=True, slots=True)
class Placed:
    """A phase in the schedule of step 0.

    Args:
        id: The phase.
        engine: The worker that runs it.
        start_ns: Start in step 0, from the start of the schedule [ns].
        duration_ns: Duration, contention included [ns].
        mode: Index into the phase's modes.
    """

    id: PhaseId
    engine: str
    start_ns: int
    duration_ns: int
    mode: int

    @property
    def end_ns(self) -> int:
        """End in step 0 [ns]."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class ModuloSchedule:
    """A steady state of the loop: every phase repeats each period.

    Args:
        period_ns: Time from one step to the next [ns].
        span_ns: Time from the first start to the last end of one step of all groups [ns].
        placed: Every phase in step 0.
        lower_bound_ns: No schedule of any shape takes less per step [ns] (`bounds`).
        proven_ns: No schedule of this periodic shape has a shorter period [ns].
        status: "optimal" if the period is proven, "feasible" if a limit ended the search, "serial"
            if nothing better than one group after the other was found.
        seconds: Wall time of the search [s]; not part of equality.
    """

    period_ns: int
    span_ns: int
    placed: tuple[Placed, ...]
    lower_bound_ns: int
    proven_ns: int
    status: str
    seconds: float = field(default=0.0, compare=False)

    @property
    def gap(self) -> float:
        """Share of the period above the lower bound [fraction]."""
        return 1.0 - self.lower_bound_ns / self.period_ns

    @property
    def by_id(self) -> dict[PhaseId, Placed]:
        """The placed phases by their ids."""
        return {placed.id: placed for placed in self.placed}

    def stage(self, key: PhaseId) -> int:
        """Return how many periods after the start of the schedule phase `key` starts."""
        return self.by_id[key].start_ns // self.period_ns

    def makespan_ns(self, steps: int) -> int:
        """Return the duration of `steps` steps, filling and draining included [ns]."""
        return (steps - 1) * self.period_ns + self.span_ns


def usable_modes(subject: str, modes: Iterable[Mode], capacity: Capacity) -> list[int]:
    """Return the indices of the modes that the machine can run at all.

    Raises:
        ValueError: If there is none.
    """
    limits = capacity.units()
    usable = [index for index, mode in enumerate(modes) if within([mode.units()], limits)]
    if not usable:
        raise ValueError(
            f"{subject}: expected a mode within {capacity}, got none. "
            "Add a mode that asks for less, or keep the native order."
        )
    return usable


def serial_modes(problem: LoopProblem) -> dict[PhaseId, int]:
    """Return each phase's fastest mode when nothing else runs.

    Raises:
        ValueError: If no shared mode of a phase fits the machine in every group.
    """
    chosen: dict[PhaseId, int] = {}
    for phase in problem.phases:
        tied = [phase]
        if problem.shared_modes:
            tied = [p for p in problem.phases if p.name == phase.name]
        usable = [set(usable_modes(str(p.id), p.modes, problem.capacity)) for p in tied]
        common = sorted(usable[0].intersection(*usable[1:]))
        if not common:
            raise ValueError(
                f"LoopProblem: expected a mode of {phase.name!r} that every group can run, got "
                "none. Add one, or set shared_modes=False."
            )
        totals = {index: sum(p.modes[index].duration_ns for p in tied) for index in common}
        chosen[phase.id] = min(common, key=totals.__getitem__)
    return chosen


def serial_ns(problem: LoopProblem) -> int:
    """Return the duration of one step with nothing overlapped, in the fastest modes [ns].

    Called with the unsplit loop (one group) this is the native step, the candidate that every
    plan has to beat.
    """
    modes = serial_modes(problem)
    return sum(phase.modes[modes[phase.id]].duration_ns for phase in problem.phases)
