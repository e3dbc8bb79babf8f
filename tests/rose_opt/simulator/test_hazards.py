"""Hazards imply every conflict, though each list of waits is short."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rose_opt.simulator.hazards import Hazards
from rose_trace.legality import AccessSet, RowRange, first_conflict
from rose_trace.records import Access, StateAccess
from tests.properties import examples

ROWS = (None, RowRange(0, 32), RowRange(32, 64), RowRange(0, 16), RowRange(0, 64))


def read(state: str) -> AccessSet:
    return AccessSet((Access(state, StateAccess.READ),))


def update(state: str, keyed: bool = False, rows: RowRange | None = None) -> AccessSet:
    return AccessSet((Access(state, StateAccess.UPDATE, keyed),), rows=rows)


def waits(*program: AccessSet | tuple[AccessSet, ...]) -> list[set[int]]:
    """What every task waits for; fragments of one invocation are given as a tuple."""
    hazards = Hazards()
    result: list[set[int]] = []
    for item in program:
        fragments = item if isinstance(item, tuple) else (item,)
        result += [set(hazards.before(access)) for access in fragments]
        first = len(result) - len(fragments)
        hazards.add([(first + at, access) for at, access in enumerate(fragments)])
    return result


def test_reads_commute_and_writes_wait_for_all_of_them() -> None:
    assert waits(update("s"), read("s"), read("s"), update("s"), read("s")) == [
        set(),
        {0},
        {0},
        {0, 1, 2},
        {3},
    ]


def test_disjoint_rows_do_not_wait_for_each_other() -> None:
    low, high = RowRange(0, 32), RowRange(32, 64)
    assert waits(
        update("s", True, low), update("s", True, high), update("s", True, low), update("s", True)
    ) == [set(), set(), {0}, {1, 2}]


def test_a_fence_waits_for_everything_and_everything_waits_for_it() -> None:
    opaque = AccessSet(opaque=True)
    assert waits(read("s"), read("t"), opaque, AccessSet(), opaque) == [
        set(),
        set(),
        {0, 1},
        {2},
        {2, 3},
    ]


def test_fragments_of_one_invocation_are_not_ordered_but_all_are_waited_for() -> None:
    whole = update("s")
    assert waits(read("s"), (whole, whole), read("s")) == [set(), {0}, {0}, {1, 2}]


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[AccessSet, ...]]:
    modes = st.sampled_from(list(StateAccess))
    accesses = st.builds(Access, st.sampled_from("stu"), modes, st.booleans())
    program: list[tuple[AccessSet, ...]] = []
    for _ in range(draw(st.integers(0, 14))):
        touched = tuple(draw(st.lists(accesses, max_size=2)))
        opaque = draw(st.integers(0, 9)) == 9
        rows = draw(st.lists(st.sampled_from(ROWS), min_size=1, max_size=2))
        program.append(tuple(AccessSet(touched, opaque, part) for part in rows))
    return program


@examples(150, 100)
@given(programs())
def test_every_conflict_with_an_earlier_invocation_is_implied(
    program: list[tuple[AccessSet, ...]],
) -> None:
    before = waits(*program)
    flat = [(number, a) for number, fragments in enumerate(program) for a in fragments]
    implied: list[set[int]] = []
    for own in before:
        implied.append(own.union(*(implied[earlier] for earlier in own)))
    for first, later in itertools.combinations(range(len(flat)), 2):
        (a, x), (b, y) = flat[first], flat[later]
        conflict = a != b and first_conflict(x, y) is not None
        assert not conflict or first in implied[later], (first, later)
        if first in before[later]:
            assert a != b
            assert conflict
