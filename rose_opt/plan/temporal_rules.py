"""When iterations of a loop may run in several chains, each on instances of its own.

A loop is free if no iteration inherits anything from another. What every iteration writes must then
begin with a refresh, and each chain needs an instance of it: live range k is bound to instance
``k mod groups``, in native order, and what comes after the loop finds the last one.

The same rules serve the optimizer's checks and the loading of a plan; no duration is ever read here.

Paper: §4.2 (free loops), §4.3.1 (temporal split); the rules are in docs/legality.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from rose_trace.legality import AccessSet
from rose_trace.pytree import Structure
from rose_trace.records import BUFFER, GENERATOR, Access, StateAccess

Leaves = tuple[tuple[PlanNode, AccessSet], ...]
"""What touches states in a loop, and what it touches, in program order."""

NAME = "split-temporal"


def temporal_refusal(
    hierarchy: Hierarchy, loop: str, groups: int, accesses_of: AccessesOf = own_accesses
) -> Refusal | None:
    """Why the iterations of a loop cannot run in several chains, or nothing.

    Args:
        hierarchy: Nodes, components and data edges.
        loop: Path of the loop.
        groups: Number of chains.
        accesses_of: Accesses of a leaf.

    Returns:
        The first reason against it, in program order.
    """
    return next(_against(hierarchy, loop, groups, accesses_of), None)


def renamed_states(
    hierarchy: Hierarchy, loop: str, accesses_of: AccessesOf = own_accesses
) -> tuple[str, ...]:
    """States that iterations of `loop` write: each chain needs an instance of them.

    >>> renamed_states(Hierarchy((PlanNode("it/l", "l", "", "loop", ""),)), "it/l")
    ()
    """
    leaves = touching(hierarchy.subtree(loop), accesses_of)
    written = [a.state for _, s in leaves for a in s.accesses if a.mode.writes]
    return tuple(dict.fromkeys(written))


def replicated_components(
    hierarchy: Hierarchy, loop: str, accesses_of: AccessesOf = own_accesses
) -> tuple[str, ...]:
    """Components that hold what iterations of `loop` write: a temporal split builds replicas of them."""
    owners = (_owner(hierarchy, state) for state in renamed_states(hierarchy, loop, accesses_of))
    return tuple(dict.fromkeys(owner for owner in owners if owner))


def live_out_instance(count: int, groups: int) -> int:
    """Instance that holds the last live range of a loop of `count` iterations.

    >>> live_out_instance(8, 3)
    1
    """
    return (count - 1) % groups


def _against(h: Hierarchy, loop: str, groups: int, of: AccessesOf) -> Iterator[Refusal]:
    node = h.node(loop)
    yield from _against_form(h, node, groups)
    hidden = unreached(NAME, loop, h, loop, of)
    if hidden is not None:
        yield hidden
    leaves = touching(h.subtree(loop), of)
    if not leaves:
        yield _refuse(loop, "expected nodes inside, got none", "Decorate what the loop calls.")
    for leaf, access in leaves:
        if access.opaque:
            yield _refuse(
                loop,
                f"expected every leaf to declare its states, got {leaf.path} without a declaration",
                declare(leaf),
                leaf.path,
            )
    for edge in h.edges:
        if edge.loop == loop and edge.distance > 0:
            yield _refuse(
                loop,
                f"expected iterations that take nothing from earlier ones, got {edge.consumer}, which takes "
                f"what {edge.producer} made {edge.distance} iteration{'s' if edge.distance > 1 else ''} before",
                "Make the value inside the iteration that uses it.",
                edge.producer,
                edge.consumer,
            )
    states = renamed_states(h, loop, of)
    for state in states:
        yield from _against_inheriting(h, loop, state, leaves)
    for state in states:
        yield from _against_instances(h, loop, groups, state, states, of)


def _against_form(h: Hierarchy, node: PlanNode, groups: int) -> Iterator[Refusal]:
    loop = node.path
    if node.kind != "loop":
        yield _refuse(loop, f"expected a loop, got {node.kind} {loop}", "Name a rose.loop.", loop)
    if not node.rewritable:
        yield _refuse(
            loop,
            "expected a loop that may be rewritten, got rose.iterations",
            "Write it with @rose.loop: body(carry, item) -> (carry, output).",
            loop,
        )
    if node.structure is None or list(Structure.from_json(node.structure).leaves()):
        yield _refuse(
            loop,
            "expected a free loop, got one whose body returns a carry that is not None",
            "Return None as carry if the next iteration does not need it.",
            loop,
        )
    if node.count is None:
        yield _refuse(
            loop,
            "expected a fixed number of iterations, got one that varies",
            "Let the loop run equally often in every iteration; the last live range must be known.",
            loop,
        )
    elif not 1 < groups <= node.count:
        yield _refuse(
            loop,
            f"expected 2 to {node.count} groups for {node.count} iterations, got {groups}",
            "Ask for fewer.",
            loop,
        )


def _against_inheriting(h: Hierarchy, loop: str, state: str, leaves: Leaves) -> Iterator[Refusal]:
    """Every iteration must refresh the state before anything else touches it."""
    touched = [(leaf, s) for leaf, s in leaves if any(a.state == state for a in s.accesses)]
    first, access = touched[0]
    inherits = [a for a in _of(access, state) if a.mode is not StateAccess.REFRESH]
    if inherits:
        writer = next(leaf for leaf, s in touched if any(a.mode.writes for a in _of(s, state)))
        yield _refuse(
            loop,
            f"expected a free loop, got dependent: {first.path} {inherits[0].mode.value}s '{state}', which the "
            f"iteration before has left as {writer.path} made it",
            _unlock_inheriting(first, state),
            *dict.fromkeys((first.path, writer.path)),
        )
    inner = _unclear(touched, state)
    if inner is not None:
        yield _refuse(
            loop,
            f"expected '{state}' to be refreshed before anything else touches it, got {first.path}, which calls "
            f"{inner.path} before or after it refreshes it itself",
            f"Refresh '{state}' in a node that {first.name} calls first.",
            first.path,
            inner.path,
        )
    for leaf, _ in touched:
        if not _always(h, leaf, loop):
            yield _refuse(
                loop,
                f"expected '{state}' to be touched alike in every iteration, got {leaf.path}, which is not "
                "always called",
                f"Call {leaf.name} in every iteration, or let it touch a state of its own.",
                leaf.path,
            )


def _against_instances(
    h: Hierarchy, loop: str, groups: int, state: str, states: tuple[str, ...], of: AccessesOf
) -> Iterator[Refusal]:
    """Each chain needs an instance of the state, so a replica of the component that holds it."""
    owner = _owner(h, state)
    if owner is None:
        yield _refuse(
            loop,
            f"expected {groups} instances of every state that iterations write, got one of '{state}', which "
            "belongs to no component",
            f"Keep '{state}' in a @rose.component, which can be built once per group.",
        )
        return
    together = apart(NAME, loop, h, owner, of)
    if together is not None:
        yield together
    for leaf, access in touching(h.nodes, of):
        mine = leaf.component == owner
        if not mine and _of(access, state):
            yield _refuse(
                loop,
                f"expected only nodes of {owner} to touch '{state}', got {leaf.path}",
                f"Pass the value to {leaf.name} as an argument: a replica of {owner} has its own '{state}'.",
                leaf.path,
            )
        if mine and access.opaque:
            yield _refuse(
                loop,
                f"expected every node of {owner}, which is built once per group, to declare its states, got "
                f"{leaf.path} without a declaration",
                declare(leaf),
                leaf.path,
            )
        for other in access.accesses if mine else ():
            writer = None if other.state in states else _writer(h, other.state, of)
            if writer is not None:
                yield _refuse(
                    loop,
                    f"expected nodes of {owner}, which is built once per group, to touch only what every "
                    f"iteration refreshes, got {other.mode.value} of '{other.state}' by {leaf.path}, written by "
                    f"{writer.path}",
                    f"Keep '{other.state}' in a component of its own, or refresh it in every iteration.",
                    *dict.fromkeys((leaf.path, writer.path)),
                )


def _unclear(touched: Sequence[tuple[PlanNode, AccessSet]], state: str) -> PlanNode | None:
    """A node that inherits, below a composite that refreshes: which of the two comes first is not known."""
    first = touched[0][0]
    for node, access in touched[1:]:
        inherits = any(a.mode is not StateAccess.REFRESH for a in _of(access, state))
        if inherits and inside(node.path, first.path):
            return node
    return None


def _refuse(loop: str, reason: str, unlock: str, *nodes: str) -> Refusal:
    return Refusal(NAME, loop, reason, unlock, nodes)


def _of(access: AccessSet, state: str) -> tuple[Access, ...]:
    return tuple(a for a in access.accesses if a.state == state)


def _owner(h: Hierarchy, state: str) -> str | None:
    """The component that holds a state, by the state's name."""
    name = state.rpartition(".")[0]
    return name if h.component(name) is not None else None


def _writer(h: Hierarchy, state: str, of: AccessesOf) -> PlanNode | None:
    for leaf, access in touching(h.nodes, of):
        if access.opaque or any(a.mode.writes for a in _of(access, state)):
            return leaf
    return None


def _always(h: Hierarchy, leaf: PlanNode, loop: str) -> bool:
    """Whether every iteration of `loop` calls the leaf, equally often."""
    around = [n for n in h.subtree(loop) if inside(leaf.path, n.path) and n.path != loop]
    return all(n.calls and (n.kind != "loop" or n.count) for n in around)


def _unlock_inheriting(node: PlanNode, state: str) -> str:
    if state.startswith(GENERATOR):
        return (
            f"Let {node.name} draw from rose_trace.rng.RowGenerator, keyed by seed, row and iteration, "
            f"instead of the carried '{state}'."
        )
    if state.startswith(BUFFER):
        return f"Let {state.removeprefix(BUFFER)} return a copy: it hands the same storage out each time."
    name = state.rpartition(".")[2]
    return (
        f"Declare refreshes='{name}' on {node.name} if it does not inherit the old value; otherwise the "
        "iterations stay in order."
    )
