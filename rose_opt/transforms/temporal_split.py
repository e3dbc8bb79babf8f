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
from rose_opt.transforms.loop_copies import LoopCopies
from rose_trace.legality import AccessSet

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
        graph, copies = subject.graph, LoopCopies(self.loop, self.groups)
        last = live_out_instance(graph.node(self.loop).count or 0, self.groups)
        outside = (
            node
            if within(node.path, self.loop)
            else replace(node, accesses=bound(node.accesses, renamed, last, self.groups))
            for node in graph.nodes
        )
        loose = Graph(tuple(outside), tuple(map(self._for_all, graph.edges)))

        def changed(node: GraphNode, group: int) -> GraphNode:
            node = replace(node, accesses=bound(node.accesses, renamed, group, self.groups))
            if node.path != self.loop:
                return node
            mine = len(range(group, node.count or 0, self.groups))
            return replace(node, count=mine, turns=(group, self.groups))

        made = copies.made(replace(subject, graph=loose), changed)
        cut = tuple(edge for edge in graph.edges if self._across(edge))
        chains = subject.chains | {self.loop}
        return Rewritten(replace(made, chains=chains), copies.fragments(graph), cut)

    def inverse(self, rewritten: Rewritten) -> Subject:
        """One loop of all chains: the first chain's copy with every iteration and one instance."""
        split = rewritten.subject.graph
        count = sum(split.node(f"{self.loop}#{k}").count or 0 for k in range(self.groups))
        joined = LoopCopies(self.loop, self.groups).joined(rewritten.subject)
        nodes = (
            replace(node, accesses=_unbound(node.accesses, self.groups))
            for node in joined.graph.nodes
        )
        whole = tuple(
            replace(node, count=count, turns=None) if node.path == self.loop else node
            for node in nodes
        )
        inner = (edge for edge in joined.graph.edges if not self._across(edge))
        edges = unique((*inner, *rewritten.cut))
        return replace(joined, graph=Graph(whole, edges), chains=joined.chains - {self.loop})

    def estimate_ns(self, facts: Facts) -> int:
        """One iteration of the loop: batches stay whole [ns]."""
        count = facts.graph.node(self.loop).count or 1
        return facts.timings[self.loop].mean_ns // max(count, 1)

    def _across(self, edge: DataEdge) -> bool:
        """Whether an edge enters or leaves the loop."""
        return within(edge.producer, self.loop) != within(edge.consumer, self.loop)

    def _for_all(self, edge: DataEdge) -> DataEdge:
        """An edge across the loop's border without its alignment.

        Which iteration of a chain belongs to which of another loop is no constant distance, so what
        enters or leaves waits for all.
        """
        if edge.alignment is None or not self._across(edge):
            return edge
        return replace(edge, alignment=None, all_iterations=True)


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
