"""Algorithm 2 beyond the paper's figures: under scatter, and on a pair measured by us."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.paper_inputs import DEVICE_SMS, pair
from rose_opt.measure import NoiseAware, QuotaLevel, expected_levels, search_quota
from rose_opt.simulator.pair import SimulatedPair

MS = 1e6


@dataclass(frozen=True, slots=True)
class NoiseStudy:
    """Searches on the pair of Fig. 10 whose runs scatter.

    Attributes:
        scatter: Standard deviation of one run over its mean [fraction].
        repeats: Runs per comparison; 1 for the paper's algorithm.
        close: Share of searches that end within 3 % of the sweep's best [fraction].
        runs: Mean number of runs per search.
    """

    scatter: float
    repeats: int
    close: float
    runs: float


def noise_studies(searches: int = 100) -> Iterator[NoiseStudy]:
    """Single runs beside repeated ones, at three scatters."""
    levels = expected_levels(DEVICE_SMS)
    for scatter, repeats in itertools.product((0.005, 0.02, 0.04), (1, 3, 5)):
        close = runs = 0
        for seed in range(searches):
            machine = SimulatedPair(pair(), DEVICE_SMS, noise=scatter, source=random.Random(seed))
            noise = NoiseAware(repeats) if repeats > 1 else None
            found = search_quota(machine, levels, 10**13, coarse_step=3, noise=noise)
            exact = machine.sweep(levels)
            close += exact[found.best.k] <= 1.03 * min(exact.values())
            runs += machine.runs
        yield NoiseStudy(scatter, repeats, close / searches, runs / searches)


@dataclass(slots=True)
class MeasuredPair:
    """Both branches of a pair as measured on one H200, linear between the measured numbers of SMs.

    Attributes:
        by_sms: Duration of the limited branch and of the other, by SMs of the limited one [ms].
        runs: Trials so far.
    """

    by_sms: Mapping[int, tuple[float, float]]
    runs: int = field(default=0)

    def completion_ns(self, level: QuotaLevel) -> int:
        """The longer of the two; below the measured SMs the limited branch slows down with its share."""
        self.runs += 1
        return round(MS * max(self._durations(level.sms)))

    def iteration_ns(self, level: QuotaLevel) -> int:
        """The pair alone."""
        return round(MS * max(self._durations(level.sms)))

    def _durations(self, sms: int) -> tuple[float, float]:
        known = sorted(self.by_sms)
        if sms <= known[0]:
            limited, other = self.by_sms[known[0]]
            return limited * known[0] / sms, other
        above = next(count for count in known if count >= sms)
        below = known[max(known.index(above) - 1, 0)]
        weight = (sms - below) / (above - below) if above > below else 1.0
        (a, b), (c, d) = self.by_sms[below], self.by_sms[above]
        return a + weight * (c - a), b + weight * (d - b)


H200_SERIAL_MS = 199.7
"""Both branches one after the other."""

H200_GREEN: dict[int, tuple[float, float]] = {
    132: (116, 207),
    120: (131, 235),
    112: (137, 157),
    104: (144, 126),
    96: (153, 102),
    80: (169, 93),
}
"""The backbone on a green context inside an MPS client."""

H200_PERCENT: dict[int, tuple[float, float]] = {132: (114, 807), 118: (125, 288), 104: (137, 124)}
"""The backbone under an MPS percentage."""


@dataclass(frozen=True, slots=True)
class DeviceSearch:
    """Algorithm 2 on a pair measured by us (backbone limited, denoising head beside it)."""

    mechanism: str
    coarse_step: int
    sms: int
    completion_ms: float
    sweep_ms: float
    speedup: float
    trials: int


def device_searches() -> Iterator[DeviceSearch]:
    """Green contexts and MPS percentages, at several coarse steps."""
    levels = expected_levels(132)
    for (mechanism, table), step in itertools.product(
        (("green contexts", H200_GREEN), ("MPS percentages", H200_PERCENT)), (3, 8)
    ):
        machine = MeasuredPair(table)
        start = machine.iteration_ns(levels[-1])
        found = search_quota(machine, levels, start, coarse_step=step)
        taken = machine.iteration_ns(found.level) / MS
        best = min(machine.iteration_ns(level) for level in levels) / MS
        yield DeviceSearch(
            mechanism,
            step,
            found.level.sms,
            round(taken, 1),
            round(best, 1),
            round(H200_SERIAL_MS / taken, 3),
            len(found.trials),
        )
