"""CopyOnBind: a storage that is filled again and again is copied whenever a value of it is handed out.

::

  node sim.step      update buffer.sim.step       node sim.step
  node policy.value  read buffer.sim.step    ->   node policy.value
  node sim.reset     update buffer.sim.step       node sim.reset

The next fill then need not wait for whoever still reads the last value.

Does not handle: values that are read after their storage was filled again; they look different then, and
a copy would change what the program computes. The executor does not make the copies yet: the plan names
it as what the program would have to do.

Paper: beyond the paper; it makes way for §4.3.1, "Rewire" and "Split".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from rose_opt.graph import DataEdge, Graph, GraphNode, within
from rose_opt.plan import Refusal, Transformation
from rose_opt.transforms.base import Rewritten, Subject, require
from rose_trace.records import Access

if TYPE_CHECKING:
    from rose_opt.facts import Facts

PREFIX = "buffer."


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
        for state in dict.fromkeys(s for s in states if s.startswith(PREFIX)):
            yield cls(state)

    @classmethod
    def parse(cls, text: Transformation) -> Self:
        """Inverse of `text`."""
        return cls(text["state"])

    @property
    def text(self) -> Transformation:
        """Text form."""
        return Transformation(self.name, (("state", self.state),))

    @property
    def advice(self) -> str:
        """What the program would have to do."""
        return f"let {self.state.removeprefix(PREFIX)} return a copy"

    def check(self, subject: Subject) -> Refusal | None:
        """Why a copy would change what is computed; nothing if it would not."""
        graph = subject.graph
        writers = self._touching(graph, writes=True)
        if not self.state.startswith(PREFIX) or not writers:
            return self._refuse(
                f"expected a storage that is handed out again and again, got '{self.state}'",
                "Name one of the states buffer.<node>.",
            )
        readers = {node.path for node in self._touching(graph, writes=False)}
        names: set[str] = {node.path for node in writers}
        for edge in graph.edges:
            if edge.producer in names and edge.consumer in readers | names:
                again = self._filled_between(graph, edge, names)
                if again is not None:
                    return self._refuse(
                        f"expected values that are read before their storage is filled again, got {edge.consumer}, "
                        f"which reads what {edge.producer} handed out after {again} filled it",
                        f"Let {self.state.removeprefix(PREFIX)} return a copy, if that is what the program means: "
                        "it computes something else then.",
                        edge.producer,
                        edge.consumer,
                    )
        return None

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
        """Nothing is known about the copies [ns]."""
        del facts
        return 0

    def _access(self, node: GraphNode) -> Access | None:
        return next((a for a in node.accesses.accesses if a.state == self.state), None)

    def _touching(self, graph: Graph, *, writes: bool) -> tuple[GraphNode, ...]:
        found = ((node, self._access(node)) for node in graph.nodes)
        return tuple(node for node, a in found if a is not None and a.mode.writes == writes)

    def _filled_between(self, graph: Graph, edge: DataEdge, writers: set[str]) -> str | None:
        """Who fills the storage between making a value and taking it."""
        if edge.all_iterations or edge.alignment is not None or edge.distance > 1:
            return edge.producer
        order = [node.path for node in graph.nodes]
        made, taken = order.index(edge.producer), order.index(edge.consumer)
        if edge.distance == 0:
            between = order[made + 1 : taken]
        else:
            body = [p for p in order if within(p, edge.loop)]
            between = [p for p in body if order.index(p) > made or order.index(p) < taken]
        return next((path for path in between if path in writers), None)

    def _refuse(self, reason: str, unlock: str, *nodes: str) -> Refusal:
        return Refusal(self.name, self.state, reason, unlock, nodes)
