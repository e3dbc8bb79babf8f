"""SpatialSplit: a loop runs once per group of rows.

::

  loop iter/rollout/interact count=64        ->  loop iter/rollout/interact#0 count=64 rows 0..32
    node policy.act  read policy.weights           node policy.act  read policy.weights
    node sim.step    update sim.episode            node sim.step    update sim.episode
                                                 loop iter/rollout/interact#1 count=64 rows 32..64
                                                   node policy.act  read policy.weights
                                                   node sim.step    update sim.episode

The groups still run one after the other; `interleave` lets them overlap, `merge` puts their results
together.

Does not handle: a row axis other than 0, loops inside the loop, groups of chosen sizes.

Paper: §4.3.1, "Split" (spatial).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from rose_opt.graph import DataEdge, Graph, GraphNode, within
from rose_opt.plan import Refusal, Transformation, split_refusal
from rose_opt.transforms.base import Rewritten, Subject, require
from rose_trace.legality import RowRange, partition
from rose_trace.records import NodePath

if TYPE_CHECKING:
    from rose_opt.facts import Facts


@dataclass(frozen=True, slots=True)
class SpatialSplit:
    """Run a loop once per group of rows.

    Attributes:
        loop: Path of the loop.
        groups: Number of groups [>= 2].
    """

    name: ClassVar[str] = "split-spatial"
    loop: str
    groups: int = 2

    @classmethod
    def candidates(cls, subject: Subject, target: str, max_groups: int) -> Iterator[Self]:
        """Splits of the target's loop into 2 to `max_groups` groups, if it has no loops inside."""
        loop = subject.graph.enclosing_loops(target)[-1]
        inside = [node for node in subject.graph.subtree(loop.path) if node.is_loop]
        if loop.kind == "loop" and len(inside) == 1:
            for groups in range(2, max_groups + 1):
                yield cls(loop.path, groups)

    @classmethod
    def parse(cls, text: Transformation) -> Self:
        """Inverse of `text`."""
        return cls(text["loop"], text.integer("groups"))

    @property
    def text(self) -> Transformation:
        """Text form."""
        return Transformation(self.name, (("loop", self.loop), ("groups", str(self.groups))))

    def check(self, subject: Subject) -> Refusal | None:
        """Why the rows of the loop cannot run in groups; nothing if they can."""
        rows = subject.rows.get(self.loop)
        return split_refusal(subject.hierarchy, self.loop, self.groups, rows)

    def apply(self, subject: Subject) -> Rewritten:
        """Replace the loop by one copy per group, each confined to its rows."""
        require(self.check(subject))
        graph = subject.graph
        parts = partition(subject.rows[self.loop], self.groups)
        inside: list[str] = [node.path for node in graph.subtree(self.loop)]
        forward: dict[str, tuple[str, ...]] = {
            path: tuple(self.fragment(path, group) for group in range(self.groups))
            for path in inside
        }
        nodes: list[GraphNode] = []
        for node in graph.nodes:
            if node.path == self.loop:
                for group, rows in enumerate(parts):
                    nodes += [self._copy(graph.node(path), group, rows) for path in inside]
            elif node.path not in forward:
                nodes.append(node)
        edges = tuple(copy for edge in graph.edges for copy in self._edges(edge))
        rewritten = replace(
            subject,
            graph=Graph(tuple(nodes), edges),
            splits={**subject.splits, self.loop: self.groups},
        )
        return Rewritten(rewritten, forward)

    def estimate_ns(self, facts: Facts) -> int:
        """Midpoint between a loop that scales with its rows and one that does not [ns]."""
        whole = facts.timings[self.loop].mean_ns
        return (whole // self.groups + whole) // 2

    def fragment(self, path: str, group: int) -> NodePath:
        """Path of the copy of `path` that belongs to `group`."""
        return NodePath(f"{self.loop}#{group}{path.removeprefix(self.loop)}")

    def _copy(self, node: GraphNode, group: int, rows: RowRange) -> GraphNode:
        top = node.path == self.loop
        parent = node.parent if top or node.parent is None else self.fragment(node.parent, group)
        return replace(
            node,
            path=self.fragment(node.path, group),
            parent=parent,
            accesses=replace(node.accesses, rows=rows),
            name=f"{node.name}#{group}" if top else node.name,
        )

    def _edges(self, edge: DataEdge) -> Iterator[DataEdge]:
        """The edge once per group where it touches the loop; groups take nothing from each other."""
        ends = [within(path, self.loop) for path in (edge.producer, edge.consumer)]
        if not any(ends):
            yield edge
            return
        for group in range(self.groups):
            producer, consumer, loop = (
                self.fragment(path, group) if within(path, self.loop) else path
                for path in (edge.producer, edge.consumer, edge.loop)
            )
            yield replace(edge, producer=producer, consumer=consumer, loop=loop)
