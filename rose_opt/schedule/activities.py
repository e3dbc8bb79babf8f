"""The iteration level: activities with precedence, each run once.

An iteration is a list of activities in native order (epochs of reset, interact, value, learn).
The serial schedule runs them in that order, one at a time; it is always feasible and always a
candidate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rose_opt.schedule.capacity import Capacity, Mode
from rose_opt.schedule.model import Kappa, usable_modes


@dataclass(frozen=True, slots=True)
class Predecessor:
    """An activity that has to end `lag_ns` before another starts [ns, >= 0]."""

    name: str
    lag_ns: int = 0


@dataclass(frozen=True, slots=True)
class Activity:
    """One activity of the iteration.

    Args:
        name: Unique name, such as "learn#3".
        engines: The workers that it occupies; a worker runs one activity at a time.
        modes: Ways of running it; the schedule picks one.
        predecessors: What it waits for; all of them precede it in native order.
        kind: What kappa and shared modes know it by, such as "learn"; its name if empty.
    """

    name: str
    engines: tuple[str, ...]
    modes: tuple[Mode, ...]
    predecessors: tuple[Predecessor, ...] = ()
    kind: str = ""

    @property
    def label(self) -> str:
        """Its kind, or its name where it has none."""
        return self.kind or self.name


@dataclass(frozen=True, slots=True)
class FlatProblem:
    """The activities of one iteration, in native order.

    Args:
        activities: The activities; each comes after its predecessors.
        capacity: What the machine has.
        kappa: Contention by the activities' kinds, read in thousandths, rounded up.
        shared_modes: Whether all activities of one kind run in the same mode.

    Raises:
        ValueError: If there is no activity, a name repeats, a predecessor does not come earlier,
            an activity fits the machine in no mode or modes cannot be shared.
    """

    activities: tuple[Activity, ...]
    capacity: Capacity = field(default_factory=Capacity)
    kappa: Kappa = field(default_factory=dict[tuple[str, str], float])
    shared_modes: bool = True

    def __post_init__(self) -> None:
        if not self.activities:
            raise ValueError(
                "FlatProblem: expected at least one activity, got none. Plan only iterations "
                "that ran."
            )
        seen: set[str] = set()
        for activity in self.activities:
            for predecessor in activity.predecessors:
                if predecessor.name not in seen or predecessor.lag_ns < 0:
                    raise ValueError(
                        f"{activity.name}: expected predecessors earlier in native order with a "
                        f"lag of 0 or more, got {predecessor}. List the activities in native "
                        "order."
                    )
            if activity.name in seen:
                raise ValueError(
                    f"FlatProblem: expected every activity once, got {activity.name} again. "
                    "Number the activities of each epoch apart."
                )
            seen.add(activity.name)
        serial_flat_modes(self)


@dataclass(frozen=True, slots=True)
class PlacedActivity:
    """An activity in time.

    Args:
        name: The activity.
        start_ns: Start, from the start of the iteration [ns].
        duration_ns: Duration, contention included [ns].
        mode: Index into its modes.
    """

    name: str
    start_ns: int
    duration_ns: int
    mode: int

    @property
    def end_ns(self) -> int:
        """End [ns]."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class FlatSchedule:
    """One iteration in time.

    Args:
        placed: Every activity, in native order.
        makespan_ns: End of the last one [ns].
        lower_bound_ns: No schedule of the problem ends earlier [ns].
        status: "optimal", "feasible", or "serial" if nothing beats the native order.
        seconds: Wall time of the search [s]; not part of equality.
    """

    placed: tuple[PlacedActivity, ...]
    makespan_ns: int
    lower_bound_ns: int
    status: str
    seconds: float = field(default=0.0, compare=False)

    @property
    def gap(self) -> float:
        """Share of the makespan above the lower bound [fraction]."""
        return 1.0 - self.lower_bound_ns / self.makespan_ns


def serial_flat_modes(problem: FlatProblem) -> dict[str, int]:
    """Return each activity's fastest mode when nothing else runs.

    Raises:
        ValueError: If some kind has no mode that fits the machine in all of its activities.
    """
    kinds: defaultdict[str, list[Activity]] = defaultdict(list)
    for activity in problem.activities:
        kinds[activity.label if problem.shared_modes else activity.name].append(activity)
    chosen: dict[str, int] = {}
    for kind, members in kinds.items():
        usable = [set(usable_modes(a.name, a.modes, problem.capacity)) for a in members]
        common = sorted(usable[0].intersection(*usable[1:]))
        if not common or len({len(a.modes) for a in members}) > 1:
            raise ValueError(
                f"FlatProblem: expected the same modes in every {kind!r}, one of which fits the "
                "machine, got others. List them alike, or set shared_modes=False."
            )
        totals = {index: sum(a.modes[index].duration_ns for a in members) for index in common}
        chosen.update(dict.fromkeys((a.name for a in members), min(common, key=totals.__getitem__)))
    return chosen


def serial_flat(problem: FlatProblem) -> tuple[PlacedActivity, ...]:
    """Return the native order in time: one activity at a time, lags kept."""
    modes = serial_flat_modes(problem)
    ends: dict[str, int] = {}
    placed: list[PlacedActivity] = []
    now = 0
    for activity in problem.activities:
        start = max([now, *(ends[p.name] + p.lag_ns for p in activity.predecessors)])
        duration = activity.modes[modes[activity.name]].duration_ns
        placed.append(PlacedActivity(activity.name, start, duration, modes[activity.name]))
        now = ends[activity.name] = start + duration
    return tuple(placed)


def makespan_ns(placed: Sequence[PlacedActivity]) -> int:
    """Return the end of the last of `placed` [ns]."""
    return max(activity.end_ns for activity in placed)


def ordered_pairs(problem: FlatProblem) -> set[tuple[str, str]]:
    """Return every pair (earlier, later) that precedence orders, directly or through others."""
    before: dict[str, set[str]] = {}
    for activity in problem.activities:
        before[activity.name] = set()
        for predecessor in activity.predecessors:
            before[activity.name] |= {predecessor.name} | before[predecessor.name]
    return {(earlier, later) for later, names in before.items() for earlier in names}
