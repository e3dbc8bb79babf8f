"""Batch size: how many rows a node's results have, and how many a loop works on.

Row axis is axis 0. A node carries rows if it declares ``rows`` or touches a batch state.
"""

from __future__ import annotations

from collections.abc import Sequence

from rose_opt.facts.store import Store
from rose_opt.graph import Graph, GraphNode
from rose_trace.records import NodePath


def carries_rows(node: GraphNode) -> bool:
    """Whether row i of the node's result belongs to row i of the batch."""
    return bool(node.declaration.rows) or any(access.keyed for access in node.accesses.accesses)


def node_rows(store: Store, nodes: Sequence[GraphNode]) -> dict[NodePath, int]:
    """Rows of the results of every node that carries rows.

    Args:
        store: Database with the hierarchy loaded.
        nodes: Nodes of the hierarchy, by `path_id`.

    Returns:
        Length of axis 0 that all tensors of all recorded results of the node share, by path; nodes
        where it differs, or without tensors, are absent.
    """
    store.fill("carrier", "path VARCHAR", [(node.path,) for node in nodes if carries_rows(node)])
    return {
        nodes[row["path_id"]].path: row["low"]
        for row in store.run("rows")
        if row["low"] == row["high"]
    }


def loop_rows(graph: Graph, rows: dict[NodePath, int]) -> dict[NodePath, int]:
    """Batch size of every loop whose row-carrying nodes all have the same number of rows.

    Args:
        graph: The recorded graph.
        rows: Rows by node, from `node_rows`.

    Returns:
        Batch size by loop; loops with none or with several sizes are absent.
    """
    result: dict[NodePath, int] = {}
    for loop in graph.loops():
        carriers = [node for node in graph.subtree(loop.path) if carries_rows(node)]
        sizes = {rows.get(node.path) for node in carriers if node.path in rows}
        if len(sizes) == 1:
            result[loop.path] = sizes.pop() or 0
    return result
