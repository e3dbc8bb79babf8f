"""Which accesses may swap: the pure conflict rules shared by the optimizer and the executor.

Paper: §4.3.1; the full rules are in docs/legality.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from rose_trace.records import Access


@dataclass(frozen=True, slots=True)
class RowRange:
    """Half-open range of global batch rows.

    Attributes:
        start: First row.
        stop: One past the last row.
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(
                f"RowRange: expected 0 <= start <= stop, got {self.start}..{self.stop}. Check the split."
            )

    def __len__(self) -> int:
        return self.stop - self.start

    def disjoint(self, other: RowRange) -> bool:
        """Whether no row is in both ranges.

        >>> RowRange(0, 32).disjoint(RowRange(32, 64))
        True
        """
        return self.stop <= other.start or other.stop <= self.start


def partition(rows: int, groups: int) -> tuple[RowRange, ...]:
    """Split `rows` into `groups` contiguous ranges whose lengths differ by at most one.

    >>> partition(5, 2)
    (RowRange(start=0, stop=2), RowRange(start=2, stop=5))

    Raises:
        ValueError: If there are fewer rows than groups, or no group.
    """
    if not 1 <= groups <= rows:
        raise ValueError(
            f"partition: expected 1 <= groups <= rows, got {groups} groups of {rows} rows."
        )
    bounds = [rows * group // groups for group in range(groups + 1)]
    return tuple(RowRange(a, b) for a, b in itertools.pairwise(bounds))


@dataclass(frozen=True, slots=True)
class AccessSet:
    """Everything one invocation, or one subtree of invocations, may touch.

    Attributes:
        accesses: Declared accesses.
        opaque: Whether it may touch anything: an undeclared leaf is a fence.
        rows: Global rows it is confined to, where it runs on part of the batch; ``None`` for all rows.
    """

    accesses: tuple[Access, ...] = ()
    opaque: bool = False
    rows: RowRange | None = None

    def union(self, other: AccessSet) -> AccessSet:
        """What either may touch; rows widen to all where they differ."""
        return AccessSet(
            tuple(dict.fromkeys(self.accesses + other.accesses)),
            self.opaque or other.opaque,
            self.rows if self.rows == other.rows else None,
        )

    def covers(self, other: AccessSet) -> bool:
        """Whether everything in `other` is in this set (rows are not compared)."""
        return self.opaque or (not other.opaque and set(other.accesses) <= set(self.accesses))


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accesses that must keep program order; `None` stands for an opaque side."""

    earlier: Access | None
    later: Access | None

    def __str__(self) -> str:
        def side(access: Access | None) -> str:
            return (
                "an undeclared access"
                if access is None
                else f"{access.mode.value} of '{access.state}'"
            )

        return f"{side(self.earlier)} against {side(self.later)}"


def conflicting(
    a: Access, b: Access, rows_a: RowRange | None = None, rows_b: RowRange | None = None
) -> bool:
    """Whether two accesses must keep their order.

    Reads of one state commute; keyed accesses to disjoint rows touch different parts of the state.
    A refresh does not inherit the old value, but it takes the place where that value lives, so
    everything before it on the same instance comes first.
    """
    if a.state != b.state or not (a.mode.writes or b.mode.writes):
        return False
    if a.keyed and b.keyed and rows_a is not None and rows_b is not None:
        return not rows_a.disjoint(rows_b)
    return True


def first_conflict(earlier: AccessSet, later: AccessSet) -> Conflict | None:
    """The first pair of accesses that forbids swapping two invocations, in declaration order.

    An opaque side conflicts with everything, a pure one included: a fence is a fence.
    """
    if earlier.opaque or later.opaque:
        return Conflict(
            None if earlier.opaque else _first(earlier.accesses),
            None if later.opaque else _first(later.accesses),
        )
    for a in earlier.accesses:
        for b in later.accesses:
            if conflicting(a, b, earlier.rows, later.rows):
                return Conflict(a, b)
    return None


def union_all(sets: Iterable[AccessSet]) -> AccessSet:
    """What any of `sets` may touch, on all rows."""
    result = AccessSet()
    for item in sets:
        result = result.union(item)
    return AccessSet(result.accesses, result.opaque)


def _first(accesses: tuple[Access, ...]) -> Access | None:
    return accesses[0] if accesses else None
