"""When a node may start while an earlier sibling still runs.

The same rules serve the optimizer's checks and the loading of a plan; no duration is ever read here.

Paper: §4.3.1; the rules are in docs/legality.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rose_opt.plan.hierarchy import (
    AccessesOf,
    Hierarchy,
    PlanEdge,
    PlanNode,
    own_accesses,
    touching,
)
from rose_opt.plan.refusal import Refusal, unlock
from rose_opt.plan.whole import unreached
from rose_trace.legality import first_conflict


def rewire_refusal(
    hierarchy: Hierarchy, later: str, earlier: str, accesses_of: AccessesOf = own_accesses
) -> Refusal | None:
    """Why a node cannot run beside an earlier sibling, or nothing.

    While `earlier` runs in a branch, the program goes on to `later` and through everything between.

    Args:
        hierarchy: Nodes and data edges.
        later: Path of the node that is to start early.
        earlier: Path of the sibling before it.
        accesses_of: Accesses of a leaf.

    Returns:
        The first reason against it, in program order.
    """
    return next(_against_rewire(hierarchy, later, earlier, accesses_of), None)


def between(hierarchy: Hierarchy, later: str, earlier: str) -> tuple[PlanNode, ...]:
    """Siblings after `earlier` up to and including `later`, in program order."""
    siblings = hierarchy.children(hierarchy.node(earlier).parent)
    names = [node.path for node in siblings]
    return siblings[names.index(earlier) + 1 : names.index(later) + 1]


def _against_rewire(h: Hierarchy, later: str, earlier: str, of: AccessesOf) -> Iterator[Refusal]:
    subject = f"{later} beside {earlier}"

    def refuse(reason: str, unlock: str, *nodes: str) -> Refusal:
        return Refusal("rewire", subject, reason, unlock, nodes)

    branch, node = h.node(earlier), h.node(later)
    order = [n.path for n in h.nodes]
    if (
        not branch.parent
        or branch.parent != node.parent
        or order.index(earlier) >= order.index(later)
    ):
        yield refuse(
            "expected two children of one parent in program order, got others",
            "Name two siblings, the later one first.",
            later,
            earlier,
        )
        return
    if not branch.rewritable:
        yield refuse(
            f"expected a branch that may be moved, got rose.iterations {earlier}",
            "Write it with @rose.loop: body(carry, item) -> (carry, output).",
            earlier,
        )
    hidden = unreached("rewire", subject, h, earlier, of)
    if hidden is not None:
        yield hidden
    for passed in between(h, later, earlier):
        for (a, x), (b, y) in itertools.product(
            touching(h.subtree(earlier), of), touching(h.subtree(passed.path), of)
        ):
            conflict = first_conflict(x, y)
            if conflict is not None:
                yield refuse(
                    f"expected no conflicting access, got {conflict} ({a.path} before {b.path})",
                    unlock(a, x, b, y),
                    a.path,
                    b.path,
                )
        yield from _against_waiting(h, passed, earlier, later, refuse_subject=subject)


def _against_waiting(
    h: Hierarchy, passed: PlanNode, earlier: str, later: str, refuse_subject: str
) -> Iterator[Refusal]:
    """Nothing on the way to `later` may need the whole of `earlier`."""
    for edge in h.crossing(earlier, passed.path):
        if edge.distance or h.node(edge.consumer).kind == "loop":
            continue  # a loop is handed its items; which iteration uses which is told by its nodes
        per_iteration = passed.kind == "loop" and not edge.all_iterations
        if per_iteration and h.node(earlier).kind == "loop":
            continue
        yield Refusal(
            "rewire",
            refuse_subject,
            f"expected each iteration of {later} to need finished iterations of {earlier}, got "
            f"{_need(h, edge, passed)}",
            f"Let one iteration of {later} use the values of one iteration of {earlier} only "
            "(e.g. normalise and shuffle within an epoch) if the algorithm allows it; Rose never "
            "changes what is computed.",
            (edge.producer, edge.consumer),
        )


def _need(h: Hierarchy, edge: PlanEdge, passed: PlanNode) -> str:
    if passed.kind != "loop":
        return f"{edge.consumer}, which needs what {edge.producer} returns"
    return f"{edge.consumer}, of which one iteration needs {edge.producer} of every iteration"
