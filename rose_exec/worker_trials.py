"""Algorithm 2 over the MPS percentage of a worker process: every level is a new process.

For work that a library submits on a context of its own (PhysX, a renderer), which no lane can limit.

Paper: §4.4, Alg. 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rose_opt.measure import IterationMeasurer, QuotaLevel
from rose_opt.plan import Plan


@dataclass(frozen=True, slots=True)
class WorkerTrials:
    """Runs iterations of training with one worker at a percentage; implements `QuotaMeasurer`.

    Attributes:
        measurer: Trains an iteration with a plan.
        plan: The plan.
        worker: Name of the worker process.
    """

    measurer: IterationMeasurer
    plan: Plan
    worker: str

    def completion_ns(self, level: QuotaLevel) -> int:
        """H(k): an iteration of training with the worker replaced [ns]."""
        return self.iteration_ns(level)

    def iteration_ns(self, level: QuotaLevel) -> int:
        """An iteration of training with the worker replaced [ns]."""
        return self.measurer.iteration(self.limited(level)).duration_ns

    def limited(self, level: QuotaLevel) -> Plan:
        """The plan with the worker at a level."""
        workers = tuple(
            replace(spec, percent=level.percent) if spec.name == self.worker else spec
            for spec in self.plan.workers
        )
        return replace(self.plan, workers=workers)


def worker_quota(
    worker: str, levels: Sequence[QuotaLevel]
) -> Callable[[Plan, IterationMeasurer], tuple[WorkerTrials, Sequence[QuotaLevel]] | None]:
    """A quota backend for `rose_exec.tune`: one worker process, limited by MPS percentage.

    Needs a daemon that this process is told of: ``eval "$(rose-exec mps start)"``.

    Args:
        worker: Name of the worker in the plan, usually that of its component. Where the plan has no such
            process, nothing is searched.
        levels: Levels of the device, e.g. ``MpsQuota.find(daemon).levels``.

    Returns:
        What `tune` takes as `quota`.
    """

    def backend(
        plan: Plan, measurer: IterationMeasurer
    ) -> tuple[WorkerTrials, Sequence[QuotaLevel]] | None:
        found = any(spec.name == worker and spec.kind == "process" for spec in plan.workers)
        return (WorkerTrials(measurer, plan, worker), levels) if found else None

    return backend
