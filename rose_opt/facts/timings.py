"""How long invocations take, how many cores they use, and what is glue between them.

Durations run from the start on the host to the later of the host's return and the device's
completion. They order candidates and size plans; legality never reads them.

Paper: §4.3.2, "Ranking low-activity nodes" (durations).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rose_opt.facts.store import Store
from rose_opt.graph import GraphNode
from rose_trace.records import NodePath


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of one node over the iterations that count.

    Attributes:
        path: The node.
        count: Invocations.
        total_ns: Sum of their durations [ns].
        mean_ns: Mean duration [ns].
        median_ns: Median duration [ns].
        self_ns: Part of `total_ns` in no child node: glue of loops and composites [ns].
        cpu_ns: Mean CPU time of the whole process during an invocation [ns]; ``None`` if unknown.
        cores_used: CPU time over duration [cores]; ``None`` if unknown.
        threads: Most intra-op threads it ran with; ``None`` if unknown.
        summed: Invocations of `count` that were not recorded in full: only their number and their
            summed duration are known, so the other values are those of the rest.
    """

    path: NodePath
    count: int
    total_ns: int
    mean_ns: int
    median_ns: int
    self_ns: int
    cpu_ns: int | None
    cores_used: float | None
    threads: int | None
    summed: int = 0


@dataclass(frozen=True, slots=True)
class IterationTiming:
    """The RL iteration as recorded.

    Attributes:
        used: Iterations that count, over all ranks; the first of each rank is warm-up if there are
            more.
        ranks: Processes that run iterations.
        iteration_ns: Median duration of an iteration [ns].
        glue_ns: Median part of an iteration that no leaf node covers [ns].
    """

    used: int
    ranks: int
    iteration_ns: int
    glue_ns: int


def node_timings(store: Store, nodes: Sequence[GraphNode]) -> dict[str, Timing]:
    """Timings of every node that ran in an iteration that counts, the root included.

    Args:
        store: Database with the hierarchy loaded.
        nodes: Nodes of the hierarchy, by `path_id`.

    Returns:
        Timings by path, in program order.
    """
    result: dict[str, Timing] = {}
    for row in store.run("timings"):
        path = nodes[int(row.pop("path_id"))].path
        result[path] = Timing(path, **row)
    return result


def iteration_timing(store: Store) -> IterationTiming:
    """Duration and glue of the iterations that count.

    Args:
        store: Database with the hierarchy loaded.

    Returns:
        Medians over iterations and ranks.
    """
    rows = store.run("iterations")
    return IterationTiming(
        used=len(rows),
        ranks=len({row["process_id"] for row in rows}),
        iteration_ns=int(statistics.median(row["duration_ns"] for row in rows)),
        glue_ns=int(statistics.median(row["glue_ns"] for row in rows)),
    )
