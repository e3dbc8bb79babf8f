"""Which composites run whole, as one task.

A composite that declares nothing is glue around what it calls: its children are tasks of their own,
unless all of them live with its own component. One that declares accesses of its own does work between
its calls. It is always one task, so that this work keeps its place in the program's order; nothing below
it is moved or split. A task runs in one place: what such a composite calls must live where it runs.

Paper: §4.2 (execution hierarchy); docs/legality.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from rose_opt.plan.hierarchy import (
    AccessesOf,
    Hierarchy,
    Nodes,
    PlanNode,
    inside,
    own_accesses,
    touching,
)
from rose_opt.plan.refusal import Refusal


def runs_whole(nodes: Nodes, node: PlanNode, accesses_of: AccessesOf = own_accesses) -> bool:
    """Whether a composite is one task: it has accesses of its own, or calls only its own component.

    >>> runs_whole(Hierarchy(()), PlanNode("it/a", "a", "", "exec", "", composite=True))
    False
    """
    if touching((node,), accesses_of):
        return True
    below = nodes.subtree(node.path)
    return bool(node.component) and all(n.component == node.component for n in below)


def anchored(hierarchy: Hierarchy, accesses_of: AccessesOf = own_accesses) -> Mapping[str, str]:
    """Components that must live in the program's own process, whole.

    Args:
        hierarchy: Nodes and components.
        accesses_of: Accesses of a node's own code.

    Returns:
        By component, the path of a composite with accesses of its own that calls it together with
        others, or with functions that touch states.
    """
    found: dict[str, str] = {}
    for node in hierarchy.nodes:
        if not node.composite or not touching((node,), accesses_of):
            continue
        below = hierarchy.subtree(node.path)
        at_home = {n.component for n in below if n.component}
        elsewhere = any(not n.component and _has_any(n, accesses_of) for n in below)
        if elsewhere or len(at_home) > 1:
            for name in at_home:
                found.setdefault(name, node.path)
    return found


def whole_above(
    hierarchy: Hierarchy, path: str, accesses_of: AccessesOf = own_accesses
) -> PlanNode | None:
    """The composite with accesses of its own that `path` is below, if there is one."""
    above = (n for n in hierarchy.nodes if n.path != path and inside(path, n.path) and n.composite)
    return next((n for n in above if touching((n,), accesses_of)), None)


def unreached(
    transform: str,
    subject: str,
    hierarchy: Hierarchy,
    path: str,
    accesses_of: AccessesOf = own_accesses,
) -> Refusal | None:
    """Why a transform cannot rearrange `path`: it is inside a composite that runs whole."""
    above = whole_above(hierarchy, path, accesses_of)
    if above is None:
        return None
    return Refusal(
        transform,
        subject,
        f"expected a place outside composites with accesses of their own, got {path} inside "
        f"{above.path}, which runs as one task",
        f"Move what {above.name} touches itself into a node that it calls.",
        (above.path,),
    )


def apart(
    transform: str,
    subject: str,
    hierarchy: Hierarchy,
    component: str,
    accesses_of: AccessesOf = own_accesses,
) -> Refusal | None:
    """Why a component cannot be built apart from the program: a composite needs it where it runs."""
    path = anchored(hierarchy, accesses_of).get(component)
    if path is None:
        return None
    name = hierarchy.node(path).name
    return Refusal(
        transform,
        subject,
        f"expected {component} in the program's own process, whole, since {path} has accesses of its "
        "own and calls it among others, got it apart",
        f"Move what {name} touches itself into a node that it calls.",
        (path,),
    )


def _has_any(node: PlanNode, accesses_of: AccessesOf) -> bool:
    return any(a.accesses or a.opaque for _, a in touching((node,), accesses_of))
