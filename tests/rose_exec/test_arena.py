"""Places of an arena never overlap, and freed ones merge again."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rose_exec.memory.arena import (
    ALIGNMENT_BYTES,
    CHUNK_BYTES,
    GRANULE_BYTES,
    Arena,
    Place,
    chunk_bytes,
)

STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 5000), st.integers(0, 50)), max_size=80)


@given(STEPS)
def test_places_are_disjoint_and_merge_again(steps: list[tuple[bool, int, int]]) -> None:
    arena = Arena()
    for number in range(2):
        arena.add(number, 64 * ALIGNMENT_BYTES)
    taken: list[Place] = []
    for take, nbytes, which in steps:
        if take:
            place = arena.take(nbytes)
            if place is not None:
                assert place.nbytes >= nbytes
                assert place.offset % ALIGNMENT_BYTES == 0
                assert place.offset + place.nbytes <= 64 * ALIGNMENT_BYTES
                taken.append(place)
        elif taken:
            arena.give(taken.pop(which % len(taken)))
        spans = sorted(taken)
        for one, other in itertools.pairwise(spans):
            assert one.chunk != other.chunk or one.offset + one.nbytes <= other.offset
        assert arena.used_bytes == sum(place.nbytes for place in taken)
    for place in taken:
        arena.give(place)
    assert arena.used_bytes == 0
    whole = arena.take(64 * ALIGNMENT_BYTES)
    assert whole == Place(0, 0, 64 * ALIGNMENT_BYTES)
    assert arena.give_up() == [1]
    assert arena.take(1) is None


def test_a_new_chunk_has_room() -> None:
    assert chunk_bytes(1) == CHUNK_BYTES
    assert chunk_bytes(CHUNK_BYTES + 1) == CHUNK_BYTES + GRANULE_BYTES
