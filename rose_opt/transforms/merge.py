"""Merge: the results of a split loop's groups become one, in row or iteration order.

::

  loop iter/rollout/interact#0   ->   loop iter/rollout/interact#0
  loop iter/rollout/interact#1        loop iter/rollout/interact#1
  node policy.value                   node interact#merge
                                      node policy.value

Rows, and iterations of chains, go back to their places whichever group finishes first.

Does not handle: results without rows, which would need a reducer.

Paper: §4.3.1, "Merge".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from rose_opt.graph import DataEdge, Graph, GraphNode, within
from rose_opt.plan import Refusal, Transformation, merge_refusal
from rose_opt.transforms.base import Rewritten, Subject, require, unique
from rose_trace.legality import AccessSet
from rose_trace.records import Declaration, NodePath

if TYPE_CHECKING:
    from rose_opt.facts import Facts


@dataclass(frozen=True, slots=True)
class Merge:
    """Put the results of a split loop's groups together.

    Attributes:
        loop: Path of the loop as recorded.
    """

    name: ClassVar[str] = "merge"
    loop: str

    @classmethod
    def candidates(cls, subject: Subject, target: str, max_groups: int) -> Iterator[Self]:
        """The split loop that the target was in, if there is one."""
        del max_groups
        yield from (cls(loop) for loop in subject.splits if target.startswith(f"{loop}#"))

    @classmethod
    def parse(cls, text: Transformation) -> Self:
        """Inverse of `text`."""
        return cls(text["loop"])

    @property
    def text(self) -> Transformation:
        """Text form."""
        return Transformation(self.name, (("loop", self.loop),))

    def check(self, subject: Subject) -> Refusal | None:
        """Why the results cannot be put together by rows; nothing if they can."""
        if self.loop not in subject.splits:
            return Refusal(
                self.name,
                self.loop,
                f"expected a split loop, got {self.loop} whole",
                f"Put split-spatial{{loop={self.loop} groups=2}} before it.",
                (self.loop,),
            )
        if self.loop in subject.chains:
            return None  # whole batches, put in the order of their iterations
        found = merge_refusal(subject.hierarchy, f"{self.loop}#0", subject.rows.get(self.loop))
        if found is None:
            return None
        # The fragment is a copy: name the node that the user wrote.
        return replace(
            found,
            subject=self.loop,
            reason=found.reason.replace(f"{self.loop}#0", self.loop),
            unlock=found.unlock.replace("#0", ""),
            nodes=tuple(path.replace(f"{self.loop}#0", self.loop) for path in found.nodes),
        )

    def apply(self, subject: Subject) -> Rewritten:
        """Put a merging node after the last group; what left the groups now leaves it."""
        require(self.check(subject))
        last = f"{self.loop}#{subject.splits[self.loop] - 1}"
        fragments = tuple(f"{self.loop}#{g}" for g in range(subject.splits[self.loop]))
        merged = self._node(subject.graph, last)
        nodes: list[GraphNode] = list(subject.graph.nodes)
        position = max(i for i, node in enumerate(nodes) if within(node.path, last)) + 1
        nodes.insert(position, merged)
        edges: list[DataEdge] = []
        cut: list[DataEdge] = []
        for edge in subject.graph.edges:
            source = next((f for f in fragments if within(edge.producer, f)), None)
            if source is None or within(edge.consumer, source):
                edges.append(edge)
                continue
            cut.append(edge)
            near = subject.graph.common_loop(source, source).path
            into = DataEdge(edge.producer, merged.path, near, 0, all_iterations=True)
            edges += [into, replace(edge, producer=merged.path)]
        graph = Graph(tuple(nodes), unique(edges))
        return Rewritten(replace(subject, graph=graph), {}, tuple(cut))

    def inverse(self, rewritten: Rewritten) -> Subject:
        """Slices: whoever takes merged results takes each group's again."""
        subject = rewritten.subject
        merged = NodePath(f"{self.loop}#merge")
        nodes = tuple(node for node in subject.graph.nodes if node.path != merged)
        kept = (e for e in subject.graph.edges if merged not in (e.producer, e.consumer))
        return replace(subject, graph=Graph(nodes, unique((*kept, *rewritten.cut))))

    def estimate_ns(self, facts: Facts) -> int:
        """Nothing: a merge of rows is one copy at most [ns]."""
        del facts
        return 0

    def _node(self, graph: Graph, last: str) -> GraphNode:
        fragment = graph.node(last)
        return GraphNode(
            path=NodePath(f"{self.loop}#merge"),
            name=f"{self.loop.rpartition('/')[2]}#merge",
            key="",
            kind="exec",
            parent=fragment.parent,
            declaration=Declaration(pure=True, rows=True),
            accesses=AccessSet(),
            fingerprint="",
            calls_per_parent=fragment.calls_per_parent,
        )
