"""Which nodes may have a lane: leaves that only read, in composites that are glue.

Lanes of a worker overlap with each other on the device, so nothing that writes a state may be in one. All
that is in no lane is ordered with every lane by the worker itself.
"""

from __future__ import annotations

from rose_opt.plan.hierarchy import AccessesOf, Hierarchy, inside, own_accesses
from rose_opt.plan.refusal import Refusal
from rose_opt.plan.whole import unreached
from rose_opt.plan.workers import Lane


def lane_refusal(
    hierarchy: Hierarchy, lane: Lane, accesses_of: AccessesOf = own_accesses
) -> Refusal | None:
    """Why a node cannot have a lane.

    Args:
        hierarchy: Nodes and components.
        lane: The lane.
        accesses_of: Accesses of a node's own code.

    Returns:
        The reason, or ``None`` if it can.

    Raises:
        PlanRefused: If there is no such node.
    """
    node = hierarchy.node(lane.path)
    subject = f"{lane.path} in {lane.name}"
    if not node.is_leaf:
        return Refusal(
            "lane",
            subject,
            f"expected a node that calls no other, got {node.kind} {node.name} with nodes below it",
            "Give lanes to the nodes that it calls.",
            (lane.path,),
        )
    if lane.sms < 0 or not lane.name:
        return Refusal(
            "lane",
            subject,
            f"expected a name and a number of SMs from 0 on, got {lane.name!r} and {lane.sms}",
            "Write 0 for no limit.",
            (lane.path,),
        )
    above = unreached("lane", subject, hierarchy, lane.path, accesses_of)
    if above is not None:
        return above
    access = accesses_of(node)
    written = [item for item in access.accesses if item.mode.writes]
    if access.opaque or written:
        found = "no declaration" if access.opaque else ", ".join(map(str, written))
        return Refusal(
            "lane",
            subject,
            f"expected a node that only reads states, got {found}",
            f"Leave {node.name} out of lanes: it then keeps its place among all others."
            if written
            else f"Declare what {node.name} touches, or pure=True if it touches no state.",
            (lane.path,),
        )
    return None


def opened(lanes: tuple[Lane, ...], path: str) -> bool:
    """Whether the composite at `path` runs as glue because a node below it has a lane."""
    return any(inside(lane.path, path) for lane in lanes)
