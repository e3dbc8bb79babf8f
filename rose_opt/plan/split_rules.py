"""When the rows of a loop may run in groups, and when their results can be put together again.

The same rules serve the optimizer's checks and the loading of a plan. They look at declarations, values
and structures alone: no duration is ever read here, so nothing about speed can make an overlap legal.

Paper: §4.3.1; the rules are in docs/legality.md.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

from rose_opt.plan.hierarchy import (
    AccessesOf,
    Hierarchy,
    PlanNode,
    inside,
    own_accesses,
    touching,
)
from rose_opt.plan.refusal import Refusal, declare
from rose_opt.plan.whole import apart, unreached
from rose_trace.legality import AccessSet, Conflict, first_conflict, partition
from rose_trace.pytree import Leaf, Structure
from rose_trace.records import BUFFER, GENERATOR


def split_refusal(
    hierarchy: Hierarchy,
    loop: str,
    groups: int,
    rows: int | None,
    accesses_of: AccessesOf = own_accesses,
) -> Refusal | None:
    """Why the rows of a loop cannot run in groups, or nothing.

    Args:
        hierarchy: Nodes and components.
        loop: Path of the loop.
        groups: Number of groups.
        rows: Rows of the batch in the loop; ``None`` where the trace does not tell.
        accesses_of: Accesses of a leaf.

    Returns:
        The first reason against it, in program order.
    """
    return next(_against_split(hierarchy, loop, groups, rows, accesses_of), None)


def merge_refusal(hierarchy: Hierarchy, loop: str, rows: int | None) -> Refusal | None:
    """Why the results of a loop's groups cannot be put together again, or nothing.

    Everything the nodes of the loop return must have one row per row of the batch on axis 0: that is
    how the merge restores the order, whichever group finishes first.

    Args:
        hierarchy: Nodes and components.
        loop: Path of the loop.
        rows: Rows of the whole batch; shapes are compared with it where it is known.

    Returns:
        The first reason against it, in program order.
    """
    for node in hierarchy.subtree(loop):
        if node.structure is None:
            continue
        what = "carry" if node.path == loop else "result"
        for place, leaf in _leaves(Structure.from_json(node.structure)):
            problem = _without_rows(leaf, rows)
            if problem:
                return Refusal(
                    "merge",
                    loop,
                    f"expected results with one row per row of the batch, got {problem} at "
                    f"{place or 'the top'} of the {what} of {node.path}",
                    f"Return it per row (shape [{rows or 'rows'}, ...]) from {node.name}, or compute it "
                    "after the loop from values that have rows.",
                    (node.path,),
                )
    return None


def _against_split(
    h: Hierarchy, loop: str, groups: int, rows: int | None, of: AccessesOf
) -> Iterator[Refusal]:
    def refuse(reason: str, unlock: str, *nodes: str) -> Refusal:
        return Refusal("split-spatial", loop, reason, unlock, nodes)

    node = h.node(loop)
    if node.kind != "loop":
        yield refuse(f"expected a loop, got {node.kind} {loop}", "Name a rose.loop.", loop)
    if not node.rewritable:
        yield refuse(
            "expected a loop that may be rewritten, got rose.iterations",
            "Write it with @rose.loop: body(carry, item) -> (carry, output).",
            loop,
        )
    for inner in h.subtree(loop):
        if inner.kind == "loop" and inner.path != loop:
            yield refuse(
                f"expected a loop without loops inside, got {inner.path}",
                f"Split {inner.path} instead.",
                inner.path,
            )
    hidden = unreached("split-spatial", loop, h, loop, of)
    if hidden is not None:
        yield hidden
    leaves = touching(h.subtree(loop), of)
    if not leaves:
        yield refuse("expected nodes inside, got none", "Decorate what the loop calls.", loop)
    for leaf, access in leaves:
        if access.opaque:
            yield refuse(
                f"expected every {_kind(leaf)} to declare its states, got {leaf.path} without a declaration",
                declare(leaf),
                leaf.path,
            )
        if not (leaf.rows or _in_rows(h, leaf)):
            yield refuse(
                f"expected every {_kind(leaf)} to work row by row, got {leaf.path} without rows=True",
                f"Declare @rose.node(rows=True) on {leaf.name} if its row i depends on row i alone.",
                leaf.path,
            )
    yield from _against_groups(h, loop, leaves, of)
    if rows is None:
        yield refuse(
            "expected a batch whose rows the trace shows, got no tensor with rows",
            "Return tensors or arrays with one row per row of the batch.",
            loop,
        )
    elif not 1 < groups <= rows:
        yield refuse(
            f"expected 2 to {rows} groups for {rows} rows, got {groups}", "Ask for fewer.", loop
        )


def _against_groups(
    h: Hierarchy, loop: str, leaves: tuple[tuple[PlanNode, AccessSet], ...], of: AccessesOf
) -> Iterator[Refusal]:
    """Two groups must touch nothing in common, and each component must come apart by rows."""
    first, second = partition(2, 2)
    for (a, x), (b, y) in itertools.product(leaves, leaves):
        conflict = first_conflict(
            AccessSet(x.accesses, x.opaque, first), AccessSet(y.accesses, y.opaque, second)
        )
        if conflict is not None:
            yield Refusal(
                "split-spatial",
                loop,
                f"expected groups that touch nothing in common, got {conflict} "
                f"({a.path} of group 0 against {b.path} of group 1)",
                _unlock_groups(a, conflict),
                tuple(dict.fromkeys((a.path, b.path))),
            )
    for name in sharded_components(h, loop):
        component = h.component(name)
        if component is None or not component.shardable:
            yield Refusal(
                "split-spatial",
                loop,
                f"expected components that can be built as shards, got {name} whose batch states "
                f"{_keyed_states(h, loop, name)} are touched inside the loop",
                f"Give {name} a classmethod shard(cls, index, count, *args) that returns the constructor "
                "arguments of one shard.",
                tuple(leaf.path for leaf, _ in leaves if leaf.component == name),
            )
        together = apart("split-spatial", loop, h, name, of)
        if together is not None:
            yield together
        for node, _ in touching(h.nodes, of):
            if node.component == name and not (node.rows or _in_rows(h, node)):
                yield Refusal(
                    "split-spatial",
                    loop,
                    f"expected every node of {name}, which is built as shards, to work row by row, got "
                    f"{node.path} without rows=True",
                    f"Declare @rose.node(rows=True) on {node.name} if its row i depends on row i alone.",
                    (node.path,),
                )


def sharded_components(hierarchy: Hierarchy, loop: str) -> tuple[str, ...]:
    """Components whose batch states are touched inside `loop`: a split builds them as shards."""
    return tuple(
        dict.fromkeys(
            node.component
            for node, _ in touching(hierarchy.subtree(loop))
            if any(a.keyed and a.state.startswith(f"{node.component}.") for a in node.accesses)
        )
    )


def _keyed_states(h: Hierarchy, loop: str, component: str) -> str:
    states = [
        a.state
        for node, _ in touching(h.subtree(loop))
        if node.component == component
        for a in node.accesses
        if a.keyed and a.state.startswith(f"{component}.")
    ]
    return ", ".join(dict.fromkeys(states))


def _unlock_groups(node: PlanNode, conflict: Conflict) -> str:
    access = conflict.earlier or conflict.later
    state = access.state if access is not None else ""
    if state.startswith(GENERATOR):
        return (
            f"Let {node.name} draw from rose_trace.rng.RowGenerator, keyed by seed, row and step, "
            f"instead of the shared '{state}'."
        )
    if state.startswith(BUFFER):
        return f"Let {state.removeprefix(BUFFER)} return a copy: it hands the same storage out each time."
    component, _, name = state.partition(".")
    return (
        f"Declare batch_states=['{name}'] on {component} if one row of '{state}' belongs to one row of "
        "the batch; a statistic over the whole batch belongs after the loop."
    )


def _kind(node: PlanNode) -> str:
    return "leaf" if node.is_leaf else "composite with accesses of its own"


def _in_rows(h: Hierarchy, node: PlanNode) -> bool:
    """Whether a composite around the node, inside the same loop, works row by row."""
    around = [n for n in h.nodes if n.composite and n.rows and n.path != node.path]
    return any(inside(node.path, n.path) for n in around)


def _leaves(structure: Structure, place: str = "") -> Iterator[tuple[str, Leaf]]:
    if structure.leaf is not None:
        yield place, structure.leaf
    for index, child in enumerate(structure.children):
        key = structure.keys[index] if structure.keys else str(index)
        yield from _leaves(child, f"{place}.{key}" if place else key)


def _without_rows(leaf: Leaf, rows: int | None) -> str:
    """What is wrong with a leaf that has no row axis; empty if it has one."""
    if leaf.shape is None:
        return f"a plain {leaf.type}"
    if not leaf.shape:
        return f"a {leaf.type} without axes"
    if rows is not None and leaf.shape[0] != rows:
        return f"a {leaf.type} of shape {json.dumps(list(leaf.shape))}"
    return ""
