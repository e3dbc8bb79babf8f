"""Privatise: readers of a state work on a copy of it, made before they start.

::

  loop iter/rollout                              node policy.weights#copy  read policy.weights, refresh policy.weights#rollout
    node policy.act  read policy.weights    ->   loop iter/rollout
  loop iter/learn                                  node policy.act  read policy.weights#rollout
    node trainer.update  update policy.weights   loop iter/learn
                                                   node trainer.update  update policy.weights

Whoever writes the state afterwards need not wait for those readers.

Does not handle: readers that write the state, too. The executor does not make the copy yet: the plan names
it as what the program would have to do.

Paper: beyond the paper; it makes way for §4.3.1, "Rewire".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from rose_opt.graph import Graph, GraphNode, within
from rose_opt.plan import Refusal, Transformation, declare
from rose_opt.transforms.base import Rewritten, Subject, require
from rose_trace.legality import AccessSet
from rose_trace.records import Access, Declaration, NodePath, StateAccess

if TYPE_CHECKING:
    from rose_opt.facts import Facts


@dataclass(frozen=True, slots=True)
class Privatise:
    """Let the nodes below a path read a copy of a state.

    Attributes:
        state: Absolute state name.
        readers: Path of the node below which everything reads the copy.
    """

    name: ClassVar[str] = "privatise"
    state: str
    readers: str

    @classmethod
    def candidates(cls, subject: Subject, target: str, max_groups: int) -> Iterator[Self]:
        """What the loops around the target read and somebody else writes, nearest loop first."""
        del max_groups
        graph = subject.graph
        for loop in graph.ancestors(target):
            if loop.kind != "loop":
                continue
            inside = graph.effective(loop.path).accesses
            written = {a.state for n in graph.nodes for a in n.accesses.accesses if a.mode.writes}
            states = dict.fromkeys(a.state for a in inside if a.state in written)
            for state in states:
                if not any(a.state == state and a.mode.writes for a in inside):
                    yield cls(state, loop.path)

    @classmethod
    def parse(cls, text: Transformation) -> Self:
        """Inverse of `text`."""
        return cls(text["state"], text["readers"])

    @property
    def text(self) -> Transformation:
        """Text form."""
        return Transformation(self.name, (("state", self.state), ("readers", self.readers)))

    @property
    def private(self) -> str:
        """Name of the copied state."""
        return f"{self.state}#{self.readers.rpartition('/')[2].replace('.', '_')}"

    @property
    def advice(self) -> str:
        """What the program would have to do."""
        return f"copy '{self.state}' before {self.readers} and let it read the copy"

    def check(self, subject: Subject) -> Refusal | None:
        """Why the readers cannot work on a copy; nothing if they can."""
        graph = subject.graph
        if graph.node(self.readers).parent is None:
            return self._refuse("expected a node below the root, got the root", "Name a loop.")
        if any(node.path == self._copy_path(graph) for node in graph.nodes):
            return self._refuse("expected one copy, got a second one", "Drop one of the two.")
        touching = [
            (leaf, a)
            for leaf in graph.touching(self.readers)
            for a in leaf.own.accesses
            if a.state == self.state
        ]
        for leaf in graph.touching(self.readers):
            if leaf.accesses.opaque:
                found = declare(*(n for n in subject.hierarchy.nodes if n.path == leaf.path))
                return self._refuse(
                    f"expected every leaf to declare its states, got {leaf.path} without a declaration",
                    found,
                    leaf.path,
                )
        for leaf, access in touching:
            if access.mode.writes:
                return self._refuse(
                    f"expected only reads of '{self.state}', got {access.mode.value} by {leaf.path}",
                    f"Let {leaf.name} work on a state of its own.",
                    leaf.path,
                )
        if not touching:
            return self._refuse(
                f"expected readers of '{self.state}', got none", "Name a node that reads it."
            )
        return None

    def apply(self, subject: Subject) -> Rewritten:
        """Put a copying node before the readers and let them read the copy."""
        require(self.check(subject))
        graph = subject.graph
        copy = self._node(graph)
        nodes: list[GraphNode] = []
        for node in graph.nodes:
            if node.path == self.readers:
                nodes.append(copy)
            nodes.append(self._renamed(node, self.state, self.private))
        return Rewritten(replace(subject, graph=Graph(tuple(nodes), graph.edges)), {})

    def inverse(self, rewritten: Rewritten) -> Subject:
        """Drop the copy."""
        graph = rewritten.graph
        nodes = tuple(
            self._renamed(node, self.private, self.state)
            for node in graph.nodes
            if node.path != self._copy_path(graph)
        )
        return replace(rewritten.subject, graph=Graph(nodes, graph.edges))

    def estimate_ns(self, facts: Facts) -> int:
        """Nothing is known about the copy [ns]."""
        del facts
        return 0

    def _renamed(self, node: GraphNode, old: str, new: str) -> GraphNode:
        if not within(node.path, self.readers):
            return node
        accesses = tuple(
            replace(a, state=new) if a.state == old else a for a in node.accesses.accesses
        )
        return replace(node, accesses=replace(node.accesses, accesses=accesses))

    def _copy_path(self, graph: Graph) -> NodePath:
        return NodePath(f"{graph.node(self.readers).parent}/{self.private}#copy")

    def _node(self, graph: Graph) -> GraphNode:
        keyed = any(
            a.keyed
            for leaf in graph.touching(self.readers)
            for a in leaf.own.accesses
            if a.state == self.state
        )
        path = self._copy_path(graph)
        accesses = (
            Access(self.state, StateAccess.READ, keyed),
            Access(self.private, StateAccess.REFRESH, keyed),
        )
        return GraphNode(
            path=path,
            name=path.rpartition("/")[2],
            key="",
            kind="exec",
            parent=graph.node(self.readers).parent,
            declaration=Declaration(reads=(self.state,), refreshes=(self.private,)),
            accesses=AccessSet(accesses),
            fingerprint="",
        )

    def _refuse(self, reason: str, unlock: str, *nodes: str) -> Refusal:
        return Refusal(self.name, f"{self.state} for {self.readers}", reason, unlock, nodes)
