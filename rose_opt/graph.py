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
from typing import Any, Literal, cast

from rose_trace.legality import AccessSet, RowRange, union_all
from rose_trace.records import Access, Declaration, NodePath, StateAccess

NodeKind = Literal["exec", "loop", "iteration"]


class GraphError(ValueError):
    """A graph that contradicts itself."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One position in the execution hierarchy; it stands for all its invocations.

    Attributes:
        path: Position, e.g. ``iteration/rollout/interact/policy.act``.
        name: Last part of the path, with the component instance.
        key: ``module:qualname`` of the definition.
        kind: ``exec``, ``loop`` or ``iteration`` (the root).
        parent: Path of the enclosing node, ``None`` for the root.
        declaration: What the author declared.
        accesses: Own declared accesses; opaque for a leaf that declares nothing.
        fingerprint: Hash of code and declaration.
        count: Iterations of one call of a loop; ``None`` where it varies or for other kinds.
        calls_per_parent: Calls in one run of the parent's body (one iteration of a loop); ``None``
            where it varies.
        component: Name of the component instance it is a method of.
        component_class: ``module:qualname`` of that instance's class.
        shardable: Whether the class can be built as shards.
        composite: Whether it calls other nodes.
        structure: JSON of the result's pytree (of the carry, for a loop); ``None`` where it varies.
        rewritable: Whether its body may be rearranged; false for ``rose.iterations``.
        generators: Process-wide random generators it was seen to draw from; they are among its
            accesses as updates of ``generator.<name>``.
        beside: Earlier siblings that it need not wait for: all other siblings before it come first.
    """

    path: NodePath
    name: str
    key: str
    kind: NodeKind
    parent: NodePath | None
    declaration: Declaration
    accesses: AccessSet
    fingerprint: str
    count: int | None = None
    calls_per_parent: int | None = 1
    component: str | None = None
    component_class: str | None = None
    shardable: bool = False
    composite: bool = False
    structure: str | None = None
    rewritable: bool = True
    generators: tuple[str, ...] = ()
    beside: tuple[NodePath, ...] = ()

    @property
    def is_loop(self) -> bool:
        """Whether its body runs once per iteration (the root counts as a loop)."""
        return self.kind != "exec"


@dataclass(frozen=True, slots=True)
class DataEdge:
    """Values made by one node and used by another.

    Attributes:
        producer: Path of the node that made the values.
        consumer: Path of the node that takes them.
        loop: Path of the innermost loop that both invocations are in.
        distance: Iterations of that loop between making and using.
        all_iterations: One run of the consumer's side uses values of more than one iteration of the
            producer's own loop, so it waits for the whole loop.
        alignment: Where consumer and producer are in sibling loops: consumer iteration j uses producer
            iteration ``j + alignment``, always; ``None`` where this is not so.
    """

    producer: NodePath
    consumer: NodePath
    loop: NodePath
    distance: int = 0
    all_iterations: bool = False
    alignment: int | None = None


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
            "nodes": [_node_data(node) for node in self.nodes],
            "edges": [_edge_data(e) for e in self.edges],
        }

    @staticmethod
    def from_data(data: dict[str, Any]) -> Graph:
        """Inverse of `to_data`; does not verify."""
        return Graph(
            tuple(map(_node_from, data["nodes"])), tuple(DataEdge(**edge) for edge in data["edges"])
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


def _node_data(node: GraphNode) -> dict[str, Any]:
    declared = node.declaration
    return {
        "path": node.path,
        "name": node.name,
        "key": node.key,
        "kind": node.kind,
        "parent": node.parent,
        "declaration": {
            "reads": list(declared.reads),
            "updates": list(declared.updates),
            "refreshes": list(declared.refreshes),
            "pure": declared.pure,
            "rows": declared.rows if isinstance(declared.rows, bool) else list(declared.rows),
        },
        "accesses": _accesses_data(node.accesses),
        "fingerprint": node.fingerprint,
        "count": node.count,
        "calls_per_parent": node.calls_per_parent,
        "component": node.component,
        "component_class": node.component_class,
        "shardable": node.shardable,
        "composite": node.composite,
        "structure": node.structure,
        "rewritable": node.rewritable,
        "generators": list(node.generators),
        "beside": list(node.beside),
    }


def _node_from(data: dict[str, Any]) -> GraphNode:
    declared = data["declaration"]
    rows = declared["rows"]
    declaration = Declaration(
        tuple(declared["reads"]),
        tuple(declared["updates"]),
        tuple(declared["refreshes"]),
        declared["pure"],
        rows if isinstance(rows, bool) else tuple(rows),
    )
    rest = {
        key: value
        for key, value in data.items()
        if key not in ("declaration", "accesses", "generators", "beside")
    }
    return GraphNode(
        declaration=declaration,
        accesses=_accesses_from(data["accesses"]),
        generators=tuple(data["generators"]),
        beside=tuple(data["beside"]),
        **rest,
    )


def _accesses_data(accesses: AccessSet) -> dict[str, Any]:
    return {
        "declared": [[a.mode.value, a.state, a.keyed] for a in accesses.accesses],
        "opaque": accesses.opaque,
        "rows": None if accesses.rows is None else [accesses.rows.start, accesses.rows.stop],
    }


def _accesses_from(data: dict[str, Any]) -> AccessSet:
    declared = tuple(
        Access(state, StateAccess(mode), keyed) for mode, state, keyed in data["declared"]
    )
    return AccessSet(
        declared, data["opaque"], None if data["rows"] is None else RowRange(*data["rows"])
    )


def _edge_data(edge: DataEdge) -> dict[str, Any]:
    return {
        "producer": edge.producer,
        "consumer": edge.consumer,
        "loop": edge.loop,
        "distance": edge.distance,
        "all_iterations": edge.all_iterations,
        "alignment": edge.alignment,
    }
