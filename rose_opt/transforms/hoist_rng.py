"""HoistRNG: what a loop draws from a shared generator is drawn before it, whole batches in native order.

::

  loop iter/rollout/interact count=64             loop iter/rollout/interact#draws count=64
    node policy.act  update generator.torch  ->     node policy.act#draw  update generator.torch
                                                  loop iter/rollout/interact count=64
                                                    node policy.act

Slices of one draw are not separate draws, and groups that draw in turn permute them; once the draws are
values, groups may slice them.

Does not handle: draws inside inner loops, or whose number depends on the data. The executor does not move
draws, since a trace does not tell what is drawn (docs/decisions/0011): a refusal names it as what the
program would have to do, which `rose_trace.rng.RowGenerator` does.

Paper: beyond the paper; it makes way for §4.3.1, "Split".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from rose_opt.graph import DataEdge, Graph, GraphNode, within
from rose_opt.plan import Refusal, Transformation, declare
from rose_opt.transforms.base import Rewritten, Subject, require
from rose_trace.legality import AccessSet
from rose_trace.records import GENERATOR, Access, Declaration, NodePath, StateAccess

if TYPE_CHECKING:
    from rose_opt.facts import Facts


@dataclass(frozen=True, slots=True)
class HoistRNG:
    """Draw before a loop what it draws from a shared generator.

    Attributes:
        loop: Path of the loop.
        generator: Name of the generator, e.g. ``torch``.
    """

    name: ClassVar[str] = "hoist-rng"
    loop: str
    generator: str

    @classmethod
    def candidates(cls, subject: Subject, target: str, max_groups: int) -> Iterator[Self]:
        """Generators that the loops around the target draw from, nearest loop first."""
        del max_groups
        for loop in subject.graph.ancestors(target):
            if loop.kind == "loop":
                states = [a.state for a in subject.graph.effective(loop.path).accesses]
                for state in dict.fromkeys(s for s in states if s.startswith(GENERATOR)):
                    yield cls(loop.path, state.removeprefix(GENERATOR))

    @classmethod
    def parse(cls, text: Transformation) -> Self:
        """Inverse of `text`."""
        return cls(text["loop"], text["generator"])

    @property
    def text(self) -> Transformation:
        """Text form."""
        return Transformation(self.name, (("loop", self.loop), ("generator", self.generator)))

    @property
    def state(self) -> str:
        """The generator as a state."""
        return f"{GENERATOR}{self.generator}"

    @property
    def advice(self) -> str:
        """What the program would have to do."""
        return f"draw from '{self.state}' before {self.loop}, or from rose_trace.rng.RowGenerator inside it"

    def check(self, subject: Subject) -> Refusal | None:
        """Why the draws cannot be made before the loop; nothing if they can."""
        graph = subject.graph
        loop = graph.node(self.loop)
        if loop.kind != "loop" or loop.count is None:
            return self._refuse(
                "expected a loop with a fixed number of iterations, got another",
                "Let it run equally often in every iteration.",
            )
        for leaf in graph.touching(self.loop):
            if leaf.accesses.opaque:
                return self._refuse(
                    f"expected every leaf to declare its states, got {leaf.path} without a declaration",
                    declare(*(n for n in subject.hierarchy.nodes if n.path == leaf.path)),
                    leaf.path,
                )
        users = self._users(graph)
        if not users:
            return self._refuse(
                f"expected draws from '{self.state}', got none",
                "Name a generator that it draws from.",
            )
        for user in users:
            seeding = [a for a in user.accesses.accesses if a.state == self.state]
            if any(a.mode is not StateAccess.UPDATE for a in seeding):
                return self._refuse(
                    f"expected only draws from '{self.state}', got {seeding[0].mode.value} by {user.path}",
                    "Seed it outside the loop.",
                    user.path,
                )
            around = [n for n in graph.ancestors(user.path) if within(n.path, self.loop)][:-1]
            if any(n.is_loop for n in around) or any(
                n.calls_per_parent != 1 for n in (user, *around)
            ):
                return self._refuse(
                    f"expected one draw per iteration and node, got {user.path}, which is not called once",
                    "Draw once per iteration and pass the values on.",
                    user.path,
                )
        return None

    def apply(self, subject: Subject) -> Rewritten:
        """Put a loop of draws before the loop; each node takes its draw of the same iteration."""
        require(self.check(subject))
        graph = subject.graph
        loop = graph.node(self.loop)
        users = self._users(graph)
        draws = replace(
            loop, path=NodePath(f"{self.loop}#draws"), name=f"{loop.name}#draws", structure=None
        )
        made = [draws, *(self._draw(user) for user in users)]
        nodes: list[GraphNode] = []
        for node in graph.nodes:
            nodes += made if node.path == self.loop else []
            nodes.append(self._without(node) if node in users else node)
        around = graph.enclosing_loops(self.loop)[-1].path
        edges = tuple(DataEdge(self._path(user), user.path, around, alignment=0) for user in users)
        moved = Graph(tuple(nodes), (*graph.edges, *edges))
        return Rewritten(replace(subject, graph=moved), {})

    def inverse(self, rewritten: Rewritten) -> Subject:
        """Draw inside the loop again."""
        graph = rewritten.graph
        drawing = {
            edge.consumer for edge in graph.edges if within(edge.producer, f"{self.loop}#draws")
        }
        nodes = tuple(
            self._with(node) if node.path in drawing else node
            for node in graph.nodes
            if not within(node.path, f"{self.loop}#draws")
        )
        edges = tuple(e for e in graph.edges if not within(e.producer, f"{self.loop}#draws"))
        return replace(rewritten.subject, graph=Graph(nodes, edges))

    def estimate_ns(self, facts: Facts) -> int:
        """Nothing is known about the draws [ns]."""
        del facts
        return 0

    def _users(self, graph: Graph) -> tuple[GraphNode, ...]:
        return tuple(
            leaf
            for leaf in graph.touching(self.loop)
            if any(a.state == self.state for a in leaf.own.accesses)
        )

    def _path(self, user: GraphNode) -> NodePath:
        inside = user.path.removeprefix(f"{self.loop}/").replace("/", "|")
        return NodePath(f"{self.loop}#draws/{inside}#draw")

    def _draw(self, user: GraphNode) -> GraphNode:
        return GraphNode(
            path=self._path(user),
            name=f"{user.name}#draw",
            key="",
            kind="exec",
            parent=NodePath(f"{self.loop}#draws"),
            declaration=Declaration(updates=(self.state,)),
            accesses=AccessSet((Access(self.state, StateAccess.UPDATE),)),
            fingerprint="",
        )

    def _without(self, node: GraphNode) -> GraphNode:
        kept = tuple(a for a in node.accesses.accesses if a.state != self.state)
        return replace(
            node,
            accesses=replace(node.accesses, accesses=kept),
            generators=tuple(g for g in node.generators if g != self.generator),
        )

    def _with(self, node: GraphNode) -> GraphNode:
        """The node that draws itself; declared generators are accesses, observed ones listed too."""
        declared = node.declaration.accesses(node.component)
        seen = self.state not in {a.state for a in declared}
        access = Access(self.state, StateAccess.UPDATE)
        return replace(
            node,
            accesses=replace(node.accesses, accesses=(*node.accesses.accesses, access)),
            generators=(*node.generators, self.generator) if seen else node.generators,
        )

    def _refuse(self, reason: str, unlock: str, *nodes: str) -> Refusal:
        return Refusal(self.name, self.loop, reason, unlock, nodes)
