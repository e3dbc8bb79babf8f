"""Two branches on one GPU under a quota: what they lose to each other at every level.

Contention at a level comes from one run of both side by side; between such anchors solo time and kappa
are interpolated, beyond them kappa stays and the limited branch slows down in proportion to its SMs.
`SimulatedPair` answers what Algorithm 2 asks.

Does not handle: quotas on both branches at once.

Paper: Table 1, Fig. 4 (time slicing), Fig. 10 (quota sweep).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from rose_opt.measure import QuotaLevel, TrialFailed
from rose_opt.simulator.engine import Task, simulate
from rose_opt.simulator.rates import Contention


@dataclass(frozen=True, slots=True)
class PairPoint:
    """Both branches at one share of the device for the limited one.

    Attributes:
        share: SMs of the limited branch over those of the device [fraction].
        limited_ns: Its solo duration at that share [ns].
        kappa_limited: Progress that it loses per second beside the other [fraction].
        kappa_other: Progress that the other loses [fraction].
    """

    share: float
    limited_ns: float
    kappa_limited: float
    kappa_other: float


def side_by_side(
    share: float,
    limited_ns: float,
    other_ns: float,
    observed_limited_ns: float,
    observed_other_ns: float,
) -> PairPoint:
    """Contention from one run in which both started together.

    Args:
        share: Share of the limited branch [fraction].
        limited_ns: Its solo duration at that share [ns].
        other_ns: Solo duration of the other [ns].
        observed_limited_ns: Its duration beside the other [ns].
        observed_other_ns: Duration of the other beside it [ns].

    Returns:
        The anchor; both ran beside each other until the first of them ended.
    """
    overlap = min(observed_limited_ns, observed_other_ns)
    return PairPoint(
        share,
        limited_ns,
        max(observed_limited_ns - limited_ns, 0.0) / overlap,
        max(observed_other_ns - other_ns, 0.0) / overlap,
    )


TIME_SLICED = 0.5
"""Loss of either branch where two processes take turns on the device (no MPS), 1 - share. Fig. 4"""


@dataclass(frozen=True, slots=True)
class PairCurve:
    """A pair over all quotas of its limited branch.

    Attributes:
        other_ns: Solo duration of the branch without a quota [ns].
        points: Anchors by increasing share, at least one.
    """

    other_ns: float
    points: tuple[PairPoint, ...]

    def __post_init__(self) -> None:
        shares = [point.share for point in self.points]
        if not shares or any(a >= b for a, b in itertools.pairwise(shares)) or shares[0] <= 0:
            raise ValueError(
                f"PairCurve: expected anchors by increasing share above 0, got {shares}. Sort them."
            )

    def at(self, share: float) -> PairPoint:
        """The pair at a share of the device [fraction > 0]."""
        low, high = self.points[0], self.points[-1]
        if share <= low.share:
            slower = low.limited_ns * low.share / share
            return PairPoint(share, slower, low.kappa_limited, low.kappa_other)
        if share >= high.share:
            return PairPoint(share, high.limited_ns, high.kappa_limited, high.kappa_other)
        at = next(i for i, point in enumerate(self.points) if point.share >= share)
        below, above = self.points[at - 1], self.points[at]
        weight = (share - below.share) / (above.share - below.share)

        def between(a: float, b: float) -> float:
            return a + weight * (b - a)

        return PairPoint(
            share,
            between(below.limited_ns, above.limited_ns),
            between(below.kappa_limited, above.kappa_limited),
            between(below.kappa_other, above.kappa_other),
        )

    def run(self, share: float) -> tuple[float, float]:
        """Durations of the limited and of the other branch, started together [ns]."""
        point = self.at(share)
        return together(point.limited_ns, self.other_ns, point.kappa_limited, point.kappa_other)

    def completion_ns(self, share: float) -> float:
        """Time until both have completed [ns]."""
        return max(self.run(share))


def together(
    limited_ns: float, other_ns: float, kappa_limited: float, kappa_other: float
) -> tuple[float, float]:
    """Durations of two branches that start together [ns].

    >>> together(2.0, 5.0, 0.0, 0.5)
    (2.0, 6.0)
    """
    tasks = (Task("limited", ("a",), limited_ns), Task("other", ("b",), other_ns))
    kappa = {("limited", "other"): kappa_limited, ("other", "limited"): kappa_other}
    first, second = simulate(tasks, rates=Contention(kappa)).end_ns
    return first, second


@dataclass(slots=True)
class SimulatedPair:
    """Implements `rose_opt.measure.QuotaMeasurer`.

    Attributes:
        curve: The pair.
        device_sms: SMs of the device.
        rest_ns: What an iteration takes besides the pair [ns].
        noise: Scatter of one run, standard deviation over mean [fraction].
        smallest_sms: SMs below which the limited process does not start.
        source: Source of the scatter.
        runs: Trials so far.
    """

    curve: PairCurve
    device_sms: int
    rest_ns: float = 0.0
    noise: float = 0.0
    smallest_sms: int = 0
    source: random.Random = field(default_factory=lambda: random.Random(0))
    runs: int = 0

    def completion_ns(self, level: QuotaLevel) -> int:
        """H(k); raises `TrialFailed` below the smallest number of SMs."""
        self.runs += 1
        return round(self._exact(level) * self._scatter())

    def iteration_ns(self, level: QuotaLevel) -> int:
        """One iteration; raises `TrialFailed` below the smallest number of SMs."""
        return round((self._exact(level) + self.rest_ns) * self._scatter())

    def sweep(self, levels: Sequence[QuotaLevel]) -> dict[int, float]:
        """Completion time of every level without scatter, by number [ns]."""
        return {level.k: self._exact(level) for level in levels}

    def _exact(self, level: QuotaLevel) -> float:
        if level.sms < self.smallest_sms:
            raise TrialFailed(
                f"{level}: expected at least {self.smallest_sms} SMs, got fewer. Use a larger level."
            )
        return self.curve.completion_ns(level.sms / self.device_sms)

    def _scatter(self) -> float:
        return max(self.source.gauss(1.0, self.noise), 0.1) if self.noise else 1.0
