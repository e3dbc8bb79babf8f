"""What every transform has: candidates, a check that says why not, and a rewrite that never mutates.

Benefit is no part of a transform: schedules price it, measurement decides.

Paper: §4.3.1, "Graph transformations".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from rose_opt.graph import DataEdge, Graph, GraphNode
from rose_opt.plan import Hierarchy, PlanComponent, PlanEdge, PlanNode, Refusal, Transformation

if TYPE_CHECKING:
    from rose_opt.facts import Facts


class IllegalTransform(ValueError):
    """An attempt to apply a transform whose check refuses it.

    Attributes:
        refusal: Why.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Subject:
    """What legality is decided on: a graph and its batch sizes, without any duration.

    Attributes:
        graph: The recorded graph, or one that earlier transforms of a composition rewrote.
        rows: Batch size by loop; loops without one are absent.
        splits: Groups of every loop that is split already, by the recorded loop's path.
        chains: Of those, the loops that are split into chains of iterations, not of rows.
    """

    graph: Graph
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    splits: Mapping[str, int] = field(default_factory=dict[str, int])
    chains: frozenset[str] = frozenset()

    @staticmethod
    def of(facts: Facts) -> Subject:
        """The recorded graph of `facts`."""
        return Subject(facts.graph, facts.rows)

    @property
    def hierarchy(self) -> Hierarchy:
        """The graph in the form that the rules in `rose_opt.plan` read."""
        return hierarchy(self.graph)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of a transform.

    Attributes:
        subject: The new graph with its batch sizes.
        forward: Nodes of the old graph and the nodes that stand for them now; others are unchanged.
        cut: Data edges of the old graph that no longer say by themselves where their values came from.
        dropped: Nodes of the old graph, where accesses of theirs are gone.
    """

    subject: Subject
    forward: Mapping[str, tuple[str, ...]]
    cut: tuple[DataEdge, ...] = ()
    dropped: tuple[GraphNode, ...] = ()

    @property
    def graph(self) -> Graph:
        """The new graph."""
        return self.subject.graph


class Transform(Protocol):
    """One rewrite of the graph, with its parameters."""

    name: ClassVar[str]

    @classmethod
    def candidates(cls, subject: Subject, target: str, max_groups: int) -> Iterator[Self]:
        """Instances worth a check for a target node, in the paper's order."""
        ...

    @classmethod
    def parse(cls, text: Transformation) -> Self:
        """Inverse of `text`."""
        ...

    @property
    def text(self) -> Transformation:
        """Text form."""
        ...

    def check(self, subject: Subject) -> Refusal | None:
        """Why it must not be applied; nothing if it may."""
        ...

    def apply(self, subject: Subject) -> Rewritten:
        """The rewritten graph; raises `IllegalTransform` where `check` refuses."""
        ...

    def inverse(self, rewritten: Rewritten) -> Subject:
        """The graph that `apply` made this of; data edges may come in another order."""
        ...

    def estimate_ns(self, facts: Facts) -> int:
        """Expected duration of one fragment [ns]; orders candidates, decides nothing."""
        ...


def unique(edges: Iterable[DataEdge]) -> tuple[DataEdge, ...]:
    """Edges without repetition, in the order of their first appearance."""
    return tuple(dict.fromkeys(edges))


def require(refusal: Refusal | None) -> None:
    """Stop where a check refused.

    Raises:
        IllegalTransform: If there is a refusal.
    """
    if refusal is not None:
        raise IllegalTransform(refusal)


def hierarchy(graph: Graph) -> Hierarchy:
    """The graph as plans describe it."""
    return Hierarchy(
        tuple(_plan_node(node) for node in graph.nodes),
        _components(graph),
        tuple(
            PlanEdge(e.producer, e.consumer, e.loop, e.distance, e.all_iterations, e.alignment)
            for e in graph.edges
        ),
    )


def _plan_node(node: GraphNode) -> PlanNode:
    drawn = {f"generator.{name}" for name in node.generators} if not node.composite else set[str]()
    return PlanNode(
        path=node.path,
        name=node.name,
        key=node.key,
        kind=node.kind,
        fingerprint=node.fingerprint,
        component=node.component or "",
        composite=node.composite,
        rows=node.declaration.rows,
        accesses=tuple(a for a in node.own.accesses if a.state not in drawn),
        opaque=node.accesses.opaque,
        generators=node.generators,
        structure=node.structure,
        count=node.count,
        rewritable=node.rewritable,
        calls=node.calls_per_parent,
    )


def _components(graph: Graph) -> tuple[PlanComponent, ...]:
    found: dict[str, PlanComponent] = {}
    for node in graph.nodes:
        if node.component is None:
            continue
        known = found.setdefault(
            node.component,
            PlanComponent(node.component, node.component_class or "", (), node.shardable),
        )
        own = f"{node.component}."
        keyed = [
            a.state.removeprefix(own)
            for a in node.accesses.accesses
            if a.keyed and a.state.startswith(own)
        ]
        states = tuple(dict.fromkeys((*known.batch_states, *keyed)))
        found[node.component] = replace(known, batch_states=states)
    return tuple(found.values())
