"""Algorithm 2: the SM quota of one branch of an overlapping pair.

Coarse steps down from the present level until the pair gets slower, single steps around the best one,
one complete iteration that decides. The order of trials is the paper's, line by line; `NoiseAware`
compares runs that were made one after the other, so that a machine whose speed drifts misleads nobody.

Does not handle: quotas of several pairs at once (`most_promising` names the one to search).

Paper: §4.4, Alg. 2.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rose_opt.measure.levels import QuotaLevel
from rose_opt.measure.protocols import QuotaMeasurer, TrialFailed

COARSE_STEP = 3  # ρ, ours: the ticks of Fig. 15 fit it
ERROR_OF_MEDIAN = (
    1.2533 * 1.4826
)  # of normal noise: from a median deviation, over the root of the count
TIE = 0.01  # ours: levels this close count as equally fast where runs scatter

Step = Literal["start", "coarse", "fine-down", "fine-up"]
"""Part of the search that asks for a trial."""

_FINE: tuple[tuple[int, Step], ...] = ((-1, "fine-down"), (1, "fine-up"))


@dataclass(frozen=True, slots=True)
class NoiseAware:
    """Compare each level with its anchor in turn, by the median of the ratios of neighbouring runs.

    Attributes:
        repeats: Runs of each per comparison [>= 2].
    """

    repeats: int = 4  # ours

    def __post_init__(self) -> None:
        if self.repeats < 2:
            raise ValueError(
                f"NoiseAware: expected repeats >= 2, got {self.repeats}. Leave noise out to measure once."
            )


@dataclass(frozen=True, slots=True)
class QuotaTrial:
    """One level that was measured.

    Attributes:
        level: The level.
        step: Part of the search that asked for it.
        completion_ns: H(k) [ns]; ``None`` if it could not be run. With repeats, its ratio to the level it
            was compared with, times that one's.
        samples_ns: All its samples [ns].
        reference_ns: H of the level it was compared with, at that moment [ns]; ``None`` for the first.
        slower: Whether it ended its direction of the search.
        failed: Why it could not be run; empty if it could.
    """

    level: QuotaLevel
    step: Step
    completion_ns: int | None
    samples_ns: tuple[int, ...]
    reference_ns: int | None
    slower: bool
    failed: str = ""


@dataclass(frozen=True, slots=True)
class QuotaSearchResult:
    """What Algorithm 2 found.

    Attributes:
        level: The level to keep.
        start: The level it began with, q_0.
        best: The level with the least completion time, k*.
        trials: Every level measured, in order.
        reference_iteration_ns: Complete iteration at the level it began with, m_0 [ns].
        iteration_ns: Complete iteration at `best` [ns]; ``None`` if none was needed or possible.
        scatter: Largest standard error of a comparison [fraction]; 0 without repeats.
        reason: Why `level` was kept.
    """

    level: QuotaLevel
    start: QuotaLevel
    best: QuotaLevel
    trials: tuple[QuotaTrial, ...]
    reference_iteration_ns: int
    iteration_ns: int | None
    scatter: float
    reason: str

    @property
    def changed(self) -> bool:
        """Whether another level than the first is kept."""
        return self.level != self.start


def search_quota(
    measurer: QuotaMeasurer,
    levels: Sequence[QuotaLevel],
    reference_iteration_ns: int,
    start: int | None = None,
    coarse_step: int = COARSE_STEP,
    noise: NoiseAware | None = None,
) -> QuotaSearchResult:
    """Find the quota of one branch.

    Args:
        measurer: Runs the pair and complete iterations.
        levels: Levels 1..Q by increasing SMs.
        reference_iteration_ns: Complete iteration at the first level, m_0 [ns].
        start: Number of the first level, k_0; Q by default.
        coarse_step: Levels per coarse step, rho [>= 2].
        noise: Repeat and compare neighbouring runs; the paper's single runs by default.

    Returns:
        The level to keep, with every trial. Of equally good levels it is the largest: the least
        constraint outside the overlap.

    Raises:
        ValueError: If the levels are not 1..Q, or `start` or `coarse_step` is out of range.
    """
    first = len(levels) if start is None else start
    if [level.k for level in levels] != list(range(1, len(levels) + 1)) or not levels:
        raise ValueError(
            f"search_quota: expected levels 1..Q, got {[level.k for level in levels]}. Use quota_levels."
        )
    if not 1 <= first <= len(levels) or coarse_step < 2:
        raise ValueError(
            f"search_quota: expected a start in 1..{len(levels)} and coarse_step >= 2, got {first} and "
            f"{coarse_step}. Start from the present level."
        )
    search = _Search(measurer, levels, noise.repeats if noise else 1)
    search.run(first, coarse_step)
    return search.result(first, reference_iteration_ns)


@dataclass(slots=True)
class _Search:
    """H and the trials so far."""

    measurer: QuotaMeasurer
    levels: Sequence[QuotaLevel]
    repeats: int
    completion: dict[int, int | None] = field(default_factory=dict[int, "int | None"])
    trials: list[QuotaTrial] = field(default_factory=list[QuotaTrial])
    scatter: float = 0.0

    def run(self, first: int, coarse_step: int) -> None:
        """Measure levels in the paper's order."""
        best = first
        if not self._start(first):  # Alg. 2, l. 1-2: H[k0] is measured first
            return
        while best > 1:  # Alg. 2, coarse search: a tie goes on downwards
            k = max(1, best - coarse_step)  # the last step may be shorter
            if self._slower(k, best, "coarse"):
                break
            best = k
        for direction, step in _FINE:  # Alg. 2, fine search
            k = best + direction  # the anchor stays where the coarse search left it
            while 1 <= k <= len(self.levels) and k not in self.completion:
                if self._slower(k, best, step):
                    break
                k += direction

    def _start(self, k: int) -> bool:
        level = self.levels[k - 1]
        try:
            taken = [self._sample(k) for _ in range(self.repeats)]
        except TrialFailed as error:
            self.trials.append(QuotaTrial(level, "start", None, (), None, True, str(error)))
            return False
        found = self.completion[k] = round(statistics.median(taken))
        self.trials.append(QuotaTrial(level, "start", found, tuple(taken), None, False))
        return True

    def _slower(self, k: int, anchor: int, step: Step) -> bool:
        """Measure `k`, and say whether it is slower than the anchor beyond what scatter explains."""
        level = self.levels[k - 1]
        reference = self.completion[anchor]
        assert reference is not None  # an anchor has been run
        self.completion[k] = None
        try:
            taken, beside = self._beside(k, anchor, reference)
        except TrialFailed as error:
            self.trials.append(QuotaTrial(level, step, None, (), reference, True, str(error)))
            return True
        ratio, margin = _ratio(taken, beside)
        self.scatter = max(self.scatter, margin)
        found = self.completion[k] = round(ratio * reference)
        slower = ratio > 1 + margin
        self.trials.append(QuotaTrial(level, step, found, tuple(taken), reference, slower))
        return slower

    def _beside(self, k: int, anchor: int, reference_ns: int) -> tuple[list[int], list[int]]:
        """Runs of a level and of its anchor [ns]; with repeats, in turns that drift cancels out of."""
        if self.repeats == 1:
            return [self._sample(k)], [reference_ns]
        both: dict[int, list[int]] = {k: [], anchor: []}
        for turn in range(self.repeats):
            for each in (k, anchor) if turn % 2 == 0 else (anchor, k):
                both[each].append(self._sample(each))
        return both[k], both[anchor]

    def _sample(self, k: int) -> int:
        return self.measurer.completion_ns(self.levels[k - 1])

    def result(self, first: int, reference_iteration_ns: int) -> QuotaSearchResult:
        """Take the best level, and complete iterations if it is another one than the first."""
        start = self.levels[first - 1]
        measured = {k: taken for k, taken in self.completion.items() if taken is not None}
        if not measured:
            reason = f"{start} could not be run: {self.trials[0].failed}"
            return self._kept(start, start, reference_iteration_ns, None, reason)
        least = min(measured.values()) * (1 + (TIE if self.repeats > 1 else 0))
        best = self.levels[max(k for k, taken in measured.items() if taken <= least) - 1]
        if best == start:  # k* = k0: q0 stays, with no validation run
            reason = f"no level completes the pair sooner than {start}"
            return self._kept(start, start, reference_iteration_ns, None, reason)
        try:
            iteration, reference = self._validated(best, start, reference_iteration_ns)
        except TrialFailed as error:
            reason = f"{best} could not run a complete iteration: {error}"
            return self._kept(start, best, reference_iteration_ns, None, reason)
        told = f"{iteration / 1e6:.1f} ms per iteration at {best}, {reference / 1e6:.1f} at {start}"
        kept = best if iteration < reference else start
        return self._kept(kept, best, reference, iteration, told, start)

    def _validated(self, best: QuotaLevel, start: QuotaLevel, reference_ns: int) -> tuple[int, int]:
        """Complete iterations at both levels [ns]; with repeats, in turn."""
        if self.repeats == 1:
            return self.measurer.iteration_ns(best), reference_ns
        both = [
            (self.measurer.iteration_ns(best), self.measurer.iteration_ns(start))
            for _ in range(self.repeats)
        ]
        reference = round(statistics.median(at_start for _, at_start in both))
        ratio, _ = _ratio(*zip(*both, strict=True))
        return round(reference * ratio), reference

    def _kept(
        self,
        level: QuotaLevel,
        best: QuotaLevel,
        reference_ns: int,
        iteration_ns: int | None,
        reason: str,
        start: QuotaLevel | None = None,
    ) -> QuotaSearchResult:
        return QuotaSearchResult(
            level,
            self.trials[0].level if start is None else start,
            best,
            tuple(self.trials),
            reference_ns,
            iteration_ns,
            self.scatter,
            reason,
        )


def _ratio(taken: Sequence[int], beside: Sequence[int]) -> tuple[float, float]:
    """Median ratio of neighbouring runs, and its standard error from their median deviation [fractions]."""
    ratios = [a / max(b, 1) for a, b in zip(taken, beside, strict=True)]
    middle = statistics.median(ratios)
    deviation = statistics.median(abs(ratio - middle) for ratio in ratios)
    return middle, ERROR_OF_MEDIAN * deviation / math.sqrt(len(ratios))
