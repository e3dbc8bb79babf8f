"""Interleave: the groups of a split loop run side by side.

::

  loop iter/rollout/interact#0   ->   loop iter/rollout/interact#0
  loop iter/rollout/interact#1        loop iter/rollout/interact#1 beside iter/rollout/interact#0

While one group simulates, the other decides. Which of two ready invocations goes first on a worker is
an order of the plan, not part of the graph.

Does not handle: groups of different loops (that is `rewire`).

Paper: §4.3.1, "Interleave".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from rose_opt.graph import Graph
from rose_opt.plan import Refusal, Transformation
from rose_opt.transforms.base import Rewritten, Subject, require
from rose_trace.legality import first_conflict
from rose_trace.records import NodePath

if TYPE_CHECKING:
    from rose_opt.facts import Facts


@dataclass(frozen=True, slots=True)
class Interleave:
    """Let the groups of a split loop overlap.

    Attributes:
        loop: Path of the loop as recorded.
    """

    name: ClassVar[str] = "interleave"
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
        """Why the groups must run one after the other; nothing if they may overlap."""
        if self.loop in subject.splits:
            return self._against_conflicts(subject)
        return Refusal(
            self.name,
            self.loop,
            f"expected a split loop, got {self.loop} whole",
            f"Put split-spatial{{loop={self.loop} groups=2}} before it.",
            (self.loop,),
        )

    def _against_conflicts(self, subject: Subject) -> Refusal | None:
        """Groups of a legal split touch nothing in common, whatever came before it."""
        groups = [f"{self.loop}#{group}" for group in range(subject.splits[self.loop])]
        for earlier, later in itertools.combinations(groups, 2):
            graph = subject.graph
            pairs = itertools.product(graph.touching(earlier), graph.touching(later))
            for a, b in pairs:
                conflict = first_conflict(a.own, b.own)
                if conflict is not None:
                    return Refusal(
                        self.name,
                        self.loop,
                        f"expected groups that touch nothing in common, got {conflict} ({a.path} before {b.path})",
                        "Give each group an instance or rows of its own.",
                        (a.path, b.path),
                    )
            for edge in subject.graph.data_edges(earlier, later):
                return Refusal(
                    self.name,
                    self.loop,
                    f"expected groups that take nothing from each other, got {edge.producer} -> {edge.consumer}",
                    "Let the groups meet in a merge.",
                    (edge.producer, edge.consumer),
                )
        return None

    def inverse(self, rewritten: Rewritten) -> Subject:
        """The groups run one after the other again."""
        subject = rewritten.subject
        groups = [NodePath(f"{self.loop}#{group}") for group in range(subject.splits[self.loop])]
        nodes = tuple(
            replace(node, beside=tuple(path for path in node.beside if path not in groups))
            if node.path in groups
            else node
            for node in subject.graph.nodes
        )
        return replace(subject, graph=Graph(nodes, subject.graph.edges))

    def apply(self, subject: Subject) -> Rewritten:
        """Drop the order between the groups."""
        require(self.check(subject))
        fragments = [NodePath(f"{self.loop}#{group}") for group in range(subject.splits[self.loop])]
        nodes = tuple(
            replace(node, beside=(*node.beside, *fragments[: fragments.index(node.path)]))
            if node.path in fragments
            else node
            for node in subject.graph.nodes
        )
        return Rewritten(replace(subject, graph=Graph(nodes, subject.graph.edges)), {})

    def estimate_ns(self, facts: Facts) -> int:
        """The loop itself: what is gained is a matter of the schedule [ns]."""
        return facts.timings[self.loop].mean_ns
