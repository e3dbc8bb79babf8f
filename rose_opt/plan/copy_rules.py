"""When what is handed out of a storage may be copied, so that the storage can be filled again at once.

The executor hands on copies of whatever a task returns. A storage that is filled again and again, such
as an observation buffer, is then free as soon as the task that filled it has ended. That is what the
program computes only if every value is used before its storage is filled again, and if nobody fills the
storage by writing into a value that was handed to it. A trace knows a storage by its last filling, so the
executor checks the first of the two once more for every call.

Paper: beyond the paper; it makes way for §4.3.1, "Rewire" and "Split"; the rules are in docs/legality.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rose_opt.plan.hierarchy import (
    AccessesOf,
    Hierarchy,
    PlanEdge,
    inside,
    own_accesses,
    touching,
)
from rose_opt.plan.refusal import Refusal
from rose_trace.legality import AccessSet
from rose_trace.records import BUFFER

NAME = "copy-on-bind"


def copy_refusal(
    hierarchy: Hierarchy, state: str, accesses_of: AccessesOf = own_accesses
) -> Refusal | None:
    """Why copies would change what is computed, or nothing.

    Args:
        hierarchy: Nodes and data edges.
        state: The storage as a state, ``buffer.<node>``.
        accesses_of: Accesses of a node's own code.

    Returns:
        The first reason against it, in the order of the edges.
    """
    return next(_against(hierarchy, state, accesses_of), None)


def without_storages(access: AccessSet, states: frozenset[str]) -> AccessSet:
    """The same accesses without those to storages that are copied.

    >>> from rose_trace.records import Access, StateAccess
    >>> step = AccessSet((Access("buffer.sim.step", StateAccess.UPDATE),))
    >>> without_storages(step, frozenset({"buffer.sim.step"})).accesses
    ()
    """
    if not any(a.state in states for a in access.accesses):
        return access
    return replace(access, accesses=tuple(a for a in access.accesses if a.state not in states))


def _against(h: Hierarchy, state: str, of: AccessesOf) -> Iterator[Refusal]:
    found = [(n.path, a) for n, s in touching(h.nodes, of) for a in s.accesses if a.state == state]
    writers = {path for path, access in found if access.mode.writes}
    readers = {path for path, access in found if not access.mode.writes}
    readers |= {node.path for node, access in touching(h.nodes, of) if access.opaque}
    name = state.removeprefix(BUFFER)
    if not state.startswith(BUFFER) or not writers:
        yield Refusal(
            NAME,
            state,
            f"expected a storage that is handed out again and again, got '{state}'",
            "Name one of the states buffer.<node>.",
        )
        return
    for edge in h.edges:
        if edge.producer not in writers or edge.consumer not in readers | writers:
            continue
        pair = (edge.producer, edge.consumer)
        again = _filled_between(h, edge, writers)
        if again is not None:
            yield Refusal(
                NAME,
                state,
                f"expected values that are read before their storage is filled again, got {edge.consumer}, "
                f"which reads what {edge.producer} handed out after {again} filled it",
                f"Let {name} return a copy, if that is what the program means: it computes something else then.",
                pair,
            )
        if edge.consumer in writers:
            yield Refusal(
                NAME,
                state,
                f"expected nodes that fill the storage without being handed a value in it, got {edge.consumer}, "
                f"which takes what {edge.producer} handed out and may write into it",
                f"Let {h.node(edge.consumer).name} return a new value.",
                pair,
            )


def _filled_between(h: Hierarchy, edge: PlanEdge, writers: set[str]) -> str | None:
    """Who fills the storage between making a value and taking it."""
    inner = [n.path for n in h.nodes if n.kind == "loop" and inside(n.path, edge.loop)]
    inner = [path for path in inner if path != edge.loop]
    for loop in inner:  # does its second iteration take a value that the first has filled over?
        found = next((path for path in sorted(writers) if inside(path, loop)), None)
        if (
            found is not None
            and inside(edge.consumer, loop)
            and not _carried(h, edge, loop, writers)
        ):
            return found
    deep = sum(inside(edge.producer, loop) for loop in inner) > 1
    if deep or edge.all_iterations or edge.alignment is not None or edge.distance > 1:
        return edge.producer  # values of several iterations are taken, and one storage holds one
    order = [node.path for node in h.nodes]
    made, taken = order.index(edge.producer), order.index(edge.consumer)
    if edge.distance == 0:
        between = order[made + 1 : taken]
    else:
        body = [path for path in order if inside(path, edge.loop)]
        between = [path for path in body if order.index(path) > made or order.index(path) < taken]
    return next((path for path in between if path in writers), None)


def _carried(h: Hierarchy, edge: PlanEdge, loop: str, writers: set[str]) -> bool:
    """Whether a value that enters a loop is what its first iteration alone takes: later ones take their own."""
    return any(
        e.consumer == edge.consumer and e.loop == loop and e.distance == 1 and e.producer in writers
        for e in h.edges
    )
