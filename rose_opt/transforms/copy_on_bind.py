"""CopyOnBind: a storage that is filled again and again is copied whenever a value of it is handed out.

::

  node sim.step      update buffer.sim.step       node sim.step
  node policy.value  read buffer.sim.step    ->   node policy.value
  node sim.reset     update buffer.sim.step       node sim.reset

The next fill then need not wait for whoever still reads the last value. The executor hands on copies of
results anyway; what the transform drops is the order.

Does not handle: values that are read after their storage was filled again, or that somebody writes into;
they look different then, and a copy would change what the program computes.

Paper: beyond the paper; it makes way for §4.3.1, "Rewire" and "Split".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from rose_opt.graph import Graph, GraphNode
from rose_opt.plan import Refusal, Transformation, copy_refusal
from rose_opt.transforms.base import Rewritten, Subject, require
from rose_trace.records import BUFFER, Access

if TYPE_CHECKING:
    from rose_opt.facts import Facts


@dataclass(frozen=True, slots=True)
class CopyOnBind:
    """Copy what is handed out of a storage.

    Attributes:
        state: The storage as a state, ``buffer.<node>``.
    """

    name: ClassVar[str] = "copy-on-bind"
    state: str

    @classmethod
    def candidates(cls, subject: Subject, target: str, max_groups: int) -> Iterator[Self]:
        """Storages of the program that are filled again, in program order."""
        del target, max_groups
        states = (a.state for node in subject.graph.nodes for a in node.accesses.accesses)
        for state in dict.fromkeys(s for s in states if s.startswith(BUFFER)):
            yield cls(state)

    @classmethod
    def parse(cls, text: Transformation) -> Self:
        """Inverse of `text`."""
        return cls(text["state"])

    @property
    def text(self) -> Transformation:
        """Text form."""
        return Transformation(self.name, (("state", self.state),))

    def check(self, subject: Subject) -> Refusal | None:
        """Why a copy would change what is computed; nothing if it would not."""
        return copy_refusal(subject.hierarchy, self.state)

    def apply(self, subject: Subject) -> Rewritten:
        """Nobody shares the storage any more."""
        require(self.check(subject))
        graph = subject.graph
        nodes = tuple(
            replace(
                node,
                accesses=replace(
                    node.accesses,
                    accesses=tuple(a for a in node.accesses.accesses if a.state != self.state),
                ),
            )
            for node in graph.nodes
        )
        forward: dict[str, tuple[str, ...]] = {
            n.path: (n.path,) for n in graph.nodes if self._access(n) is not None
        }
        return Rewritten(
            replace(subject, graph=Graph(nodes, graph.edges)), forward, (), graph.nodes
        )

    def inverse(self, rewritten: Rewritten) -> Subject:
        """Drop the copies: who touched the storage touches it again."""
        before = {node.path: node for node in rewritten.dropped}
        nodes = tuple(
            replace(node, accesses=before[node.path].accesses)
            if node.path in rewritten.forward
            else node
            for node in rewritten.graph.nodes
        )
        return replace(rewritten.subject, graph=Graph(nodes, rewritten.graph.edges))

    def estimate_ns(self, facts: Facts) -> int:
        """Nothing: the executor copies what tasks return in any plan [ns]."""
        del facts
        return 0

    def _access(self, node: GraphNode) -> Access | None:
        return next((a for a in node.accesses.accesses if a.state == self.state), None)
