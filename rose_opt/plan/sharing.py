"""Components that share a state: they hold the same objects, so they live in one process.

A trainer that updates the policy's module in place declares ``updates="policy.weights"``. In a process of
its own it would update a copy. A process has its own process-wide generators, too: who draws from one stays
in the program's.

Does not handle: shards and replicas, whose states the rules of splits are about.

Paper: beyond the paper; docs/legality.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from rose_opt.plan.hierarchy import AccessesOf, Hierarchy, own_accesses, touching
from rose_trace.records import BUFFER, GENERATOR


def sharing(
    hierarchy: Hierarchy, accesses_of: AccessesOf = own_accesses
) -> Mapping[str, tuple[str, frozenset[str]]]:
    """Components that cannot be moved to another process by themselves.

    Args:
        hierarchy: Nodes and components.
        accesses_of: Accesses of a node's own code.

    Returns:
        By component, a state that somebody writes and that it shares, and all who touch that: components,
        and the empty name for functions.
    """
    touched: dict[str, set[str]] = {}
    written: set[str] = set()
    for node, access in touching(hierarchy.nodes, accesses_of):
        for item in access.accesses:
            if not item.state.startswith(BUFFER):  # values are handed over as copies
                names = touched.setdefault(item.state, set())
                names.add(node.component)
                if item.state.startswith(
                    GENERATOR
                ):  # the program's own: it may draw from it, or seed it
                    names.add("")
                written.update({item.state} if item.mode.writes else ())
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for state, names in touched.items():
        for name in names if state in written and len(names) > 1 else ():
            found.setdefault(name, (state, frozenset(names)))
    found.pop("", None)
    return found
