"""What ran beside what: invocations of a trace with their overlaps.

A native trace has overlaps where the program is concurrent; one of a planned run has those of its plan.

Paper: §4.4 (contention between overlapping branches).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rose_opt.facts.store import opened

MOST_INVOCATIONS = 100_000  # ours: more of them change no digit that matters


@dataclass(frozen=True, slots=True)
class OverlappedInvocation:
    """One invocation and what ran beside it.

    Attributes:
        path: The node.
        duration_ns: From its start to the later of host return and device completion [ns].
        groups: Parts that the batch was in; 1 for the whole batch.
        threads: Intra-op threads; ``None`` if unknown.
        sharded: Whether it ran on a component built for its part of the rows.
        beside_ns: Time that invocations of each node ran beside it [ns]; may sum to more than the
            duration.
    """

    path: str
    duration_ns: int
    groups: int
    threads: int | None
    sharded: bool
    beside_ns: dict[str, int]


def overlapped_invocations(
    trace: str | Path, root: str, paths: Iterable[str]
) -> tuple[OverlappedInvocation, ...]:
    """Read invocations with their overlaps.

    Args:
        trace: Path of the trace.
        root: Path of the iteration; the first of each process is warm-up if there are more.
        paths: Nodes that count; none of them contains another.

    Returns:
        The first invocations, by start; none where a single thread ran them all.
    """
    with opened(Path(trace)) as store:
        store.fill("wanted", "path VARCHAR", [(str(path),) for path in paths])
        (lanes,) = store.run("lanes")
        if lanes["lanes"] < 2:
            return ()
        rows = store.run("invoked", wanted_root=root, most=MOST_INVOCATIONS)
    found = [
        OverlappedInvocation(
            row["path"],
            row["end_ns"] - row["start_ns"],
            max(row["groups"] or 1, 1),
            row["threads"],
            row["sharded"],
            {},
        )
        for row in rows
    ]
    _overlap(found, [(row["start_ns"], row["end_ns"]) for row in rows])
    return tuple(found)


def _overlap(found: Sequence[OverlappedInvocation], times: Sequence[tuple[int, int]]) -> None:
    """Fill in what ran beside each, given starts and ends [ns]; starts increase."""
    running: list[int] = []
    for index, (start, end) in enumerate(times):
        running = [other for other in running if times[other][1] > start]
        for other in running:
            shared = min(end, times[other][1]) - start
            for one, two in ((index, other), (other, index)):
                beside = found[one].beside_ns
                beside[found[two].path] = beside.get(found[two].path, 0) + shared
        running.append(index)
