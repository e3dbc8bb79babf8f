"""When the readers of a state may work on a private copy of it.

The copy is one of the component whose nodes read the state: a second whole instance, put into the state
of the first right before the readers start. Native order decides which version that is. From then on the
readers touch the copy, so whoever writes the state later need not wait for them.

What a copy was made of must not change while it is used, so nothing below the readers writes what a node
on the copy reads; and a node on the copy writes nothing, since nobody would look for it there.

Does not handle: readers that are functions, and readers inside a loop that is split.

Paper: beyond the paper; it makes way for §4.3.1, "Rewire"; the rules are in docs/legality.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rose_opt.plan.hierarchy import (
    AccessesOf,
    Hierarchy,
    PlanNode,
    inside,
    own_accesses,
    touching,
)
from rose_opt.plan.refusal import Refusal, declare
from rose_opt.plan.whole import anchored, unreached, whole_above
from rose_trace.legality import AccessSet
from rose_trace.records import GENERATOR, SEEN, Access, StateAccess

NAME = "privatise"

MARK = "~"
"""Between the name of what is copied and whom it is copied for."""


def private_state(state: str, readers: str) -> str:
    """Name of the copy that readers work on.

    >>> private_state("policy.weights", "iteration/rollout/interact")
    'policy.weights~rollout_interact'
    """
    below = readers.partition("/")[2]
    return f"{state}{MARK}{re.sub(r'[^A-Za-z0-9]', '_', below)}"


def copy_path(state: str, readers: str) -> str:
    """Path of the node that makes the copy, a sibling of the readers.

    >>> copy_path("policy.weights", "iteration/rollout")
    'iteration/policy.weights~rollout#copy'
    """
    return f"{readers.rpartition('/')[0]}/{private_state(state, readers)}#copy"


def private_components(
    hierarchy: Hierarchy, state: str, readers: str, accesses_of: AccessesOf = own_accesses
) -> tuple[str, ...]:
    """Components whose nodes below `readers` touch a state: each gets a private instance."""
    below = touching(hierarchy.subtree(readers), accesses_of)
    found = (n.component for n, s in below if any(a.state == state for a in s.accesses))
    return tuple(dict.fromkeys(name for name in found if name))


def privatise_refusal(
    hierarchy: Hierarchy, state: str, readers: str, accesses_of: AccessesOf = own_accesses
) -> Refusal | None:
    """Why the readers of a state cannot work on a copy, or nothing.

    Args:
        hierarchy: Nodes and components.
        state: Absolute state name.
        readers: Path of the node below which everything reads the copy.
        accesses_of: Accesses of a node's own code.

    Returns:
        The first reason against it, in program order.
    """
    return next(_against(hierarchy, state, readers, accesses_of), None)


def on_copies(access: AccessSet, states: Mapping[str, str]) -> AccessSet:
    """The same accesses, with the states that have a copy by the copy's name.

    >>> act = AccessSet((Access("policy.weights", StateAccess.READ),))
    >>> str(on_copies(act, {"policy.weights": "policy.weights~rollout"}).accesses[0])
    'read policy.weights~rollout'
    """
    if not any(a.state in states for a in access.accesses):
        return access
    return replace(
        access,
        accesses=tuple(replace(a, state=states.get(a.state, a.state)) for a in access.accesses),
    )


def copying(hierarchy: Hierarchy, state: str, readers: str, of: AccessesOf) -> PlanNode:
    """The node that makes the copy: it reads all that the component holds, and refreshes the readers' state."""
    below = touching(hierarchy.subtree(readers), of)
    keyed = any(a.keyed for _, s in below for a in s.accesses if a.state == state)
    path = copy_path(state, readers)
    owners = private_components(hierarchy, state, readers, of)
    held = dict.fromkeys(s for name in owners for s in _held(hierarchy, name, of))
    return PlanNode(
        path=path,
        name=path.rpartition("/")[2],
        key="",
        kind="exec",
        fingerprint="",
        accesses=(
            *(Access(s, StateAccess.READ, keyed and s == state) for s in {state: None} | held),
            Access(private_state(state, readers), StateAccess.REFRESH, keyed),
        ),
    )


def _held(h: Hierarchy, component: str, of: AccessesOf) -> Iterator[str]:
    """States that a component may hold: what its nodes touch, and what bears its name."""
    for node, access in touching(h.nodes, of):
        for item in access.accesses:
            mine = node.component == component or item.state.startswith(f"{component}.")
            if mine and MARK not in item.state and not item.state.startswith(SEEN):
                yield item.state


