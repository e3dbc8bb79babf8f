"""Places within chunks of memory: first fit, neighbours merged, chunks that grew too small given up."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import NamedTuple

ALIGNMENT_BYTES = 256  # as CUDA's own allocations: every element type fits
CHUNK_BYTES = 32 << 20  # ours: dozens of observation batches, little beside a CUDA context
GRANULE_BYTES = 2 << 20  # what CUDA allocates at a time


class Place(NamedTuple):
    """Bytes of a chunk.

    Attributes:
        chunk: Number of the chunk.
        offset: First byte.
        nbytes: Length; a multiple of the alignment.
    """

    chunk: int
    offset: int
    nbytes: int


@dataclass(slots=True)
class _Space:
    nbytes: int
    starts: list[int] = field(default_factory=list[int])
    lengths: list[int] = field(default_factory=list[int])

    @property
    def empty(self) -> bool:
        return self.lengths == [self.nbytes]


@dataclass(slots=True)
class Arena:
    """Which bytes of which chunks are in use.

    Attributes:
        spaces: Free bytes of each chunk, by its number.
    """

    spaces: dict[int, _Space] = field(default_factory=dict[int, _Space])

    def add(self, chunk: int, nbytes: int) -> None:
        """Take in a chunk, wholly free."""
        self.spaces[chunk] = _Space(nbytes, [0], [nbytes])

    def take(self, nbytes: int) -> Place | None:
        """A place of at least `nbytes`; ``None`` where no chunk has one."""
        wanted = rounded(nbytes, ALIGNMENT_BYTES)
        for number, space in self.spaces.items():
            for index, length in enumerate(space.lengths):
                if length >= wanted:
                    return self._cut(number, space, index, wanted)
        return None

    def give(self, place: Place) -> None:
        """A place is no longer used."""
        space = self.spaces[place.chunk]
        at = bisect.bisect(space.starts, place.offset)
        start, length = place.offset, place.nbytes
        if at < len(space.starts) and start + length == space.starts[at]:
            length += space.lengths.pop(at)
            del space.starts[at]
        if at and space.starts[at - 1] + space.lengths[at - 1] == start:
            space.lengths[at - 1] += length
            return
        space.starts.insert(at, start)
        space.lengths.insert(at, length)

    def give_up(self) -> list[int]:
        """Forget the chunks that are wholly free: they were too small for what is wanted now."""
        idle = [number for number, space in self.spaces.items() if space.empty]
        for number in idle:
            del self.spaces[number]
        return idle

    @property
    def used_bytes(self) -> int:
        """Bytes in use."""
        return sum(space.nbytes - sum(space.lengths) for space in self.spaces.values())

    @staticmethod
    def _cut(number: int, space: _Space, index: int, wanted: int) -> Place:
        start = space.starts[index]
        if space.lengths[index] == wanted:
            del space.starts[index], space.lengths[index]
        else:
            space.starts[index] += wanted
            space.lengths[index] -= wanted
        return Place(number, start, wanted)


def rounded(nbytes: int, unit: int) -> int:
    """`nbytes` rounded up to a multiple of `unit`, at least one."""
    return max(1, -(-nbytes // unit)) * unit


def chunk_bytes(nbytes: int) -> int:
    """Size of a new chunk that has room for `nbytes`."""
    return max(CHUNK_BYTES, rounded(nbytes, GRANULE_BYTES))
