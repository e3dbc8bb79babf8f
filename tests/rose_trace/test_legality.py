from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_trace.legality import (
    AccessSet,
    Conflict,
    RowRange,
    conflicting,
    first_conflict,
    partition,
    union_all,
)
from rose_trace.records import Access, StateAccess

READ, UPDATE, REFRESH = StateAccess.READ, StateAccess.UPDATE, StateAccess.REFRESH
modes = st.sampled_from([READ, UPDATE, REFRESH])
accesses = st.builds(Access, st.sampled_from(["a.x", "a.y"]), modes, st.booleans())
ranges = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda p: RowRange(min(p), max(p))),
)
sets = st.builds(AccessSet, st.lists(accesses, max_size=3).map(tuple), st.booleans(), ranges)


@given(accesses, accesses, ranges, ranges)
def test_conflicts_are_symmetric_and_need_a_write_to_a_shared_row(
    a: Access, b: Access, rows_a: RowRange | None, rows_b: RowRange | None
) -> None:
    found = conflicting(a, b, rows_a, rows_b)
    assert found == conflicting(b, a, rows_b, rows_a)
    everything = set(range(7))
    keyed = a.keyed and b.keyed and rows_a is not None and rows_b is not None
    touched_a = set(range(rows_a.start, rows_a.stop)) if keyed and rows_a else everything
    touched_b = set(range(rows_b.start, rows_b.stop)) if keyed and rows_b else everything
    overlap = bool(touched_a & touched_b)
    expected = a.state == b.state and (a.mode is not READ or b.mode is not READ) and overlap
    if keyed and rows_a is not None and rows_b is not None and not (len(rows_a) and len(rows_b)):
        return  # an empty range touches nothing; either answer is safe
    assert found == expected


@given(sets, sets)
def test_a_conflict_names_a_pair_that_conflicts(a: AccessSet, b: AccessSet) -> None:
    found = first_conflict(a, b)
    if a.opaque or b.opaque:
        assert found is not None
    elif found is None:
        assert not any(conflicting(x, y, a.rows, b.rows) for x in a.accesses for y in b.accesses)
    else:
        assert found.earlier in a.accesses
        assert found.later in b.accesses
    assert (first_conflict(b, a) is None) == (found is None)


@given(sets, sets, sets)
def test_a_union_conflicts_with_whatever_a_part_conflicts_with(
    a: AccessSet, b: AccessSet, c: AccessSet
) -> None:
    union = a.union(b)
    assert union.covers(a)
    assert union.covers(b)
    if first_conflict(a, c) is not None:
        assert first_conflict(union, c) is not None
    assert union_all([a, b]).covers(union)


def test_messages() -> None:
    conflict = Conflict(Access("env.episode", UPDATE), Access("env.episode", READ))
    assert str(conflict) == "update of 'env.episode' against read of 'env.episode'"
    assert (
        str(Conflict(None, Access("a.x", REFRESH)))
        == "an undeclared access against refresh of 'a.x'"
    )
    with pytest.raises(ValueError, match=r"RowRange: expected 0 <= start <= stop, got 3\.\.2"):
        RowRange(3, 2)
    with pytest.raises(ValueError, match="expected 1 <= groups <= rows, got 3 groups of 2 rows"):
        partition(2, 3)


@given(st.integers(1, 200), st.data())
def test_a_partition_covers_every_row_once(rows: int, data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, rows))
    parts = partition(rows, groups)
    assert [r for part in parts for r in range(part.start, part.stop)] == list(range(rows))
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert all(x.disjoint(y) for x in parts for y in parts if x is not y)
