"""Algorithm 2 over the limit of a lane: every trial is an iteration of training, and nothing restarts.

Paper: §4.4, Alg. 2; that a limit changes inside a live session is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rose_exec.live import LiveReplay
from rose_exec.trials import LiveMeasurer
from rose_opt.measure import NoiseAware, QuotaLevel, QuotaSearchResult, TrialFailed, search_quota
from rose_opt.plan import Plan


def limited(plan: Plan, level: QuotaLevel, levels: Sequence[QuotaLevel]) -> Plan:
    """The plan with its first lane at a level; the whole device is no limit."""
    sms = 0 if level.sms == levels[-1].sms else level.sms
    first, *others = plan.lanes
    return replace(plan, lanes=(replace(first, sms=sms), *others))


@dataclass(slots=True)
class LaneTrials:
    """Runs iterations of training at levels of a plan's first lane; implements `QuotaMeasurer`.

    Attributes:
        measurer: Runs iterations.
        plan: A plan with lanes.
        levels: Levels of the device.
        session: The session that all of them run in.
    """

    measurer: LiveMeasurer
    plan: Plan
    levels: Sequence[QuotaLevel]
    session: LiveReplay

    def completion_ns(self, level: QuotaLevel) -> int:
        """H(k): an iteration of training, since nothing shorter has the overlap in it [ns]."""
        return self.iteration_ns(level)

    def iteration_ns(self, level: QuotaLevel) -> int:
        """An iteration of training at a level [ns]."""
        plan = limited(self.plan, level, self.levels)
        self.session.set_lanes(plan.lanes)
        return self.measurer.timed(plan, "quota trial", self.session)


@dataclass(frozen=True, slots=True)
class OpenedTrial:
    """What came of opening composites.

    Attributes:
        plan: The plan with lanes, the first one at the best level.
        search: What Algorithm 2 tried.
        iteration_ns: A complete iteration with it [ns].
    """

    plan: Plan
    search: QuotaSearchResult
    iteration_ns: int


def device_levels() -> Sequence[QuotaLevel]:
    """Levels that a lane may be limited to on this machine's GPU.

    Raises:
        QuotaError: If there is none, or it cannot be split.
    """
    from rose_exec.quota.green import GreenQuota

    return GreenQuota().levels


def measure_opened(
    measurer: LiveMeasurer,
    plan: Plan,
    levels: Sequence[QuotaLevel],
    reference_ns: int,
    noise: NoiseAware | None = None,
) -> OpenedTrial:
    """Find the limit of a plan's first lane, all in one session of training.

    Args:
        measurer: Runs iterations.
        plan: A plan with lanes.
        levels: Levels of the device.
        reference_ns: A complete iteration of the plan without lanes [ns].
        noise: How repeated iterations are compared; single ones by default.

    Returns:
        The best level and what an iteration takes with it.

    Raises:
        TrialFailed: If the plan cannot be run.
    """
    with measurer.session(plan) as session:
        trials = LaneTrials(measurer, plan, levels, session)
        search = search_quota(trials, levels, reference_ns, noise=noise)
    taken = search.iteration_ns or search.trials[0].completion_ns
    if taken is None:
        raise TrialFailed(search.reason)
    return OpenedTrial(limited(plan, search.best, levels), search, taken)
