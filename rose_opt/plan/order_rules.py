"""When the orders of a plan can be followed without anybody waiting for ever.

Every worker has a cyclic order, every group of a split loop its own chain of nodes. Folded over the
iterations, both are edges with an iteration distance: a lane that holds the simulator and waits for the
policy, while another holds the policy and waits for the simulator, is a cycle whose distances add up to
nothing. Orders are data of the plan, the same on every rank, so that ranks cannot choose different ones
around a collective.

Paper: §4.3.1, "Interleave"; the rules are in docs/legality.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from rose_opt.plan.hierarchy import Hierarchy, inside
from rose_opt.plan.refusal import Refusal
from rose_opt.plan.workers import Order

Place = tuple[str, int]
"""Node path and group."""

Edge = tuple[Place, Place, int]
"""The second place of iteration ``i + distance`` comes after the first of iteration ``i``."""


def order_refusal(
    hierarchy: Hierarchy, splits: Mapping[str, int], orders: Sequence[Order]
) -> Refusal | None:
    """Why the orders cannot be followed, or nothing.

    Args:
        hierarchy: Nodes in program order.
        splits: Groups by split loop.
        orders: Cyclic order of each worker; those of loops that are not split mean nothing.

    Returns:
        A cycle of waiting, if there is one.
    """

    def known(path: str, group: int) -> bool:
        groups = next((k for loop, k in splits.items() if inside(path, loop)), 0)
        return hierarchy.find(path) is not None and 0 <= group < groups

    meant = [o for o in orders if all(known(step.path, step.group) for step in o.cycle)]
    return next(_against(hierarchy, meant), None)


def _against(h: Hierarchy, orders: Sequence[Order]) -> Iterator[Refusal]:
    edges = [*_chains(h, orders), *_cycles(orders)]
    waiting = _unending(edges)
    if waiting:
        told = " -> ".join(f"{path.rpartition('/')[2]} of group {group}" for path, group in waiting)
        yield Refusal(
            "interleave",
            ", ".join(order.worker for order in orders),
            f"expected orders in which every wait ends, got a cycle of waiting within one iteration: {told}",
            "Let both groups take the workers in the same order, or let one be an iteration behind.",
            tuple(dict.fromkeys(path for path, _ in waiting)),
        )


def _chains(h: Hierarchy, orders: Sequence[Order]) -> Iterator[Edge]:
    """Each group runs its nodes in program order, iteration after iteration."""
    position = {node.path: index for index, node in enumerate(h.nodes)}
    places = {(step.path, step.group) for order in orders for step in order.cycle}
    by_group: dict[tuple[str, int], list[Place]] = {}
    for path, group in places:
        by_group.setdefault((path.rpartition("/")[0], group), []).append((path, group))
    for chain in by_group.values():
        chain.sort(key=lambda place: position[place[0]])
        yield from ((a, b, 0) for a, b in itertools.pairwise(chain))
        yield chain[-1], chain[0], 1


def _cycles(orders: Sequence[Order]) -> Iterator[Edge]:
    """Each worker follows its order, period after period; a step `d` behind runs iteration p - d."""
    for order in orders:
        steps = order.cycle
        for a, b in itertools.pairwise((*steps, *steps[:1])):
            turn = 1 if b is steps[0] else 0
            yield (a.path, a.group), (b.path, b.group), a.distance - b.distance + turn


def _unending(edges: Sequence[Edge]) -> list[Place]:
    """A cycle whose distances add up to nothing, if there is one (Floyd and Warshall)."""
    places = list(dict.fromkeys(place for a, b, _ in edges for place in (a, b)))
    far: dict[tuple[Place, Place], tuple[int, tuple[Place, ...]]] = {}
    for a, b, distance in edges:
        known = far.get((a, b))
        if known is None or distance < known[0]:
            far[a, b] = distance, (b,)
    for middle in places:
        for a in places:
            first = far.get((a, middle))
            if first is None:
                continue
            for b in places:
                second = far.get((middle, b))
                if second is None:
                    continue
                total = first[0] + second[0]
                known = far.get((a, b))
                if known is None or total < known[0]:
                    far[a, b] = total, (*first[1], *second[1])
                if a == b and far[a, b][0] <= 0:
                    return [a, *far[a, b][1]]
    for (a, b), (distance, path) in far.items():
        if a == b and distance <= 0:
            return [a, *path]
    return []