def _against(h: Hierarchy, state: str, readers: str, of: AccessesOf) -> Iterator[Refusal]:
    subject = f"{state} for {readers}"

    def refuse(reason: str, unlock: str, *nodes: str) -> Refusal:
        return Refusal(NAME, subject, reason, unlock, nodes)

    if not h.node(readers).parent:
        yield refuse("expected a node below the root, got the root", "Name a loop.", readers)
        return
    if h.find(copy_path(state, readers)) is not None:
        yield refuse("expected one copy, got a second one", "Drop one of the two.", readers)
    hidden = unreached(NAME, subject, h, readers, of)
    if hidden is not None:
        yield hidden
    if not _in_component(h, state):
        yield refuse(
            f"expected a state that a component holds, got '{state}'",
            "Keep it in a @rose.component, which can be copied.",
            readers,
        )
    below = touching(h.subtree(readers), of)
    for node, access in below:
        if access.opaque:
            yield refuse(
                f"expected every leaf to declare its states, got {node.path} without a declaration",
                declare(node),
                node.path,
            )
    reading = [(n, a) for n, s in below for a in s.accesses if a.state == state]
    for node, access in reading:
        if access.mode.writes:
            yield refuse(
                f"expected only reads of '{state}', got {access.mode.value} by {node.path}",
                f"Let {node.name} work on a state of its own.",
                node.path,
            )
        if not node.component:
            yield refuse(
                f"expected readers that are methods of a component, which can be copied, got {node.path}",
                f"Make {node.name} a method of the @rose.component that holds '{state}'.",
                node.path,
            )
    if not reading:
        yield refuse(
            f"expected readers of '{state}', got none", "Name a node that reads it.", readers
        )
    for component in private_components(h, state, readers, of):
        yield from _against_instance(h, component, readers, subject, of)


def _in_component(h: Hierarchy, state: str) -> bool:
    """Whether a state is one of a component, or a copy of one."""
    return h.component(state.rpartition(".")[0]) is not None


def _against_instance(
    h: Hierarchy, component: str, readers: str, subject: str, of: AccessesOf
) -> Iterator[Refusal]:
    """All nodes of the component below the readers run on the copy, and must find there what they need."""
    below = touching(h.subtree(readers), of)
    written = {a.state: node for node, s in below for a in s.accesses if a.mode.writes}
    elsewhere = {
        a.state
        for _, s in touching(h.nodes, of)
        for a in s.accesses
        if a.mode.writes and not _in_component(h, a.state) and not a.state.startswith(SEEN)
    }
    home = anchored(h, of).get(component)
    if home is not None and inside(home, readers):
        yield Refusal(
            NAME,
            subject,
            f"expected {component} to be called alone, got {home}, which has accesses of its own and calls it "
            "among others",
            f"Move what {h.node(home).name} touches itself into a node that it calls.",
            (home,),
        )
    for node, access in below:
        if node.component != component:
            continue
        above = whole_above(h, node.path, of)
        if above is not None and above.component != component:
            yield Refusal(
                NAME,
                subject,
                f"expected {node.path} to run on a copy of {component}, got it inside {above.path}, which runs "
                "as one task",
                f"Move what {above.name} touches itself into a node that it calls.",
                (node.path, above.path),
            )
        mine = private_state("", readers)
        other = next((a.state for a in access.accesses if MARK in a.state.removesuffix(mine)), None)
        if other is not None:
            yield Refusal(
                NAME,
                subject,
                f"expected nodes of {component} to run on one copy, got '{other}' for {node.path}",
                "Drop one of the two.",
                (node.path,),
            )
        for item in access.accesses:
            if item.state in elsewhere:
                yield Refusal(
                    NAME,
                    subject,
                    f"expected nodes of {component}, which run on a copy, to read only what components hold, got "
                    f"{item.mode.value} of '{item.state}' by {node.path}",
                    f"Pass the value to {node.name} as an argument.",
                    (node.path,),
                )
            writer = node if item.mode.writes else written.get(item.state)
            if writer is not None:
                yield Refusal(
                    NAME,
                    subject,
                    f"expected nodes of {component}, which run on a copy, to read only what nothing below "
                    f"{readers} writes, got {item.mode.value} of '{item.state}' by {node.path}"
                    + ("" if writer is node else f", written by {writer.path}"),
                    f"Keep '{item.state}' in a component of its own."
                    if not item.state.startswith(GENERATOR)
                    else f"Let {writer.name} draw from rose_trace.rng.RowGenerator instead.",
                    tuple(dict.fromkeys((node.path, writer.path))),
                )
