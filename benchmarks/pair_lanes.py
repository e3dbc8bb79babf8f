"""Ways to run V of one group beside D of another, and what is measured of them.

A lane set runs one pair at a level of V; D is never limited. `LiveMeasurer` puts it behind the protocol of
the quota search, `sweep` goes through all levels in alternating order, beside serial runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.pair_worker import Compare, PairWorker, Run, WorkerGone
from rose_opt.measure import NoiseAware, QuotaLevel, QuotaSearchResult, TrialFailed, search_quota

LEAD_NS = 3_000_000  # until both processes have read what they are told
RESERVE_S = 30.0  # kept for the sweep over percentages
ITERATION_SLOTS = 4  # a complete iteration here: two steps of two groups


@dataclass(frozen=True, slots=True)
class PairTime:
    """One run of a pair.

    Attributes:
        pair_ns: Until both are done [ns].
        ends_ns: Until each was [ns]; V's is an upper bound where one thread waits for both.
    """

    pair_ns: int
    ends_ns: Mapping[str, int]


class Lanes(Protocol):
    """A way to run the pair."""

    def pair(self, level: QuotaLevel) -> PairTime:
        """Run V at a level, and D beside it."""
        ...

    def compare(self, level: QuotaLevel) -> dict[str, float]:
        """Largest difference of the last outputs from those of a serial run; 0.0 for equal bits."""
        ...


def together(runs: Sequence[tuple[PairWorker, Run]], start_ns: int) -> PairTime:
    """Let processes start at the same moment, and wait for all.

    Raises:
        WorkerGone: If one failed; what the others answered is dropped, so that they can go on.
    """
    answers: list[tuple[int, dict[str, int]]] = []
    failed: WorkerGone | None = None
    for worker, run in runs:
        worker.send(run)
    for worker, _ in runs:
        try:
            answers.append(worker.receive())
        except WorkerGone as error:
            failed = error
    if failed is not None:
        raise failed
    ends = {name: end - start_ns for _, each in answers for name, end in each.items()}
    return PairTime(max(end for end, _ in answers) - start_ns, ends)


def soon() -> int:
    """A moment that processes can be told in time, on the monotonic clock [ns]."""
    return time.monotonic_ns() + LEAD_NS


class OneProcess:
    """One process, one thread: V on a partition, then D at once on a stream of the whole device.

    Args:
        worker: The process.
        urgent: Whether D's blocks go before others that wait.
    """

    def __init__(self, worker: PairWorker, urgent: bool = False) -> None:
        self.worker = worker
        self.urgent = urgent

    def pair(self, level: QuotaLevel) -> PairTime:
        """Run the pair."""
        start = soon()
        return together([(self.worker, Run("pair", start, level, self.urgent))], start)

    def compare(self, level: QuotaLevel) -> dict[str, float]:
        """Compare both."""
        return self.worker.ask(Compare())


class TwoProcesses:
    """V in one MPS client, D in another.

    Args:
        head: The process of D.
        backbone: The process of V for a level.
        partitioned: Whether V's process limits itself; else its percentage does.
        urgent: Whether D's blocks go before others that wait.
    """

    def __init__(
        self,
        head: PairWorker,
        backbone: Callable[[QuotaLevel], PairWorker],
        partitioned: bool,
        urgent: bool = False,
    ) -> None:
        self.head = head
        self.backbone = backbone
        self.partitioned = partitioned
        self.urgent = urgent

    def pair(self, level: QuotaLevel) -> PairTime:
        """Run the pair."""
        backbone = self.backbone(level)
        start = soon()
        limited = Run("V", start, level if self.partitioned else None)
        beside = Run("D", start, urgent=self.urgent)
        return together([(backbone, limited), (self.head, beside)], start)

    def compare(self, level: QuotaLevel) -> dict[str, float]:
        """Compare each in its process."""
        return self.backbone(level).ask(Compare()) | self.head.ask(Compare())


class Started:
    """A process of V for each level, started when it is first asked for: what a percentage costs.

    All are kept, so that a level and the one it is compared with can take turns.

    Args:
        start: Starts a process of a level.
        left_s: Time left [s].
    """

    def __init__(
        self, start: Callable[[QuotaLevel], PairWorker], left_s: Callable[[], float]
    ) -> None:
        self._start = start
        self._left_s = left_s
        self._workers: dict[QuotaLevel, PairWorker] = {}

    def __call__(self, level: QuotaLevel) -> PairWorker:
        """The process at a level.

        Raises:
            WorkerGone: If there is no time for another one.
        """
        self.begin([level])
        return self._workers[level].ready()

    def begin(self, levels: Sequence[QuotaLevel]) -> None:
        """Start the processes of levels that have none, all at once.

        Raises:
            WorkerGone: If there is no time for another one.
        """
        for level in levels:
            if level not in self._workers:
                if self._left_s() < RESERVE_S:
                    raise WorkerGone(f"A process at {level}: expected time to start it, got none.")
                self._workers[level] = self._start(level)

    @property
    def count(self) -> int:
        """Processes so far."""
        return len(self._workers)

    def stop(self) -> None:
        """End all."""
        while self._workers:
            self._workers.popitem()[1].stop()


class LiveMeasurer:
    """What Algorithm 2 asks for, from live pairs.

    Args:
        lanes: Runs a pair.
        repeats: Pairs whose median is one H(k).
        say: Told what was measured.
    """

    def __init__(self, lanes: Lanes, repeats: int, say: Callable[[str], None]) -> None:
        self.lanes = lanes
        self.repeats = repeats
        self.say = say

    def completion_ns(self, level: QuotaLevel) -> int:
        """H(k) [ns].

        Raises:
            TrialFailed: If a process failed.
        """
        try:
            taken = [self.lanes.pair(level).pair_ns for _ in range(self.repeats)]
        except WorkerGone as error:
            raise TrialFailed(str(error)) from error
        found = round(statistics.median(taken))
        self.say(f"  trial at {level}: {found / 1e6:.1f} ms")
        return found

    def iteration_ns(self, level: QuotaLevel) -> int:
        """Two steps of two groups [ns].

        Raises:
            TrialFailed: If a process failed.
        """
        try:
            return sum(self.lanes.pair(level).pair_ns for _ in range(ITERATION_SLOTS))
        except WorkerGone as error:
            raise TrialFailed(str(error)) from error


def search(
    lanes: Lanes,
    levels: Sequence[QuotaLevel],
    repeats: int,
    noise: NoiseAware,
    say: Callable[[str], None],
) -> tuple[QuotaSearchResult, float]:
    """Algorithm 2, live; its result and how long it took [s]."""
    measurer = LiveMeasurer(lanes, repeats, say)
    lanes.pair(levels[-1])  # the first run of a process is slower
    reference = measurer.iteration_ns(levels[-1])  # m_0: what runs today, before any search
    begin = time.monotonic()
    result = search_quota(measurer, levels, reference, noise=noise)
    return result, time.monotonic() - begin


@dataclass(slots=True)
class SweepPoint:
    """What was measured at one level.

    Attributes:
        level: The level.
        times: Runs of the pair.
        difference: Largest difference of outputs from a serial run's.
        failed: Why it could not be run.
    """

    level: QuotaLevel
    times: list[PairTime] = field(default_factory=list[PairTime])
    difference: dict[str, float] = field(default_factory=dict[str, float])
    failed: str = ""

    @property
    def pair_ms(self) -> float:
        """Median [ms]."""
        return statistics.median(each.pair_ns for each in self.times) / 1e6

    def beside(self, other: SweepPoint) -> float:
        """Median ratio to another level's run of the same round."""
        pairs = zip(self.times, other.times, strict=False)  # the last round may be incomplete
        return statistics.median(mine.pair_ns / theirs.pair_ns for mine, theirs in pairs)

    def told(self) -> dict[str, Any]:
        """For the result."""
        found: dict[str, Any] = {"sms": self.level.sms, "percent": self.level.percent}
        if self.failed or not self.times:
            return found | {"failed": self.failed or "no time left"}
        ends = {
            f"{name.lower()}_ms": round(
                statistics.median(each.ends_ns[name] for each in self.times) / 1e6, 1
            )
            for name in ("V", "D")
        }
        return (
            found
            | {"pair_ms": round(self.pair_ms, 2)}
            | ends
            | {
                "samples_ms": [round(each.pair_ns / 1e6, 1) for each in self.times],
                "max_abs_difference": self.difference,
            }
        )


def sweep(
    lanes: Lanes,
    levels: Sequence[QuotaLevel],
    rounds: int,
    beside: Callable[[], object],
    left_s: Callable[[], float],
) -> list[SweepPoint]:
    """Run the pair at every level, up and down in turn.

    Args:
        lanes: Runs a pair.
        levels: Levels to measure.
        rounds: Runs per level.
        beside: Run between rounds: a serial run.
        left_s: Time left for it [s]; rounds end when it is gone.

    Returns:
        A point per level, in order.
    """
    points = [SweepPoint(level) for level in levels]
    for point in points:
        try:
            lanes.pair(point.level)
            point.difference = lanes.compare(point.level)
        except WorkerGone as error:
            point.failed = str(error)
    for turn in range(rounds):
        beside()
        for point in points if turn % 2 == 0 else reversed(points):
            if left_s() < 0 or point.failed:
                continue
            try:
                point.times.append(lanes.pair(point.level))
            except WorkerGone as error:
                point.failed = str(error)
    return points
