"""The abstract execution graph: what runs inside what, which values flow, which state is touched.

A graph holds no durations, so that nothing about speed can reach legality. State edges are not
stored: they follow from the accesses and program order.

Paper: §4.2 (execution hierarchy), §4.3.1 (dependencies).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from rose_opt.graph_node import DataEdge, GraphNode, NodeKind
from rose_trace.legality import AccessSet, union_all

__all__ = ["DataEdge", "Graph", "GraphError", "GraphNode", "NodeKind", "within"]


class GraphError(ValueError):
    """A graph that contradicts itself."""


@dataclass(frozen=True)
class Graph:
    """Immutable execution hierarchy with its data edges.

    Attributes:
        nodes: Nodes in program order of their first invocation; the root is first.
        edges: Data edges, ordered by the positions of producer and consumer.
    """

    nodes: tuple[GraphNode, ...]
    edges: tuple[DataEdge, ...] = ()

    @functools.cached_property
    def _by_path(self) -> dict[str, GraphNode]:
        return {node.path: node for node in self.nodes}

    @functools.cached_property
    def _children(self) -> dict[str, tuple[GraphNode, ...]]:
        result: dict[str, list[GraphNode]] = {}
        for node in self.nodes:
            if node.parent is not None:
                result.setdefault(node.parent, []).append(node)
        return {path: tuple(nodes) for path, nodes in result.items()}

    @property
    def root(self) -> GraphNode:
        """The node whose call is one RL iteration."""
        return self.nodes[0]

    def __contains__(self, path: object) -> bool:
        return path in self._by_path

    def node(self, path: str) -> GraphNode:
        """The node at `path`.

        Raises:
            KeyError: If there is none.
        """
        if path not in self._by_path:
            raise KeyError(
                f"Graph: expected a node of this graph, got {path!r}. "
                f"Its nodes are {', '.join(self._by_path)}."
            )
        return self._by_path[path]

    def children(self, path: str) -> tuple[GraphNode, ...]:
        """Nodes called directly from `path`, in program order."""
        return self._children.get(path, ())

    def subtree(self, path: str) -> Iterator[GraphNode]:
        """`path` and everything below it, in program order, parents first."""
        yield self.node(path)
        for child in self.children(path):
            yield from self.subtree(child.path)

    def leaves(self, path: str) -> Iterator[GraphNode]:
        """Exec nodes below or at `path` that call no other node, in program order."""
        return (n for n in self.subtree(path) if n.kind == "exec" and not n.composite)

    def touching(self, path: str) -> Iterator[GraphNode]:
        """Leaves at or below `path`, and composites that declare accesses of their own."""
        return (n for n in self.subtree(path) if n.touches)

    def ancestors(self, path: str) -> Iterator[GraphNode]:
        """Enclosing nodes, nearest first."""
        parent = self.node(path).parent
        while parent is not None:
            node = self.node(parent)
            yield node
            parent = node.parent

    def enclosing_loops(self, path: str) -> tuple[GraphNode, ...]:
        """Loops around `path`, outermost (the root) first."""
        return tuple(node for node in self.ancestors(path) if node.is_loop)[::-1]

    def loops(self) -> tuple[GraphNode, ...]:
        """All loops, the root first, in program order."""
        return tuple(node for node in self.nodes if node.is_loop)

    def common_loop(self, a: str, b: str) -> GraphNode:
        """The innermost loop around both nodes."""
        around = {node.path for node in self.enclosing_loops(b)}
        return next(node for node in reversed(self.enclosing_loops(a)) if node.path in around)

    def effective(self, path: str) -> AccessSet:
        """Everything one invocation of `path` may touch: its own accesses and those of all below it."""
        return union_all(node.accesses for node in self.subtree(path))

    def data_edges(
        self, producer: str | None = None, consumer: str | None = None
    ) -> tuple[DataEdge, ...]:
        """Edges that leave the subtree of `producer` and enter the subtree of `consumer`."""
        return tuple(
            edge
            for edge in self.edges
            if (producer is None or within(edge.producer, producer))
            and (consumer is None or within(edge.consumer, consumer))
        )

    def verify(self) -> None:
        """Check that the graph is consistent with itself.

        Raises:
            GraphError: At the first contradiction, naming node or edge.
        """
        if not self.nodes or self.nodes[0].parent is not None or not self.nodes[0].is_loop:
            raise GraphError(
                "Graph: expected the iteration root as its first node, got none. Record an iteration."
            )
        seen: set[str] = set()
        for node in self.nodes:
            _verify_node(node, seen, self)
            seen.add(node.path)
        for edge in self.edges:
            _verify_edge(edge, self)

    def fingerprint(self) -> str:
        """Hash of the whole graph, 32 hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON: lists of nodes and edges in graph order."""
        return {
            "nodes": [node.to_data() for node in self.nodes],
            "edges": [edge.to_data() for edge in self.edges],
        }

    @staticmethod
    def from_data(data: dict[str, Any]) -> Graph:
        """Inverse of `to_data`; does not verify."""
        return Graph(
            tuple(map(GraphNode.from_data, data["nodes"])),
            tuple(map(DataEdge.from_data, data["edges"])),
        )

    def to_json(self) -> str:
        """Canonical JSON: equal graphs give equal text."""
        return json.dumps(self.to_data(), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Graph:
        """Inverse of `to_json`; does not verify."""
        return Graph.from_data(cast("dict[str, Any]", json.loads(text)))


def within(path: str, ancestor: str) -> bool:
    """Whether `path` is `ancestor` or lies below it.

    >>> within("iteration/rollout/sim.step", "iteration/rollout")
    True
    >>> within("iteration/rollout2", "iteration/rollout")
    False
    """
    return path == ancestor or path.startswith(ancestor + "/")


def _verify_node(node: GraphNode, seen: set[str], graph: Graph) -> None:
    subject = f"Graph node {node.path}"
    if node.path in seen:
        raise GraphError(
            f"{subject}: expected one node per path, got a second one. Give it another name."
        )
    if node.parent is None:
        if seen:
            raise GraphError(
                f"{subject}: expected a parent, got a second root {seen}. Keep one iteration root."
            )
        return
    if node.parent not in seen:
        raise GraphError(
            f"{subject}: expected its parent {node.parent} before it, got none. Order parents first."
        )
    if not (graph.node(node.parent).is_loop or graph.node(node.parent).composite):
        raise GraphError(
            f"{subject}: expected a loop or composite as parent, got leaf {node.parent}. Mark it composite."
        )
    if node.kind == "iteration":
        raise GraphError(
            f"{subject}: expected an exec or loop node below the root, got an iteration. Nest no roots."
        )
    if (
        node.kind == "exec"
        and not node.composite
        and node.declaration.silent
        and not node.accesses.opaque
    ):
        raise GraphError(
            f"{subject}: expected an undeclared leaf to be opaque, got declared accesses. Declare them."
        )
    siblings = {other.path for other in graph.children(node.parent) if other.path in seen}
    if not siblings.issuperset(node.beside):
        raise GraphError(
            f"{subject}: expected earlier siblings in beside, got {', '.join(node.beside)}. Name siblings."
        )
    if (node.count or 0) < 0 or (node.count is not None and not node.is_loop):
        raise GraphError(
            f"{subject}: expected a count >= 0 of a loop, got {node.count} of kind {node.kind}. Drop it."
        )


def _verify_edge(edge: DataEdge, graph: Graph) -> None:
    subject = f"Data edge {edge.producer} -> {edge.consumer}"
    for path in (edge.producer, edge.consumer, edge.loop):
        if path not in graph:
            raise GraphError(
                f"{subject}: expected nodes of the graph, got {path}. Rewrite the edge with its nodes."
            )
    around = {node.path for node in graph.enclosing_loops(edge.producer)}
    around &= {node.path for node in graph.enclosing_loops(edge.consumer)}
    if edge.loop not in around:
        raise GraphError(
            f"{subject}: expected a loop around both, got {edge.loop}. Use their innermost common loop."
        )
    if edge.distance < 0:
        raise GraphError(
            f"{subject}: expected a distance >= 0, got {edge.distance}. Values cannot flow back."
        )
