from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_opt.report.detail import (
    FEW_BLOCKS,
    HEIGHT,
    MOST_BANDS,
    MOST_BLOCKS,
    Blocks,
    levels,
    merged,
)


def blocks(*items: tuple[float, float, int, int]) -> Blocks:
    """Blocks of ``(left, right, row, node)``."""
    table: Any = np.array(items, dtype=np.float64).reshape(-1, 4)
    row, node = table[:, 2].astype(np.int64), table[:, 3].astype(np.int64)
    none = np.full(len(table), -1)
    return Blocks(table[:, 0], table[:, 1], row, node, none, none, none.astype(np.float64))


def alternating(count: int, row: int = 0) -> list[tuple[float, float, int, int]]:
    """Invocations of 1 s, a quarter of it node 0 and the rest node 1."""
    found: list[tuple[float, float, int, int]] = []
    for n in range(count):
        found += [(n, n + 0.25, row, 0), (n + 0.25, n + 1.0, row, 1)]
    return found


def test_wide_blocks_stay_as_they_are() -> None:
    bands = merged(blocks((0, 5, 0, 3), (5, 9, 2, 1)), resolution_s=1.0)
    assert list(bands.left_s) == [0, 5]
    assert list(bands.right_s) == [5, 9]
    assert list(bands.count) == [1, 1]
    assert list(bands.bottom) == pytest.approx([HEIGHT / 2, 2 + HEIGHT / 2])
    assert list(bands.bottom - bands.top) == pytest.approx([HEIGHT, HEIGHT])


def test_heights_are_shares_of_time() -> None:
    bands = merged(blocks(*alternating(10)), resolution_s=2.0)  # bands of 12 s
    assert list(bands.node) == [0, 1]
    assert list(bands.count) == [10, 10]
    assert list(bands.busy_s) == pytest.approx([2.5, 7.5])
    assert list(bands.left_s) == [0, 0]
    assert list(bands.right_s) == [10, 10]
    assert list(bands.bottom - bands.top) == pytest.approx([HEIGHT / 4, HEIGHT * 3 / 4])
    assert bands.top[0] == pytest.approx(bands.bottom[1])


def test_idle_time_between_calls_leaves_the_band_lower() -> None:
    calls = [(n * 1.0, n + 0.5, 0, 0) for n in range(10)]
    (height,) = (merged(blocks(*calls), 1.0).bottom - merged(blocks(*calls), 1.0).top).tolist()[:1]
    assert height == pytest.approx(HEIGHT * 0.5, rel=0.1)


def test_a_gap_wider_than_the_resolution_is_seen() -> None:
    bands = merged(blocks((0, 0.5, 0, 0), (0.5, 1, 0, 0), (3, 3.5, 0, 0)), resolution_s=1.0)
    assert list(zip(bands.left_s, bands.right_s, bands.count, strict=True)) == [
        (0, 1, 2),
        (3, 3.5, 1),
    ]


def test_rows_never_merge() -> None:
    bands = merged(blocks(*alternating(3, row=0), *alternating(3, row=1)), resolution_s=2.0)
    row: Any = bands.bottom.round()
    assert sorted(zip(bands.node, row, bands.count, strict=True)) == [
        (0, 0, 3),
        (0, 1, 3),
        (1, 0, 3),
        (1, 1, 3),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(1, 9), st.integers(0, 2), st.integers(0, 4)),
        min_size=1,
    ),
    st.floats(0.01, 20),
)
def test_no_invocation_and_no_time_is_lost(
    items: list[tuple[int, int, int, int]], resolution_s: float
) -> None:
    """Also where blocks of a row overlap, as they do in a lane that is too deep."""
    given_blocks = blocks(*((left, left + width, r, n) for left, width, r, n in items))
    bands = merged(given_blocks, resolution_s)
    assert bands.count.sum() == len(items)
    assert bands.busy_s.sum() == pytest.approx(sum(width for _, width, _, _ in items))
    for row in range(3):
        lower = row + HEIGHT / 2 + 1e-9
        middle: Any = (bands.top + bands.bottom) / 2
        inside: Any = middle.round() == row
        assert (bands.bottom[inside] <= lower).all()
        assert (bands.top[inside] >= lower - HEIGHT - 2e-9).all()


def test_few_invocations_are_drawn_exactly_at_every_zoom() -> None:
    few = blocks(*alternating(FEW_BLOCKS // 2))
    assert levels(few, 1.0).bands == ()
    assert levels(few, 1.0).exact is few


def test_levels_get_finer_until_all_is_exact() -> None:
    many = blocks(*alternating(20_000))
    found = levels(many, 20_000.0)
    assert found.exact is many
    sizes = [len(bands) for bands in found.bands]
    assert sizes == sorted(sizes)
    assert sizes[0] < 3_000
    resolutions = [bands.resolution_s for bands in found.bands]
    assert resolutions == sorted(resolutions, reverse=True)


def test_more_than_a_page_can_hold_is_never_in_it() -> None:
    many = blocks(*alternating(MOST_BLOCKS))
    found = levels(many, float(MOST_BLOCKS))
    assert found.exact is None
    assert max(len(bands) for bands in found.bands) <= MOST_BANDS
    assert all(bands.count.sum() == 2 * MOST_BLOCKS for bands in found.bands)
