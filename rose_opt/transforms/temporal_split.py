"""TemporalSplit: the iterations of a free loop run in several chains.

::

  loop iter/rollout count=8 free             ->  loop iter/rollout#0 count=4 iterations=0::2
    node sim.reset  refresh sim.episode            node sim.reset  refresh sim.episode@0/2
    node sim.step   update sim.episode             node sim.step   update sim.episode@0/2
                                                 loop iter/rollout#1 count=4 iterations=1::2
                                                   node sim.reset  refresh sim.episode@1/2
                                                   node sim.step   update sim.episode@1/2

Batches stay whole, so results are the same bit for bit. Live range k of what iterations write is bound
to instance k mod groups, in native order; whatever touches it outside the loop finds the instance of the
last iteration. The chains still run one after the other; `interleave` lets them overlap.

Does not handle: loops with another split inside or around them, a number of iterations that varies.

Paper: §4.3.1, "Split" (temporal).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from rose_opt.graph import DataEdge, Graph, GraphNode, within
from rose_opt.plan import (
    Refusal,
    Transformation,
    live_out_instance,
    renamed_states,
    temporal_refusal,
)
from rose_opt.transforms.base import Rewritten, Subject, require, unique
from rose_trace.legality import AccessSet
from rose_trace.records import NodePath

if TYPE_CHECKING:
    from rose_opt.facts import Facts


@dataclass(frozen=True, slots=True)
class TemporalSplit:
    """Run the iterations of a free loop in chains, turn and turn about.

    Attributes:
        loop: Path of the loop.
        groups: Number of chains [>= 2].
    """

    name: ClassVar[str] = "split-temporal"
    loop: str
    groups: int = 2

    @classmethod
    def candidates(cls, subject: Subject, target: str, max_groups: int) -> Iterator[Self]:
        """Splits of the loops around the target into 2 to `max_groups` chains, nearest loop first."""
        for node in subject.graph.ancestors(target):
            if node.kind == "loop":
                for groups in range(2, max_groups + 1):
                    yield cls(node.path, groups)

    @classmethod
    def parse(cls, text: Transformation) -> Self:
        """Inverse of `text`."""
        return cls(text["loop"], text.integer("groups"))

    @property
    def text(self) -> Transformation:
        """Text form."""
        return Transformation(self.name, (("loop", self.loop), ("groups", str(self.groups))))

    def check(self, subject: Subject) -> Refusal | None:
        """Why iterations of the loop must keep their order; nothing if they may run in chains."""
        copied = [p for p in subject.splits if within(p, self.loop) or within(self.loop, p)]
        if copied or "#" in self.loop:
            return Refusal(
                self.name,
                self.loop,
                f"expected no other split inside or around it, got {(*copied, self.loop)[0]}",
                "Split it by rows or by iterations, not both.",
                (self.loop,),
            )
        if any(path == self.loop for node in subject.graph.nodes for path in node.beside):
            return Refusal(
                self.name,
                self.loop,
                f"expected a loop that nothing runs beside, got {self.loop} in a branch of its own",
                "Drop the rewire, or split the loop by rows.",
                (self.loop,),
            )
        return temporal_refusal(subject.hierarchy, self.loop, self.groups)

    def apply(self, subject: Subject) -> Rewritten:
        """Replace the loop by one copy per chain, each with instances of its own."""
        require(self.check(subject))
        return self.rewrite(subject, renamed_states(subject.hierarchy, self.loop))

    def rewrite(self, subject: Subject, renamed: tuple[str, ...]) -> Rewritten:
        """`apply` without asking whether it may be done.

        Args:
            subject: The graph.
            renamed: States of which every chain gets an instance.

        Returns:
            The rewritten graph.
        """
        graph = subject.graph
        count = graph.node(self.loop).count or 0
        last = live_out_instance(count, self.groups)
        inside = [node.path for node in graph.subtree(self.loop)]
        forward: dict[str, tuple[str, ...]] = {
            path: tuple(self.fragment(path, group) for group in range(self.groups))
            for path in inside
        }
        nodes: list[GraphNode] = []
        for node in graph.nodes:
            if node.path == self.loop:
                for group in range(self.groups):
                    nodes += [self._copy(graph.node(path), group, renamed) for path in inside]
            elif node.path not in forward:
                nodes.append(
                    replace(node, accesses=bound(node.accesses, renamed, last, self.groups))
                )
        cut = [e for e in graph.edges if self._across(e)]
        edges = unique(copy for edge in graph.edges for copy in self._edges(edge))
        rewritten = replace(
            subject,
            graph=Graph(tuple(nodes), edges),
            splits={**subject.splits, self.loop: self.groups},
            chains=subject.chains | {self.loop},
        )
        return Rewritten(rewritten, forward, tuple(cut))

    def inverse(self, rewritten: Rewritten) -> Subject:
        """One loop of all chains: the first chain's copy with every iteration and one instance."""
        subject = rewritten.subject
        copies = [f"{self.loop}#{group}" for group in range(self.groups)]
        count = sum(subject.graph.node(copy).count or 0 for copy in copies)

        def path(of: str) -> NodePath:
            copy = next((c for c in copies if within(of, c)), None)
            return NodePath(of if copy is None else self.loop + of.removeprefix(copy))

        nodes: list[GraphNode] = []
        for node in subject.graph.nodes:
            if any(within(node.path, copy) for copy in copies[1:]):
                continue
            node = replace(node, accesses=_unbound(node.accesses, self.groups))
            if within(node.path, copies[0]):
                top = node.path == copies[0]
                node = replace(
                    node,
                    path=path(node.path),
                    parent=node.parent if top or node.parent is None else path(node.parent),
                    name=node.name.removesuffix("#0") if top else node.name,
                    count=count if top else node.count,
                    turns=None if top else node.turns,
                )
            nodes.append(node)
        inner = (
            replace(e, producer=path(e.producer), consumer=path(e.consumer), loop=path(e.loop))
            for e in subject.graph.edges
            if within(e.producer, copies[0]) == within(e.consumer, copies[0])
            and not any(within(p, c) for p in (e.producer, e.consumer) for c in copies[1:])
        )
        return replace(
            subject,
            graph=Graph(tuple(nodes), unique((*inner, *rewritten.cut))),
            splits={key: value for key, value in subject.splits.items() if key != self.loop},
            chains=subject.chains - {self.loop},
        )

    def estimate_ns(self, facts: Facts) -> int:
        """One iteration of the loop: batches stay whole [ns]."""
        count = facts.graph.node(self.loop).count or 1
        return facts.timings[self.loop].mean_ns // max(count, 1)

    def fragment(self, path: str, group: int) -> NodePath:
        """Path of the copy of `path` that belongs to chain `group`."""
        return NodePath(f"{self.loop}#{group}{path.removeprefix(self.loop)}")

    def _copy(self, node: GraphNode, group: int, renamed: tuple[str, ...]) -> GraphNode:
        top = node.path == self.loop
        parent = node.parent if top or node.parent is None else self.fragment(node.parent, group)
        copy = replace(
            node,
            path=self.fragment(node.path, group),
            parent=parent,
            accesses=bound(node.accesses, renamed, group, self.groups),
        )
        if not top:
            return copy
        mine = len(range(group, node.count or 0, self.groups))
        return replace(copy, name=f"{node.name}#{group}", count=mine, turns=(group, self.groups))

    def _across(self, edge: DataEdge) -> bool:
        """Whether an edge enters or leaves the loop."""
        return within(edge.producer, self.loop) != within(edge.consumer, self.loop)

    def _edges(self, edge: DataEdge) -> Iterator[DataEdge]:
        """The edge once per chain where it touches the loop.

        Which iteration of a chain belongs to which of another loop is no constant distance, so what
        enters or leaves waits for all.
        """
        ends = [within(path, self.loop) for path in (edge.producer, edge.consumer)]
        if not any(ends):
            yield edge
            return
        for group in range(self.groups):
            producer, consumer, loop = (
                self.fragment(path, group) if within(path, self.loop) else path
                for path in (edge.producer, edge.consumer, edge.loop)
            )
            copy = replace(edge, producer=producer, consumer=consumer, loop=loop)
            if not all(ends) and edge.alignment is not None:
                copy = replace(copy, alignment=None, all_iterations=True)
            yield copy


def bound(accesses: AccessSet, states: tuple[str, ...], instance: int, groups: int) -> AccessSet:
    """The same accesses, those to `states` on one of `groups` instances.

    >>> from rose_trace.records import Access, StateAccess
    >>> step = AccessSet((Access("sim.episode", StateAccess.UPDATE),))
    >>> str(bound(step, ("sim.episode",), 1, 2).accesses[0])
    'update sim.episode@1/2'
    """
    return replace(
        accesses,
        accesses=tuple(
            replace(a, state=f"{a.state}@{instance}/{groups}") if a.state in states else a
            for a in accesses.accesses
        ),
    )


def _unbound(accesses: AccessSet, groups: int) -> AccessSet:
    def state(name: str) -> str:
        whole, mark, instance = name.rpartition("@")
        return whole if mark and instance.endswith(f"/{groups}") else name

    return replace(
        accesses, accesses=tuple(replace(a, state=state(a.state)) for a in accesses.accesses)
    )
