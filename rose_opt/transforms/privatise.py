"""Privatise: readers of a state work on a copy of it, made before they start.

::

  loop iter/rollout                              node policy.weights#copy  read policy.weights, refresh policy.weights~rollout
    node policy.act  read policy.weights    ->   loop iter/rollout
  loop iter/learn                                  node policy.act  read policy.weights~rollout
    node trainer.update  update policy.weights   loop iter/learn
                                                   node trainer.update  update policy.weights

Whoever writes the state afterwards need not wait for those readers. The executor copies the component that
the readers belong to, into a worker process of its own.

Does not handle: readers that write anything, too; readers that are functions.

Paper: beyond the paper; it makes way for §4.3.1, "Rewire".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from rose_opt.graph import Graph, GraphNode, within
from rose_opt.plan import (
    Preparations,
    Refusal,
    Transformation,
    copy_path,
    private_state,
    privatise_refusal,
)
from rose_opt.transforms.base import Rewritten, Subject, require
from rose_trace.legality import AccessSet
from rose_trace.records import Declaration, NodePath

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
        return private_state(self.state, self.readers)

    def check(self, subject: Subject) -> Refusal | None:
        """Why the readers cannot work on a copy; nothing if they can."""
        return privatise_refusal(subject.hierarchy, self.state, self.readers)

    def apply(self, subject: Subject) -> Rewritten:
        """Put a copying node before the readers and let them read the copy."""
        require(self.check(subject))
        graph = subject.graph
        copy = self._node(subject)
        nodes: list[GraphNode] = []
        for node in graph.nodes:
            if node.path == self.readers:
                nodes.append(copy)
            nodes.append(self._renamed(node, self.state, self.private))
        return Rewritten(replace(subject, graph=Graph(tuple(nodes), graph.edges)), {})

    def inverse(self, rewritten: Rewritten) -> Subject:
        """Drop the copy."""
        graph = rewritten.graph
        copy = copy_path(self.state, self.readers)
        nodes = tuple(
            self._renamed(node, self.private, self.state)
            for node in graph.nodes
            if node.path != copy
        )
        return replace(rewritten.subject, graph=Graph(nodes, graph.edges))

    def estimate_ns(self, facts: Facts) -> int:
        """Nothing: what a copy takes is a matter of where components live [ns]."""
        del facts
        return 0

    def _renamed(self, node: GraphNode, old: str, new: str) -> GraphNode:
        if not within(node.path, self.readers):
            return node
        accesses = tuple(
            replace(a, state=new) if a.state == old else a for a in node.accesses.accesses
        )
        return replace(node, accesses=replace(node.accesses, accesses=accesses))

    def _node(self, subject: Subject) -> GraphNode:
        prepared = Preparations(((self.state, self.readers),)).hierarchy(subject.hierarchy)
        made = prepared.node(copy_path(self.state, self.readers))
        reads = tuple(a.state for a in made.accesses if not a.mode.writes)
        return GraphNode(
            path=NodePath(made.path),
            name=made.name,
            key="",
            kind="exec",
            parent=subject.graph.node(self.readers).parent,
            declaration=Declaration(reads=reads, refreshes=(self.private,)),
            accesses=AccessSet(made.accesses),
            fingerprint="",
        )
