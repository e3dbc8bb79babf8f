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
from rose_opt.transforms.base import Rewritten, Subject, require, unique
from rose_opt.transforms.estimates import estimated_ns
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
        if "#" in self.loop:
            return Refusal(
                self.name,
                self.loop,
                f"expected a loop that no other split has copied, got {self.loop}",
                "Split it by rows or by iterations, not both.",
                (self.loop,),
            )
        node = subject.graph.node(self.loop)
        if node.kind == "exec":
            return Refusal(
                self.name,
                self.loop,
                f"expected a loop, got {self.loop}, and the executor cannot yet run a single node in groups",
                f"Call {node.name} inside the loop whose rows it takes.",
                (self.loop,),
            )
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

    def inverse(self, rewritten: Rewritten) -> Subject:
        """One loop of all groups: the first group's copy, without its rows."""
        subject = rewritten.subject
        return _joined(subject, self.loop, self.groups)

    def estimate_ns(self, facts: Facts) -> int:
        """The loop on one part of the rows [ns]; see `rose_opt.transforms.estimates`."""
        return estimated_ns(facts, self.loop, self.groups)

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


def _joined(subject: Subject, loop: str, groups: int) -> Subject:
    copies = [f"{loop}#{group}" for group in range(groups)]

    def path(of: str) -> NodePath:
        copy = next((c for c in copies if within(of, c)), None)
        return NodePath(of if copy is None else loop + of.removeprefix(copy))

    nodes: list[GraphNode] = []
    for node in subject.graph.nodes:
        if any(within(node.path, copy) for copy in copies[1:]):
            continue
        if within(node.path, copies[0]):
            top = node.path == copies[0]
            node = replace(
                node,
                path=path(node.path),
                parent=node.parent if top or node.parent is None else path(node.parent),
                accesses=replace(node.accesses, rows=None),
                name=node.name.removesuffix("#0") if top else node.name,
            )
        nodes.append(node)
    edges = unique(
        replace(e, producer=path(e.producer), consumer=path(e.consumer), loop=path(e.loop))
        for e in subject.graph.edges
    )
    splits = {key: value for key, value in subject.splits.items() if key != loop}
    return replace(subject, graph=Graph(tuple(nodes), edges), splits=splits)
