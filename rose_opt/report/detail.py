"""Levels of detail: what is narrower than a pixel is drawn as bands whose heights are shares of time.

The page holds every invocation as long as there are no more than `MOST_BLOCKS`, and coarser levels for
the overview. Zooming in switches to finer ones, so a browser never draws more than it can show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_BLOCKS = 80_000  # ours: invocations, which keeps a page of two traces below 6 MB
MOST_BANDS = 40_000  # ours: of one merged level, for the same reason
FEW_BLOCKS = 2_000  # ours: with so few, all of them are drawn at every zoom
OVERVIEW_PIXELS = 1_300  # ours: width that the coarsest level is made for
TINY_PIXELS = 2  # ours: what is narrower is drawn together with its neighbours
BAND_PIXELS = 12  # ours: how much of a lane one band stands for
ZOOM = 4  # ours: how much finer the next level is
HEIGHT = 0.88  # ours: of a block in its row


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rectangles of a timeline, as columns of equal length.

    Attributes:
        left_s: Start since the iteration began [s].
        right_s: End [s].
        row: Row, from the top.
        node: Number of the node.
        step: Index in the innermost loop; -1 for none.
        group: Branch of a split; -1 for none.
        wait_s: Time between ready and start [s]; NaN where unknown.
    """

    left_s: Any
    right_s: Any
    row: Any
    node: Any
    step: Any
    group: Any
    wait_s: Any

    def __len__(self) -> int:
        return len(self.left_s)


@dataclass(frozen=True, slots=True)
class Bands:
    """One level of detail: blocks and merged blocks, as columns of equal length.

    Attributes:
        resolution_s: Blocks narrower than this are merged [s].
        left_s: Start since the iteration began [s].
        right_s: End [s].
        top: Upper edge, in rows from the top.
        bottom: Lower edge, in rows from the top.
        node: Number of the node.
        count: Invocations in it.
        busy_s: Sum of their durations [s].
    """

    resolution_s: float
    left_s: Any
    right_s: Any
    top: Any
    bottom: Any
    node: Any
    count: Any
    busy_s: Any

    def __len__(self) -> int:
        return len(self.left_s)


@dataclass(frozen=True, slots=True)
class Levels:
    """All levels of one timeline.

    Attributes:
        bands: Merged levels from coarse to fine; empty where there are few blocks.
        exact: Every invocation; ``None`` where they are too many for a page.
    """

    bands: tuple[Bands, ...]
    exact: Blocks | None


def levels(blocks: Blocks, span_s: float) -> Levels:
    """Levels of detail for a timeline.

    Args:
        blocks: All invocations.
        span_s: Length of the shared time axis [s].

    Returns:
        Levels of which the finest is exact where the page can hold it.
    """
    if len(blocks) <= FEW_BLOCKS:
        return Levels((), blocks)
    found: list[Bands] = []
    resolution_s = TINY_PIXELS * span_s / OVERVIEW_PIXELS
    most = min(MOST_BANDS, len(blocks) // 2)
    while True:
        bands = merged(blocks, resolution_s)
        if found and (len(bands) > most or len(bands) <= len(found[-1])):
            break
        found.append(bands)
        if len(bands) > most:
            break
        resolution_s /= ZOOM
    return Levels(tuple(found), blocks if len(blocks) <= MOST_BLOCKS else None)


def merged(blocks: Blocks, resolution_s: float) -> Bands:
    """Merge what is narrower than `resolution_s` with its neighbours in the row.

    Args:
        blocks: All invocations.
        resolution_s: Width below which blocks merge [s].

    Returns:
        Wide blocks as they are; of the others one band per node and stretch of a row, as high as the
        share of the stretch that the node's invocations fill.
    """
    tiny = (blocks.right_s - blocks.left_s) < resolution_s
    wide = ~tiny
    low = blocks.row[wide] + HEIGHT / 2
    kept = Bands(
        resolution_s,
        blocks.left_s[wide],
        blocks.right_s[wide],
        low - HEIGHT,
        low,
        blocks.node[wide],
        np.ones(int(wide.sum()), dtype=np.int64),
        (blocks.right_s - blocks.left_s)[wide],
    )
    if not tiny.any():
        return kept
    banded = _bands(blocks, tiny, resolution_s)
    columns = ("left_s", "right_s", "top", "bottom", "node", "count", "busy_s")
    return Bands(
        resolution_s,
        *(np.concatenate([getattr(kept, name), getattr(banded, name)]) for name in columns),
    )


def _bands(blocks: Blocks, tiny: Any, resolution_s: float) -> Bands:
    order = np.flatnonzero(tiny)
    order = order[np.lexsort((blocks.left_s[order], blocks.row[order]))]
    left, right = blocks.left_s[order], blocks.right_s[order]
    row, node = blocks.row[order], blocks.node[order].astype(np.int64)
    cell = np.floor((left + right) / 2 / (resolution_s * BAND_PIXELS / TINY_PIXELS))
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = (
        (row[1:] != row[:-1]) | (cell[1:] != cell[:-1]) | (left[1:] - right[:-1] > resolution_s)
    )
    first = np.flatnonzero(starts)
    stretch = np.cumsum(starts) - 1
    begin, end = left[first], np.maximum.reduceat(right, first)
    nodes = int(node.max()) + 1
    keys, of_band = np.unique(stretch * nodes + node, return_inverse=True)
    owner = keys // nodes
    busy = np.bincount(of_band, weights=right - left)
    total = np.bincount(owner, weights=busy)
    length = np.maximum(np.maximum(end - begin, total), 1e-12)  # rows may overlap in the last one
    share = HEIGHT * busy / length[owner]
    above = np.cumsum(share)
    base = (above - share)[np.searchsorted(owner, np.arange(len(first)))]
    bottom = row[first][owner] + HEIGHT / 2 - (above - share - base[owner])
    return Bands(
        resolution_s,
        begin[owner],
        end[owner],
        bottom - share,
        bottom,
        keys % nodes,
        np.bincount(of_band),
        busy,
    )
