"""A graph as text: the hierarchy in the form of `rose_opt.text`, with times, then all edges."""

from __future__ import annotations

from rose_opt.drawing.program import DrawnGraph
from rose_opt.text import edge_text, graph_text


def listing(drawn: DrawnGraph) -> str:
    """The hierarchy with loop kinds, accesses and times, then data and state edges.

    Args:
        drawn: What to print.

    Returns:
        Lines without a final newline; the same graph and times give the same text.
    """
    graph = drawn.graph
    kinds: dict[str, str] = {node.path: drawn.kind(node) for node in graph.loops()}
    tree = graph_text(graph, kinds).split("\n")
    times = [drawn.time(node) for node in graph.subtree(graph.root.path)]
    width = max(map(len, tree))
    lines = [f"with {transform}" for transform in drawn.transforms]
    lines += [f"{line:<{width}}  {time}".rstrip() for line, time in zip(tree, times, strict=True)]
    lines += [edge_text(edge) for edge in drawn.data]
    lines += [str(edge) for edge in drawn.states]
    lines += [
        f"fence {node.path} declares nothing, so it is ordered with everything"
        for node in drawn.fences
    ]
    return "\n".join(lines)
