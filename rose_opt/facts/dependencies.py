"""Data edges between nodes, from the values that invocations took and the invocations that made them.

A value made in glue code has no producer and gives no edge; the executor waits for it where it is
made. State dependencies are not listed: they follow from the accesses (`rose_trace.legality`).

Paper: §4.3.1, "Data dependencies".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rose_opt.facts.store import Store
from rose_opt.graph import DataEdge, GraphNode


@dataclass(frozen=True, slots=True)
class ObservedEdge:
    """A data edge and the first invocation that showed it.

    Attributes:
        edge: The edge.
        invocation: Number of the consumer's first such invocation, counted from 0 in program order.
    """

    edge: DataEdge
    invocation: int


def data_edges(store: Store, nodes: Sequence[GraphNode]) -> tuple[ObservedEdge, ...]:
    """Data edges of the recorded invocations.

    Args:
        store: Database with the hierarchy loaded.
        nodes: Nodes of the hierarchy, by `path_id`.

    Returns:
        One edge per producer, consumer, common loop and distance, in program order of the nodes; none
        into a rewritable loop, which only hands its carry and its items on to the nodes in it: those have
        edges of their own, and an iteration waits for what it uses, not for all items of the loop.
    """
    return tuple(
        ObservedEdge(
            DataEdge(
                nodes[int(row["producer"])].path,
                nodes[int(row["consumer"])].path,
                nodes[int(row["loop_path"])].path,
                row["distance"],
                row["all_iterations"],
                row["alignment"],
            ),
            row["seq"],
        )
        for row in store.run("flow")
    )
