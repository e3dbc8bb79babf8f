from __future__ import annotations

import pickle

import numpy as np
import pytest

from rose_trace.frames import Frame, entered
from rose_trace.legality import RowRange, partition
from rose_trace.rng import RowGenerator, philox

# Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_agrees_with_the_published_vectors(
    counter: list[int], key: list[int], expected: list[int]
) -> None:
    words = philox(np.array(counter, np.uint64), (key[0], key[1]))
    assert words.tolist() == expected


@pytest.mark.parametrize("shape", [(), (1,), (3,), 5, (10, 7), (2, 3, 4), (0,), (257,)])
@pytest.mark.parametrize("rows", [1, 2, 5, 64])
@pytest.mark.parametrize("method", ["normal", "uniform"])
def test_parts_of_a_batch_draw_the_bits_of_the_whole(
    shape: tuple[int, ...] | int, rows: int, method: str
) -> None:
    draw = getattr(RowGenerator(3, rows), method)
    whole = draw((4, 1), shape)
    inner = (shape,) if isinstance(shape, int) else shape
    assert whole.shape == (rows, *inner)
    assert whole.dtype == np.float32
    for groups in {1, min(2, rows), rows}:
        parts = [draw((4, 1), shape, rows=part) for part in partition(rows, groups)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
    backwards = draw((4, 1), shape, rows=list(reversed(range(rows))))
    assert backwards[::-1].tobytes() == whole.tobytes()


def test_rows_come_from_the_current_branch() -> None:
    noise = RowGenerator(3, 8)
    whole = noise.normal(0, (4,))
    with entered(Frame(rows=RowRange(2, 5))):
        assert noise.normal(0, (4,)).tobytes() == whole[2:5].tobytes()


def test_moments() -> None:
    noise = RowGenerator(11, 400)
    normal = noise.normal((1, 2), (1000,)).astype(np.float64)
    assert abs(normal.mean()) < 0.01
    assert abs(normal.var() - 1) < 0.01
    assert abs((normal**4).mean() - 3) < 0.1
    uniform = noise.uniform((1, 2), (1000,)).astype(np.float64)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.005
    assert abs(uniform.var() - 1 / 12) < 0.002
    # Neighbouring places, rows and draws are uncorrelated.
    assert abs((normal[:, 1:] * normal[:, :-1]).mean()) < 0.01
    assert abs((normal[1:] * normal[:-1]).mean()) < 0.01
    assert abs((normal * noise.normal((1, 3), (1000,))).mean()) < 0.01


def test_every_part_of_the_key_counts() -> None:
    keys: list[tuple[int, ...]] = [
        (0,),
        (1,),
        (0, 0),
        (0, 1),
        (1, 0),
        (0, 0, 0),
        (-1,),
        (2**32,),
        (2**40, 5),
    ]
    drawn = {RowGenerator(5, 2).normal(key, (4,)).tobytes() for key in keys}
    drawn.add(RowGenerator(6, 2).normal((0,), (4,)).tobytes())
    drawn.add(RowGenerator(5 + 2**32, 2).normal((0,), (4,)).tobytes())
    assert len(drawn) == len(keys) + 2
    assert (
        RowGenerator(5, 2).normal(7, (4,)).tobytes()
        == RowGenerator(5, 9).normal((7,), (4,))[:2].tobytes()
    )


def test_a_pickled_generator_draws_the_same() -> None:
    noise = RowGenerator(5, 3)
    noise.normal(1)
    copy = pickle.loads(pickle.dumps(noise))
    assert copy.normal((2, 2), (3,)).tobytes() == noise.normal((2, 2), (3,)).tobytes()


def test_errors() -> None:
    with pytest.raises(
        ValueError, match=r"expected rows in 1\.\.2\^32, got 0\. Pass the size of the whole batch\."
    ):
        RowGenerator(1, 0)
    noise = RowGenerator(1, 4)
    with pytest.raises(ValueError, match=r"expected global rows in 0\.\.3, got 2\.\.4\."):
        noise.normal(0, rows=range(2, 5))
    with pytest.raises(ValueError, match=r"expected integers as key of a draw, got 0\.5 \(float\)"):
        noise.normal((1, 0.5))  # pyright: ignore[reportArgumentType]
