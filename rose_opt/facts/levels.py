"""How high a sampled level was while each leaf node ran: one mean per node, weighted by time.

The mean takes every sample at its face value for the whole of its time. Where samples are not much
shorter than invocations, it mixes neighbours; `rose_opt.facts.corun` separates them.

Paper: §4.3.2, "Ranking low-activity nodes".
"""

from __future__ import annotations

from dataclasses import dataclass

from rose_opt.facts.store import Store
from rose_opt.graph import Graph


@dataclass(frozen=True, slots=True)
class NodeLevel:
    """Mean of a sampled level over the time of one node.

    Attributes:
        count: Invocations that count.
        duration_ns: Their summed duration [ns].
        covered_ns: Part of it that samples cover [ns].
        activity: Time-weighted mean; ``None`` where no sample covers any of it [fraction].
    """

    count: int
    duration_ns: int
    covered_ns: int
    activity: float | None


def node_levels(store: Store, graph: Graph) -> dict[str, dict[int, NodeLevel]]:
    """Means of all sampled levels over the time of every leaf node, in iterations that count.

    Args:
        store: Database with hierarchy and samples loaded; gets the table ``target``.
        graph: The recorded graph.

    Returns:
        By level (``activity``, and ``dram`` where it was sampled), means by `path_id`.
    """
    leaves = [
        (path_id,)
        for path_id, node in enumerate(graph.nodes)
        if node.kind == "exec" and not node.composite
    ]
    store.fill("target", "path_id INTEGER", leaves)
    result: dict[str, dict[int, NodeLevel]] = {"activity": {}, "dram": {}}
    for row in store.run("windows"):
        of_metric, path_id = result[row.pop("metric")], row.pop("path_id")
        of_metric[path_id] = NodeLevel(**row)
    return result
