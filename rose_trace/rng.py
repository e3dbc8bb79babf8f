"""`RowGenerator`: keyed noise that is the same however the batch is grouped.

Every number is a pure function of (seed, global row, draw, place in the row), so a node that draws
touches no state: halves of a batch, shards and other orders of execution give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rose_trace.frames import current_rows
from rose_trace.legality import RowRange

Draw: TypeAlias = int | tuple[int, ...]
Rows: TypeAlias = RowRange | range | Sequence[int]
Words: TypeAlias = NDArray[np.uint64]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10
_NORMAL, _UNIFORM = 1, 2  # third counter word: the two distributions never share words


class RowGenerator:
    """Counter-based noise (Philox4x32-10), one independent stream per (row, draw).

    Args:
        seed: Seed of the whole generator; any integer, of which 64 bits count.
        rows: Rows of the whole batch [1..2^32].

    Raises:
        ValueError: If `rows` is outside its range.

    >>> noise = RowGenerator(seed=7, rows=4)
    >>> whole = noise.normal((3, 0), (2,))
    >>> half = noise.normal((3, 0), (2,), rows=range(2, 4))
    >>> bool((whole[2:] == half).all())
    True
    """

    def __init__(self, seed: int, rows: int) -> None:
        if not 1 <= rows <= 2**32:
            raise ValueError(
                f"RowGenerator: expected rows in 1..2^32, got {rows}. Pass the size of the whole batch."
            )
        self.seed = seed
        self.rows = rows
        self._keys: dict[tuple[int, ...], tuple[int, int]] = {}

    def normal(
        self, draw: Draw, shape: Sequence[int] | int = (), *, rows: Rows | None = None
    ) -> NDArray[np.float32]:
        """Standard normal numbers (Box-Muller in double precision, rounded once).

        Args:
            draw: Key of this draw, e.g. ``(epoch, step)``; the same key gives the same numbers.
            shape: Shape of one row's numbers.
            rows: Global rows to draw for; the rows of the current branch, or all, by default.

        Returns:
            float32. Shape: [len(rows), *shape].
        """
        words, full = self._words(draw, shape, rows, _NORMAL)
        # The radius needs a number in (0, 1]; the angle one in [0, 1).
        radius = np.sqrt(-2.0 * np.log((words[0::2] + np.uint64(1)).astype(np.float64) * 2.0**-32))
        angle = words[1::2].astype(np.float64) * (2.0 * np.pi * 2.0**-32)
        pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return _rows_first(pairs.reshape(4, *words.shape[1:]), full).astype(np.float32)

    def uniform(
        self, draw: Draw, shape: Sequence[int] | int = (), *, rows: Rows | None = None
    ) -> NDArray[np.float32]:
        """Uniform numbers in [0, 1), multiples of 2^-24.

        Args:
            draw: Key of this draw.
            shape: Shape of one row's numbers.
            rows: Global rows to draw for; the rows of the current branch, or all, by default.

        Returns:
            float32. Shape: [len(rows), *shape].
        """
        words, full = self._words(draw, shape, rows, _UNIFORM)
        return _rows_first((words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24), full)

    def _words(
        self, draw: Draw, shape: Sequence[int] | int, rows: Rows | None, kind: int
    ) -> tuple[Words, list[int]]:
        """Random words [4, rows, blocks] and the full shape of the result."""
        inner = [shape] if isinstance(shape, int) else list(shape)
        ids = self._row_ids(rows)
        blocks = -(-int(np.prod(inner, dtype=np.int64)) // 4)
        counter = np.zeros((4, len(ids), blocks), np.uint64)
        counter[0] = np.arange(blocks, dtype=np.uint64)
        counter[1] = ids[:, None]
        counter[2] = kind
        return philox(counter, self._key(draw)), [len(ids), *inner]

    def _row_ids(self, rows: Rows | None) -> Words:
        """Global rows as counter words.

        Raises:
            ValueError: If a row is outside the batch.
        """
        if rows is None:
            rows = current_rows() or RowRange(0, self.rows)
        if isinstance(rows, RowRange):
            rows = range(rows.start, rows.stop)
        ids = np.asarray(rows, dtype=np.int64).reshape(-1)
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.rows:
            raise ValueError(
                f"RowGenerator: expected global rows in 0..{self.rows - 1}, got {int(ids.min())}.."
                f"{int(ids.max())}. Pass rows=<size of the whole batch> when making it."
            )
        return ids.astype(np.uint64)

    def _key(self, draw: Draw) -> tuple[int, int]:
        """Philox key of one draw: the seed, stirred with every part of the draw's key in turn.

        Raises:
            ValueError: If a part is not an integer.
        """
        parts = draw if isinstance(draw, tuple) else (draw,)
        key = self._keys.get(parts)
        if key is None:
            key = (self.seed & _MASK, self.seed >> 32 & _MASK)
            for place, part in enumerate(parts):
                if not hasattr(part, "__index__"):
                    raise ValueError(
                        f"RowGenerator: expected integers as key of a draw, got {part!r} "
                        f"({type(part).__name__}). Pass e.g. (epoch, step)."
                    )
                word = int(part)
                block = np.array([word & _MASK, word >> 32 & _MASK, place, len(parts)], np.uint64)
                stirred = philox(block, key)
                key = (int(stirred[0]), int(stirred[1]))
            if len(self._keys) >= 4096:
                self._keys.clear()
            self._keys[parts] = key
        return key

    def __getstate__(self) -> dict[str, Any]:
        return {"seed": self.seed, "rows": self.rows, "_keys": {}}


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

    Args:
        counter: Counter words, each below 2^32. Shape: [4, ...].
        key: Two key words.

    Returns:
        Random words, each below 2^32. Shape: [4, ...].
    """
    mask, shift = np.uint64(_MASK), np.uint64(32)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0 = c0 * np.uint64(_MULTIPLIERS[0])
        p1 = c2 * np.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (p1 >> shift) ^ c1 ^ np.uint64(k0),
            p1 & mask,
            (p0 >> shift) ^ c3 ^ np.uint64(k1),
            p0 & mask,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return np.stack([c0, c1, c2, c3])


def _rows_first(values: NDArray[Any], full: list[int]) -> NDArray[Any]:
    """Numbers [4, rows, blocks] in the order of their place in the row, cut to `full`."""
    flat = values.transpose(1, 2, 0).reshape(values.shape[1], -1)
    count = int(np.prod(full[1:], dtype=np.int64))
    return np.ascontiguousarray(flat[:, :count]).reshape(full)
