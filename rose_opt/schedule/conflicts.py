"""Which phases can never run together, whatever the schedule.

A conflict is a fact about workers and capacity, not about order: two phases of one worker, or
a set whose smallest demands together exceed the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rose_opt.schedule.capacity import Limits, Units, within

_VISIT_LIMIT = 100_000  # ours


def least_units(demands: Sequence[Units]) -> Units:
    """Return the smallest demand per resource over several modes."""
    return (
        min(demand[0] for demand in demands),
        min(demand[1] for demand in demands),
        min(demand[2] for demand in demands),
    )


def most_units(demands: Sequence[Units]) -> Units:
    """Return the largest demand per resource over several modes."""
    return (
        max(demand[0] for demand in demands),
        max(demand[1] for demand in demands),
        max(demand[2] for demand in demands),
    )


def maximal_cliques(size: int, conflict: Callable[[int, int], bool]) -> list[tuple[int, ...]]:
    """Return the maximal sets of items that all conflict with each other (Bron-Kerbosch).

    Args:
        size: Number of items; items are 0 .. size-1.
        conflict: Symmetric relation between two different items.

    Returns:
        Sorted tuples, in sorted order. A single item that conflicts with none is a clique.

    >>> maximal_cliques(3, lambda a, b: a + b != 3)
    [(0, 1), (0, 2)]
    """
    near = {a: {b for b in range(size) if b != a and conflict(a, b)} for a in range(size)}
    found: list[tuple[int, ...]] = []

    def extend(chosen: set[int], open_: set[int], closed: set[int]) -> None:
        if not open_ and not closed:
            found.append(tuple(sorted(chosen)))
            return
        pivot = max(sorted(open_ | closed), key=lambda item: len(near[item] & open_))
        for item in sorted(open_ - near[pivot]):
            extend(chosen | {item}, open_ & near[item], closed & near[item])
            open_ = open_ - {item}
            closed = closed | {item}

    if size:
        extend(set(), set(range(size)), set())
    return sorted(found)


def forbidden_sets(
    demands: Sequence[Units], limits: Limits, exclusive: Callable[[int, int], bool]
) -> Iterator[tuple[int, ...]]:
    """Yield the minimal sets of items that exceed the capacity together.

    Beyond a fixed number of sets looked at it gives up with an `OverflowError`.

    Args:
        demands: Demand per item.
        limits: Capacity.
        exclusive: Whether two items never run together for another reason; sets that hold such
            a pair are left out.

    Yields:
        Sorted tuples of at least two items.

    >>> list(forbidden_sets([(1, 0, 0)] * 3, (2, None, None), lambda a, b: False))
    [(0, 1, 2)]
    """
    visits = 0

    def minimal(chosen: tuple[int, ...]) -> bool:
        return all(within([demands[i] for i in chosen if i != drop], limits) for drop in chosen)

    def extend(chosen: tuple[int, ...], first: int) -> Iterator[tuple[int, ...]]:
        nonlocal visits
        for item in range(first, len(demands)):
            if any(exclusive(item, other) for other in chosen) or not any(demands[item]):
                continue
            visits += 1
            if visits > _VISIT_LIMIT:
                raise OverflowError(
                    f"forbidden_sets: expected at most {_VISIT_LIMIT} sets, got more from "
                    f"{len(demands)} phases. Treat every pair as ordered."
                )
            grown = (*chosen, item)
            if within([demands[i] for i in grown], limits):
                yield from extend(grown, item + 1)
            elif minimal(grown):
                yield grown

    if not within(list(demands), limits):
        yield from extend((), 0)


def entangled_pairs(
    demands: Sequence[Units], limits: Limits, exclusive: Callable[[int, int], bool]
) -> set[tuple[int, int]]:
    """Return the pairs (a, b), a < b, whose order matters to capacity.

    Two items are entangled if they share a forbidden set. Where there are too many sets, every
    pair is: more order than needed, never less.
    """
    try:
        sets = list(forbidden_sets(demands, limits, exclusive))
    except OverflowError:
        return {(a, b) for b in range(len(demands)) for a in range(b)}
    return {(a, b) for items in sets for a in items for b in items if a < b}
