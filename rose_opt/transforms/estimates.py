"""T̂(w): how long a node takes on a part of the rows, from two batch sizes where they were measured.

A node takes ``T(w) (phi + (1 - phi) / k)`` on one of k parts: a share phi of its time does not depend on
the batch, the rest is proportional to it. Two batch sizes give phi. Without a second one the truth lies
between ``T / k`` and ``T``, and the midpoint is taken, which is phi = 1/2.

Estimates order candidates; they decide nothing.

Paper: §4.3.2, "Generating alternatives" (duration mismatch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rose_opt.facts import Facts, Probe

UNKNOWN_FIXED_SHARE = 0.5  # ours: midpoint of T/k and T


def fixed_share(facts: Facts, path: str, groups: int = 2) -> float:
    """Share of a node's time that does not depend on the batch, phi [fraction, 0..1].

    Args:
        facts: What is known.
        path: Node path.
        groups: Parts that the estimate is for: of several measured batch sizes the nearest counts.

    Returns:
        From the recorded or probed whole batch and the nearest part; weighted by the children's times
        for loops and composites; 1/2 where no second batch size was measured.
    """
    part = _nearest(facts, path, groups)
    if part is not None:
        ratio = part.duration_ns / max(_whole_ns(facts, path, part.threads), 1)
        return min(max((ratio - 1 / part.groups) / (1 - 1 / part.groups), 0.0), 1.0)
    children = facts.graph.children(path)
    total = sum(facts.timings[child.path].total_ns for child in children)
    if not total:
        return UNKNOWN_FIXED_SHARE
    return (
        sum(
            fixed_share(facts, child.path, groups) * facts.timings[child.path].total_ns
            for child in children
        )
        / total
    )


def estimated_ns(facts: Facts, path: str, groups: int) -> int:
    """Duration of one invocation of a node on one of `groups` parts of the rows, T̂(w) [ns]."""
    share = fixed_share(facts, path, groups)
    return round(facts.timings[path].mean_ns * (share + (1 - share) / groups))


def _nearest(facts: Facts, path: str, groups: int) -> Probe | None:
    """The measured part nearest to one of `groups`, with the native number of threads if there is one."""
    native = facts.timings[path].threads
    parts = [p for p in facts.probes_of(path) if p.variant != "whole" and p.groups > 1]
    return min(
        parts,
        key=lambda p: (abs(p.groups - groups), p.threads != native, p.duration_ns),
        default=None,
    )


def _whole_ns(facts: Facts, path: str, threads: int) -> int:
    """The whole batch: as probed with as many threads, or as recorded [ns]."""
    whole = [p for p in facts.probes_of(path) if p.variant == "whole" and p.threads == threads]
    return whole[0].duration_ns if whole else facts.timings[path].mean_ns
