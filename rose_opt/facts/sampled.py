"""Traces in which only the first and last iterations of inner loops are recorded in full.

Of the others a loop's row has sums by path: invocations, duration, runs of the body. Durations of
nodes add them up; what a loop carries and which values flow is taken from the recorded iterations and
holds for the others by extrapolation.

Paper: App. A ("the first and last steps of inner loops").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rose_opt.facts.store import Store
from rose_opt.facts.timings import Timing


@dataclass(frozen=True, slots=True)
class Sampled:
    """How much of a sampled trace was recorded in full, over the iterations that count.

    Attributes:
        steps: Iterations recorded at each end of inner loops.
        recorded: Invocations recorded in full.
        invocations: All invocations.
    """

    steps: int
    recorded: int
    invocations: int

    def __str__(self) -> str:
        return (
            f"estimated from {self.recorded} sampled of {self.invocations} invocations: the first and last "
            f"{self.steps} iterations of inner loops"
        )


def load_sums(store: Store) -> list[str]:
    """Load what loops say of iterations that were not recorded in full.

    Args:
        store: Database with the hierarchy loaded; gets the table ``sums``, and cells for them.

    Returns:
        Paths of nodes that ran in such iterations only.
    """
    return [row["path"] for row in store.run("sums")]


def sampled(steps: int | None, timings: Iterable[Timing]) -> Sampled | None:
    """What a trace says about its sampling.

    Args:
        steps: Iterations recorded at each end of inner loops; ``None`` for all.
        timings: Timings of all nodes.

    Returns:
        Recorded and all invocations; ``None`` where nothing was left out.
    """
    if steps is None:
        return None
    found = list(timings)
    invocations = sum(item.count for item in found)
    summed = sum(item.summed for item in found)
    return Sampled(steps, invocations - summed, invocations) if summed else None
