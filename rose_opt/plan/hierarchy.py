"""The execution hierarchy as a plan relies on it: nodes, components and the values that flow between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from rose_opt.plan.errors import PlanRefused
from rose_trace.legality import AccessSet, union_all
from rose_trace.records import Access, StateAccess


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One node of the execution hierarchy, as the plan relies on it.

    Attributes:
        path: Node path.
        name: Name with its component, e.g. ``policy.act``.
        key: Definition, ``module:qualname``.
        kind: ``exec``, ``loop`` or ``iteration``.
        fingerprint: Fingerprint of the definition.
        component: Instance name; empty for a function.
        composite: Whether its body calls other nodes.
        rows: As declared.
        accesses: Own declared accesses.
        opaque: A leaf without a declaration, or one seen to touch more than it declared.
        generators: Process-wide random generators it was seen to draw from (they are states).
        structure: JSON of the result's structure; ``None`` where it varied, then the value is waited for.
        count: Iterations of a loop; ``None`` where it varied.
        rewritable: Whether a loop's body may be rearranged; false for ``rose.iterations``.
        calls: Calls in one run of the parent's body; ``None`` where it varied.
    """

    path: str
    name: str
    key: str
    kind: str
    fingerprint: str
    component: str = ""
    composite: bool = False
    rows: bool | tuple[str, ...] = False
    accesses: tuple[Access, ...] = ()
    opaque: bool = False
    generators: tuple[str, ...] = ()
    structure: str | None = None
    count: int | None = None
    rewritable: bool = True
    calls: int | None = 1

    @property
    def parent(self) -> str:
        """Path of the enclosing node; empty for the root."""
        return self.path.rpartition("/")[0]

    @property
    def is_leaf(self) -> bool:
        """Whether it calls no other node."""
        return self.kind == "exec" and not self.composite

    @property
    def access_set(self) -> AccessSet:
        """Own accesses, including generators; what a composite was seen to draw, what it calls may have drawn."""
        seen = () if self.composite else self.generators
        extra = tuple(Access(f"generator.{name}", StateAccess.UPDATE) for name in seen)
        return AccessSet(self.accesses + extra, self.opaque)


@dataclass(frozen=True, slots=True)
class PlanComponent:
    """A component instance and how it was declared.

    Attributes:
        name: Instance name.
        key: ``module:qualname`` of the class.
        batch_states: States of which one row belongs to one row of the batch.
        shardable: Whether it can be built as shards.
        shards: Shards it is built as in this plan; 1 for whole.
        replicas: Whole instances that it is built as, for the chains of a temporal split; 1 for one.
    """

    name: str
    key: str
    batch_states: tuple[str, ...] = ()
    shardable: bool = False
    shards: int = 1
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class PlanEdge:
    """Values made by one node and used by another, within one run of the loop around both.

    Attributes:
        producer: Path of the node that made the values.
        consumer: Path of the node that takes them.
        loop: Path of the innermost loop around both.
        distance: Iterations of that loop between making and using.
        all_iterations: Whether one run of the consumer uses several iterations of the producer's loop.
        alignment: Consumer iteration j uses producer iteration ``j + alignment``; ``None`` where not so.
    """

    producer: str
    consumer: str
    loop: str
    distance: int = 0
    all_iterations: bool = False
    alignment: int | None = None


AccessesOf = Callable[[PlanNode], AccessSet]
"""Accesses of a node's own code: from the plan, or from the code that is about to run."""


def own_accesses(node: PlanNode) -> AccessSet:
    """What the plan says the node touches."""
    return node.access_set


class Nodes(Protocol):
    """Anything that knows the nodes below a path: a hierarchy or a plan."""

    def subtree(self, path: str) -> tuple[PlanNode, ...]:
        """The node at `path` and everything below it."""
        ...


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """What legality is decided from: no durations, no placement.

    Attributes:
        nodes: Nodes in program order of first appearance.
        components: Component instances.
        edges: Data edges.
    """

    nodes: tuple[PlanNode, ...]
    components: tuple[PlanComponent, ...] = ()
    edges: tuple[PlanEdge, ...] = ()

    def find(self, path: str) -> PlanNode | None:
        """The node at `path`, if there is one."""
        return next((item for item in self.nodes if item.path == path), None)

    def node(self, path: str) -> PlanNode:
        """The node at `path`.

        Raises:
            PlanRefused: If there is none.
        """
        found = self.find(path)
        if found is None:
            raise PlanRefused(
                f"Plan: expected a node at '{path}', got none. Record a new trace and plan again."
            )
        return found

    def component(self, name: str) -> PlanComponent | None:
        """The component instance called `name`, if it is known."""
        return next((item for item in self.components if item.name == name), None)

    def subtree(self, path: str) -> tuple[PlanNode, ...]:
        """The node at `path` and everything below it."""
        return tuple(n for n in self.nodes if inside(n.path, path))

    def children(self, path: str) -> tuple[PlanNode, ...]:
        """Nodes called directly from `path`, in program order."""
        return tuple(n for n in self.nodes if n.parent == path and n.path != path)

    def leaves(self, path: str) -> tuple[PlanNode, ...]:
        """Leaves at or below `path`, in program order."""
        return tuple(n for n in self.subtree(path) if n.is_leaf)

    def crossing(self, producer: str, consumer: str) -> tuple[PlanEdge, ...]:
        """Edges from below `producer` to below `consumer`."""
        return tuple(
            edge
            for edge in self.edges
            if inside(edge.producer, producer) and inside(edge.consumer, consumer)
        )


def inside(path: str, ancestor: str) -> bool:
    """Whether `path` is `ancestor` or lies below it.

    >>> inside("iteration/rollout/sim.step", "iteration/rollout")
    True
    """
    return path == ancestor or path.startswith(f"{ancestor}/")


def touching(
    nodes: Iterable[PlanNode], accesses_of: AccessesOf = own_accesses
) -> tuple[tuple[PlanNode, AccessSet], ...]:
    """Nodes whose own code touches states, with what it touches, in the order given.

    These are leaves, pure ones included, and composites that declare accesses of their own. The code of
    other composites and of loops is glue, which touches nothing.

    >>> glue = PlanNode("it/a", "a", "", "exec", "", composite=True)
    >>> len(touching((glue, PlanNode("it/a/b", "b", "", "exec", ""))))
    1
    """
    found = ((node, accesses_of(node)) for node in nodes if node.kind == "exec")
    return tuple((n, a) for n, a in found if n.is_leaf or a.accesses or a.opaque)


def subtree_accesses(nodes: Nodes, path: str, accesses_of: AccessesOf = own_accesses) -> AccessSet:
    """What anything below `path` may touch: the reservation of a branch, the accesses of a composite."""
    return union_all(access for _, access in touching(nodes.subtree(path), accesses_of))
