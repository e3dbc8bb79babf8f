"""Which overlapping pair a quota can help, and how much.

Paper: §4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OverlapPair:
    """Two branches on distinct processes of one GPU that overlap.

    Attributes:
        limited: Process that would be limited: the one ready earlier, f.
        beside: Process of the other branch.
        branch_slack_ns: How long f has been ready when the pair completes, C_0 - F_0 [ns].
        contention_ns: Time that the other branch loses to f, kappa * overlap [ns].
    """

    limited: str
    beside: str
    branch_slack_ns: int
    contention_ns: int

    @property
    def gain_ns(self) -> int:
        """Most that a quota can save: no more than f can be late, or than contention costs [ns]."""
        return min(self.branch_slack_ns, self.contention_ns)


def branch_slack_ns(completion_ns: int, ready_ns: int) -> int:
    """Slack sigma of the branch that is ready first, C_0 - F_0 [ns].

    Raises:
        ValueError: If the branch is ready after the pair completes.
    """
    if ready_ns > completion_ns:
        raise ValueError(
            f"branch_slack_ns: expected a branch that is ready by {completion_ns} ns, got {ready_ns}. "
            "Measure both from the same start."
        )
    return completion_ns - ready_ns


def predicted_gain_ns(faster_ns: int, slower_ns: int, slack_ns: int) -> int:
    """What a quota saves that makes the other branch faster by x and f slower by y, min(x, sigma - y) [ns].

    >>> predicted_gain_ns(faster_ns=400, slower_ns=100, slack_ns=250)
    150
    """
    return min(faster_ns, slack_ns - slower_ns)


def most_promising(pairs: Sequence[OverlapPair]) -> OverlapPair | None:
    """The pair that a quota can help most; of equal ones the first; ``None`` if none can be helped."""
    best = max(pairs, key=lambda pair: pair.gain_ns, default=None)
    return best if best is not None and best.gain_ns > 0 else None
