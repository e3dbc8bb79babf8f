"""The execution hierarchy of a trace: nodes, their places, the iteration each invocation is in.

Paper: §4.2, "Execution hierarchy".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rose_opt.facts.buffers import with_buffers
from rose_opt.facts.sampled import load_sums
from rose_opt.facts.store import Store
from rose_opt.graph import GraphNode, NodeKind
from rose_trace.legality import AccessSet
from rose_trace.pytree import Structure
from rose_trace.records import Access, Declaration, NodePath, StateAccess

MAX_STRUCTURES = 256  # ours: more different result structures than this count as varying


class FactsError(ValueError):
    """A trace from which no facts can be taken."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path is in the hierarchy.

    Attributes:
        path_id: Position in program order of first invocations; the root is 0.
        parent: `path_id` of the enclosing node, -1 for the root.
        loop: `path_id` of the nearest enclosing loop, -1 for the root.
        hops: Composites between that loop and this node.
        depth: Loops around this node.
    """

    path_id: int
    parent: int
    loop: int
    hops: int
    depth: int


def build_hierarchy(
    store: Store, root: str | None = None, allow_incomplete: bool = False
) -> tuple[tuple[GraphNode, ...], dict[str, list[str]]]:
    """Load the invocations of one root and name their nodes.

    Args:
        store: Database over the trace; gets the tables ``path``, ``place``, ``root``, ``cell`` and
            ``span``.
        root: Path of the root; by default the one that most of the recorded time was spent in.
        allow_incomplete: Drop invocations whose caller is missing instead of refusing the trace.

    Returns:
        Nodes in program order of their first invocation, parents first, and by node every recorded
        structure of a result on the whole batch, as JSON.

    Raises:
        FactsError: If no call of the root finished, or callers are missing.
    """
    paths = store.run("paths", root=_choose_root(store, root))
    places = _places(paths)
    store.fill(
        "place",
        "path_id INTEGER, parent_path_id INTEGER, loop_path_id INTEGER, hops INTEGER, depth INTEGER",
        [(p.path_id, p.parent, p.loop, p.hops, p.depth) for p in places],
    )
    _load_invocations(store, places, allow_incomplete)
    if missing := load_sums(store):
        raise FactsError(
            f"{store.spans}: expected every node in an iteration that was recorded in full, got "
            f"{', '.join(missing)} only in others. Record with more steps, or without sampling."
        )
    calls = {row["path_id"]: row for row in store.run("calls")}
    bodies = {row["path_id"]: row["bodies"] for row in store.run("bodies")}
    parents = {place.parent for place in places}
    nodes = tuple(
        _node(
            row,
            None if place.parent < 0 else paths[place.parent],
            calls,
            bodies.get(place.parent, 0),
            place.path_id in parents,
        )
        for row, place in zip(paths, places, strict=True)
    )
    return with_buffers(store, nodes), {row["path"]: row["structures"] or [] for row in paths}


def _choose_root(store: Store, root: str | None) -> str:
    candidates = [row["path"] for row in store.run("roots")]
    if not candidates or (root is not None and root not in candidates):
        wanted = (
            "a finished call of a rose.iteration" if root is None else f"a finished call of {root}"
        )
        raise FactsError(
            f"{store.spans}: expected {wanted}, got {', '.join(candidates) or 'none'}. "
            "Decorate the function that is one RL iteration with rose.iteration and record it."
        )
    return root or candidates[0]


def _places(paths: Sequence[Mapping[str, Any]]) -> list[Place]:
    by_path: dict[str, Place] = {}
    kinds = {row["path"]: row["kind"] for row in paths}
    for row in paths:
        path: str = row["path"]
        parent = path[: len(path) - len(row["node"]) - 1]
        if not by_path:
            by_path[path] = Place(row["path_id"], -1, -1, 0, 0)
        elif parent not in by_path:
            raise FactsError(
                f"Node {path}: expected its caller {parent} to be recorded before it, got no such "
                "invocation. Record the program again."
            )
        else:
            outer = by_path[parent]
            inside = kinds[parent] != "exec"
            by_path[path] = Place(
                row["path_id"],
                outer.path_id,
                outer.path_id if inside else outer.loop,
                0 if inside else outer.hops + 1,
                outer.depth + 1 if inside else outer.depth,
            )
    return list(by_path.values())


def _load_invocations(store: Store, places: Sequence[Place], allow_incomplete: bool) -> None:
    store.run("invocations")
    (found,) = store.run("orphans")
    if found["orphans"] and not allow_incomplete:
        raise FactsError(
            f"{store.spans}: expected the caller of every invocation, got {found['orphans']} without "
            f"one (such as {found['example']}). Record again, or allow an incomplete trace."
        )
    for hops in range(1, max(place.hops for place in places) + 1):
        store.run("homes", hops=hops)
    store.run("cells")
    for depth in range(1, max(place.depth for place in places) + 1):
        store.run("chains", depth=depth)
    store.run("span")


def _node(
    row: Mapping[str, Any],
    parent: Mapping[str, Any] | None,
    calls: Mapping[int, Mapping[str, Any]],
    bodies: int,
    composite: bool,
) -> GraphNode:
    declared: dict[str, Any] = json.loads(row["declaration"] or "{}")
    rows = declared.get("rows", False)
    declaration = Declaration(
        tuple(declared.get("reads", ())),
        tuple(declared.get("updates", ())),
        tuple(declared.get("refreshes", ())),
        bool(declared.get("pure", False)),
        rows if isinstance(rows, bool) else tuple(rows),
    )
    component_class: str | None = declared.get("component")
    component = None if component_class is None else row["node"].partition(".")[0]
    kind = cast("NodeKind", row["kind"])
    generators = tuple(sorted(filter(None, (row["generators"] or "").split(","))))
    accesses = declaration.accesses(component, declared.get("batch_states", ()))
    accesses += tuple(Access(f"generator.{name}", StateAccess.UPDATE) for name in generators)
    # One path with several definitions is not one node: treat it as unknown.
    opaque = not row["uniform"] or (kind == "exec" and not composite and declaration.silent)
    called = calls.get(row["path_id"], {"low": 1, "high": 1, "called": 0})
    steady = parent is None or (called["low"] == called["high"] and called["called"] == bodies)
    return GraphNode(
        path=NodePath(row["path"]),
        name=row["node"],
        key=row["key"] or "",
        kind=kind,
        parent=None if parent is None else NodePath(parent["path"]),
        declaration=declaration,
        accesses=AccessSet(accesses, opaque),
        fingerprint=row["fingerprint"] or "",
        count=row["count_low"]
        if kind == "loop" and row["count_low"] == row["count_high"]
        else None,
        calls_per_parent=called["low"] if steady else None,
        component=component,
        component_class=component_class,
        shardable=bool(declared.get("shardable", False)),
        composite=composite and kind == "exec",
        structure=_structure(row["structures"] or []),
        rewritable=bool(row["rewritable"] and row["uniform"]),
        generators=generators,
    )


def _structure(recorded: list[str]) -> str | None:
    """The structure of all results; shapes may differ, containers may not."""
    if not recorded or len(recorded) > MAX_STRUCTURES:
        return None
    first = Structure.from_json(recorded[0])
    return (
        recorded[0] if all(first.matches(Structure.from_json(text)) for text in recorded) else None
    )
