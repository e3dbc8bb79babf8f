"""Batch size: how many rows a node's results have, and how many a loop works on.

Row axis is axis 0. A node carries rows if it declares ``rows`` or touches a batch state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rose_opt.graph import Graph, GraphNode
from rose_trace.pytree import Structure


def carries_rows(node: GraphNode) -> bool:
    """Whether row i of the node's result belongs to row i of the batch."""
    return bool(node.declaration.rows) or any(access.keyed for access in node.accesses.accesses)


def node_rows(
    nodes: Sequence[GraphNode], structures: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """Rows of the results of every node that carries rows.

    Args:
        nodes: Nodes of the hierarchy.
        structures: Every recorded result structure of each node on the whole batch, as JSON.

    Returns:
        Length of axis 0 that all tensors and arrays of all recorded results of the node share, by
        path; nodes where it differs, or without tensors, are absent.
    """
    result: dict[str, int] = {}
    for node in nodes:
        if node.kind == "exec" and carries_rows(node):
            shapes = {
                leaf.shape
                for text in structures.get(node.path, ())
                for leaf in Structure.from_json(text).leaves()
                if leaf.shape
            }
            sizes = {shape[0] for shape in shapes}
            if len(sizes) == 1:
                result[node.path] = sizes.pop()
    return result


def loop_rows(graph: Graph, rows: Mapping[str, int]) -> dict[str, int]:
    """Batch size of every loop whose row-carrying nodes all have the same number of rows.

    Args:
        graph: The recorded graph.
        rows: Rows by node, from `node_rows`.

    Returns:
        Batch size by loop; loops with none or with several sizes are absent.
    """
    result: dict[str, int] = {}
    for loop in graph.loops():
        sizes = {rows[node.path] for node in graph.subtree(loop.path) if node.path in rows}
        if len(sizes) == 1:
            result[loop.path] = sizes.pop()
    return result
