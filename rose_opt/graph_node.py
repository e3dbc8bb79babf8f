"""One node and one data edge of the execution graph, and their plain data.

Paper: §4.2 (execution hierarchy), §4.3.1 (dependencies).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rose_trace.legality import AccessSet, RowRange
from rose_trace.records import Access, Declaration, NodePath, StateAccess

NodeKind = Literal["exec", "loop", "iteration"]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One position in the execution hierarchy; it stands for all its invocations.

    Attributes:
        path: Position, e.g. ``iteration/rollout/interact/policy.act``.
        name: Last part of the path, with the component instance.
        key: ``module:qualname`` of the definition.
        kind: ``exec``, ``loop`` or ``iteration`` (the root).
        parent: Path of the enclosing node, ``None`` for the root.
        declaration: What the author declared.
        accesses: Own declared accesses; opaque for a leaf that declares nothing.
        fingerprint: Hash of code and declaration.
        count: Iterations of one call of a loop; ``None`` where it varies or for other kinds.
        calls_per_parent: Calls in one run of the parent's body (one iteration of a loop); ``None``
            where it varies.
        component: Name of the component instance it is a method of.
        component_class: ``module:qualname`` of that instance's class.
        shardable: Whether the class can be built as shards.
        composite: Whether it calls other nodes.
        structure: JSON of the result's pytree (of the carry, for a loop); ``None`` where it varies.
        rewritable: Whether its body may be rearranged; false for ``rose.iterations``.
        generators: Process-wide random generators it was seen to draw from; they are among its
            accesses as updates of ``generator.<name>``.
        beside: Earlier siblings that it need not wait for: all other siblings before it come first.
        turns: First iteration and step of a chain of a temporally split loop, whose iteration i is the
            recorded iteration ``first + step * i``; ``None`` for other nodes.
    """

    path: NodePath
    name: str
    key: str
    kind: NodeKind
    parent: NodePath | None
    declaration: Declaration
    accesses: AccessSet
    fingerprint: str
    count: int | None = None
    calls_per_parent: int | None = 1
    component: str | None = None
    component_class: str | None = None
    shardable: bool = False
    composite: bool = False
    structure: str | None = None
    rewritable: bool = True
    generators: tuple[str, ...] = ()
    beside: tuple[NodePath, ...] = ()
    turns: tuple[int, int] | None = None

    @property
    def is_loop(self) -> bool:
        """Whether its body runs once per iteration (the root counts as a loop)."""
        return self.kind != "exec"

    @property
    def own(self) -> AccessSet:
        """What its own code touches: what a composite was seen to draw, what it calls may have drawn."""
        if not self.composite:
            return self.accesses
        declared = {a.state for a in self.declaration.accesses(self.component)}
        seen = {f"generator.{name}" for name in self.generators} - declared
        kept = tuple(a for a in self.accesses.accesses if a.state not in seen)
        return replace(self.accesses, accesses=kept)

    @property
    def touches(self) -> bool:
        """Whether its own code may touch states: a leaf, or a composite that declares accesses."""
        own = self.own
        return self.kind == "exec" and bool(not self.composite or own.accesses or own.opaque)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        declared = self.declaration
        return {
            "path": self.path,
            "name": self.name,
            "key": self.key,
            "kind": self.kind,
            "parent": self.parent,
            "declaration": {
                "reads": list(declared.reads),
                "updates": list(declared.updates),
                "refreshes": list(declared.refreshes),
                "pure": declared.pure,
                "rows": declared.rows if isinstance(declared.rows, bool) else list(declared.rows),
            },
            "accesses": _accesses_data(self.accesses),
            "fingerprint": self.fingerprint,
            "count": self.count,
            "calls_per_parent": self.calls_per_parent,
            "component": self.component,
            "component_class": self.component_class,
            "shardable": self.shardable,
            "composite": self.composite,
            "structure": self.structure,
            "rewritable": self.rewritable,
            "generators": list(self.generators),
            "beside": list(self.beside),
            **({} if self.turns is None else {"turns": list(self.turns)}),
        }

    @staticmethod
    def from_data(data: dict[str, Any]) -> GraphNode:
        """Inverse of `to_data`."""
        declared = data["declaration"]
        rows = declared["rows"]
        declaration = Declaration(
            tuple(declared["reads"]),
            tuple(declared["updates"]),
            tuple(declared["refreshes"]),
            declared["pure"],
            rows if isinstance(rows, bool) else tuple(rows),
        )
        rest = {
            key: value
            for key, value in data.items()
            if key not in ("declaration", "accesses", "generators", "beside", "turns")
        }
        return GraphNode(
            declaration=declaration,
            accesses=_accesses_from(data["accesses"]),
            generators=tuple(data["generators"]),
            beside=tuple(data["beside"]),
            turns=tuple(data["turns"]) if "turns" in data else None,
            **rest,
        )


@dataclass(frozen=True, slots=True)
class DataEdge:
    """Values made by one node and used by another.

    Attributes:
        producer: Path of the node that made the values.
        consumer: Path of the node that takes them.
        loop: Path of the innermost loop that both invocations are in.
        distance: Iterations of that loop between making and using.
        all_iterations: One run of the consumer's side uses values of more than one iteration of the
            producer's own loop, so it waits for the whole loop.
        alignment: Where consumer and producer are in sibling loops: consumer iteration j uses producer
            iteration ``j + alignment``, always; ``None`` where this is not so.
    """

    producer: NodePath
    consumer: NodePath
    loop: NodePath
    distance: int = 0
    all_iterations: bool = False
    alignment: int | None = None

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @staticmethod
    def from_data(data: dict[str, Any]) -> DataEdge:
        """Inverse of `to_data`."""
        return DataEdge(**data)


def _accesses_data(accesses: AccessSet) -> dict[str, Any]:
    return {
        "declared": [[a.mode.value, a.state, a.keyed] for a in accesses.accesses],
        "opaque": accesses.opaque,
        "rows": None if accesses.rows is None else [accesses.rows.start, accesses.rows.stop],
    }


def _accesses_from(data: dict[str, Any]) -> AccessSet:
    declared = tuple(
        Access(state, StateAccess(mode), keyed) for mode, state, keyed in data["declared"]
    )
    return AccessSet(
        declared, data["opaque"], None if data["rows"] is None else RowRange(*data["rows"])
    )
