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

from rose_opt.graph import Graph, GraphNode, within
from rose_opt.plan import Refusal, Transformation, split_refusal
from rose_opt.transforms.base import Rewritten, Subject, require
from rose_opt.transforms.estimates import estimated_ns
from rose_opt.transforms.loop_copies import LoopCopies
from rose_trace.legality import RowRange, partition

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
        parts = partition(subject.rows[self.loop], self.groups)
        copies = LoopCopies(self.loop, self.groups)
        made = copies.made(subject, lambda node, group: _confined(node, parts[group]))
        return Rewritten(made, copies.fragments(subject.graph))

    def inverse(self, rewritten: Rewritten) -> Subject:
        """One loop of all groups: the first group's copy, without its rows."""
        joined = LoopCopies(self.loop, self.groups).joined(rewritten.subject)
        nodes = tuple(
            _confined(node, None) if within(node.path, self.loop) else node
            for node in joined.graph.nodes
        )
        return replace(joined, graph=Graph(nodes, joined.graph.edges))

    def estimate_ns(self, facts: Facts) -> int:
        """The loop on one part of the rows [ns]; see `rose_opt.transforms.estimates`."""
        return estimated_ns(facts, self.loop, self.groups)


def _confined(node: GraphNode, rows: RowRange | None) -> GraphNode:
    return replace(node, accesses=replace(node.accesses, rows=rows))
