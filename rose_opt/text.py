"""A graph as text that a person reads and a test compares.

```
iteration iteration
  loop iteration/rollout count=8 free
    node sim.reset refresh sim.episode
    loop iteration/rollout/interact count=64 dependent
      node policy.act
        node policy.encode read policy.weights
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rose_opt.graph import DataEdge, Graph, GraphNode


def graph_text(graph: Graph, kinds: Mapping[str, object] | None = None, data: bool = False) -> str:
    """Text form of a graph, one line per node in program order.

    Args:
        graph: The graph.
        kinds: What is known about loops, printed after them (an analysis result, so no part of the
            graph), e.g. the loop facts.
        data: Whether data edges follow.

    Returns:
        Lines without a final newline; equal graphs give equal text.
    """
    lines = list(_tree(graph, graph.root, 0, kinds or {}))
    if data:
        lines += [edge_text(edge) for edge in graph.edges]
    return "\n".join(lines)


def node_text(node: GraphNode, kind: object = "") -> str:
    """One node: loops and the root by path, others by name, with what they touch."""
    if node.is_loop:
        words = [node.kind, node.path]
        if node.kind == "loop":
            words.append(f"count={'varies' if node.count is None else node.count}")
            words.append(str(kind) if node.rewritable else "fixed")
    else:
        words = ["node", node.name]
        if node.calls_per_parent != 1:
            words.append(
                f"calls={'vary' if node.calls_per_parent is None else node.calls_per_parent}"
            )
        if node.declaration.pure:
            words.append("pure")
    words += [str(access) for access in node.accesses.accesses]
    if node.accesses.opaque:
        words.append("opaque")
    if node.is_loop and node.accesses.rows is not None:
        words.append(f"rows={node.accesses.rows.start}..{node.accesses.rows.stop}")
    if node.turns is not None:
        words.append(f"iterations={node.turns[0]}::{node.turns[1]}")
    if node.beside:
        words.append(f"beside {', '.join(node.beside)}")
    return " ".join(word for word in words if word)


def edge_text(edge: DataEdge) -> str:
    """One data edge, e.g. ``data a/sim.step -> a/policy.act in a distance=1``."""
    words = [f"data {edge.producer} -> {edge.consumer} in {edge.loop}"]
    if edge.distance:
        words.append(f"distance={edge.distance}")
    if edge.all_iterations:
        words.append("all-iterations")
    if edge.alignment is not None:
        words.append(f"alignment={edge.alignment}")
    return " ".join(words)


def _tree(graph: Graph, node: GraphNode, depth: int, kinds: Mapping[str, object]) -> Iterator[str]:
    yield "  " * depth + node_text(node, kinds.get(node.path, ""))
    for child in graph.children(node.path):
        yield from _tree(graph, child, depth + 1, kinds)
