"""What the search asks of whoever runs things: the executor live, or the simulator.

Durations are whole nanoseconds of one run. A run that cannot be made (out of memory, a worker that does
not start) raises `TrialFailed`; the search takes that as "infeasible" and goes on.

Paper: §4.3.3, "Evaluating alternatives" (Alg. 1); §4.4 (Alg. 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rose_opt.measure.levels import QuotaLevel
from rose_opt.plan import Plan


class TrialFailed(RuntimeError):
    """A run that could not be made: the alternative is infeasible on this machine."""


@dataclass(frozen=True, slots=True)
class IterationMeasurement:
    """One complete iteration.

    Attributes:
        duration_ns: Its duration [ns].
        sm_activity: Mean device activity while each node ran, by path [fraction]; empty where it
            was not sampled. Windows of the next round are ranked by it.
    """

    duration_ns: int
    sm_activity: Mapping[str, float] = field(default_factory=dict[str, float])


class IterationMeasurer(Protocol):
    """Runs complete iterations; live, they are real training and their result is kept."""

    def iteration(self, plan: Plan) -> IterationMeasurement:
        """Run one iteration under `plan`; raises `TrialFailed` if it cannot be run."""
        ...


class LocalMeasurer(Protocol):
    """Runs a part of the graph on trial copies: same workload, restored state, nothing committed."""

    def local_ns(self, plan: Plan, comparison_graph: str) -> int:
        """Run the body of one node once under a plan.

        Args:
            plan: The plan.
            comparison_graph: Path of the loop, composite or root whose body is run, A_v.

        Returns:
            Time until everything in it has completed [ns]; raises `TrialFailed` if it cannot be run.
        """
        ...


class Measurer(IterationMeasurer, LocalMeasurer, Protocol):
    """What Algorithm 1 needs."""


class QuotaMeasurer(Protocol):
    """What Algorithm 2 needs: one branch of an overlapping pair, limited to a level."""

    def completion_ns(self, level: QuotaLevel) -> int:
        """H(k): time until both branches have completed on a short workload [ns].

        Raises `TrialFailed` if it cannot be run.
        """
        ...

    def iteration_ns(self, level: QuotaLevel) -> int:
        """One complete iteration with the branch at `level`; raises `TrialFailed` if it cannot be run."""
        ...
