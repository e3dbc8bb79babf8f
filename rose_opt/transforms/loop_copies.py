"""The copies of a loop that a split makes of it: one per group in the loop's place, and the loop again.

::

  loop iter/rollout count=8           ->  loop iter/rollout#0 count=8
    node sim.step  update sim.episode       node sim.step  update sim.episode
                                          loop iter/rollout#1 count=8
                                            node sim.step  update sim.episode

What a copy changes, its rows or its iterations, is the split's.

Paper: §4.3.1, "Split".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rose_opt.graph import DataEdge, Graph, GraphNode, within
from rose_opt.transforms.base import Subject, unique
from rose_trace.records import NodePath


@dataclass(frozen=True, slots=True)
class LoopCopies:
    """The copies of one loop.

    Attributes:
        loop: Path of the loop.
        groups: Number of copies [>= 2].
    """

    loop: str
    groups: int

    def fragments(self, graph: Graph) -> dict[str, tuple[str, ...]]:
        """The copies of each node of the loop, by its path."""
        return {
            node.path: tuple(self._path(node.path, group) for group in range(self.groups))
            for node in graph.subtree(self.loop)
        }

    def made(self, subject: Subject, changed: Callable[[GraphNode, int], GraphNode]) -> Subject:
        """The copies in the loop's place; edges that enter or leave the loop do so once per copy.

        Args:
            subject: The graph with the loop.
            changed: A node of the loop as the copy of a group has it, before it gets the copy's path.

        Returns:
            The graph with the copies.
        """
        graph = subject.graph
        inside = list(graph.subtree(self.loop))
        nodes: list[GraphNode] = []
        for node in graph.nodes:
            if node.path == self.loop:
                for group in range(self.groups):
                    nodes += [self._copy(changed(each, group), group) for each in inside]
            elif not within(node.path, self.loop):
                nodes.append(node)
        edges = unique(copy for edge in graph.edges for copy in self._edges(edge))
        splits = {**subject.splits, self.loop: self.groups}
        return replace(subject, graph=Graph(tuple(nodes), edges), splits=splits)

    def joined(self, subject: Subject) -> Subject:
        """The loop in its copies' place: the first copy, as it is, under the loop's path."""
        copies = [f"{self.loop}#{group}" for group in range(self.groups)]

        def path(of: str) -> NodePath:
            copy = next((c for c in copies if within(of, c)), None)
            return NodePath(of if copy is None else self.loop + of.removeprefix(copy))

        nodes: list[GraphNode] = []
        for node in subject.graph.nodes:
            if any(within(node.path, copy) for copy in copies[1:]):
                continue
            if node.path == copies[0]:
                node = replace(node, path=path(node.path), name=node.name.removesuffix("#0"))
            elif node.parent is not None and within(node.path, copies[0]):
                node = replace(node, path=path(node.path), parent=path(node.parent))
            nodes.append(node)
        edges = unique(
            replace(e, producer=path(e.producer), consumer=path(e.consumer), loop=path(e.loop))
            for e in subject.graph.edges
        )
        splits = {key: value for key, value in subject.splits.items() if key != self.loop}
        return replace(subject, graph=Graph(tuple(nodes), edges), splits=splits)

    def _path(self, path: str, group: int) -> NodePath:
        """Path in the copy of `group`; paths outside the loop keep theirs."""
        if not within(path, self.loop):
            return NodePath(path)
        return NodePath(f"{self.loop}#{group}{path.removeprefix(self.loop)}")

    def _copy(self, node: GraphNode, group: int) -> GraphNode:
        path = self._path(node.path, group)
        if node.path == self.loop:
            return replace(node, path=path, name=f"{node.name}#{group}")
        return replace(node, path=path, parent=node.parent and self._path(node.parent, group))

    def _edges(self, edge: DataEdge) -> Iterator[DataEdge]:
        """The edge once per copy where it touches the loop; copies take nothing from each other."""
        if not any(within(path, self.loop) for path in (edge.producer, edge.consumer)):
            yield edge
            return
        for group in range(self.groups):
            producer, consumer, loop = (
                self._path(path, group) for path in (edge.producer, edge.consumer, edge.loop)
            )
            yield replace(edge, producer=producer, consumer=consumer, loop=loop)
