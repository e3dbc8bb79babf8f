from __future__ import annotations

import contextlib
import enum
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rose_exec.graphs.signature import read, replace_tensors, surroundings
from rose_exec.graphs.unfit import UnfitError
from rose_trace.frames import Frame, entered
from rose_trace.legality import RowRange

CPU = torch.device("cpu")


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Batch:
    obs: Any
    scale: float = 1.0


class Mode(enum.Enum):
    GREEDY = 1
    SAMPLED = 2


@contextlib.contextmanager
def cuda_autocast(*, cache: bool) -> Generator[None]:
    """`torch.autocast("cuda")`, which a machine without CUDA would switch off again."""
    before = torch.is_autocast_enabled("cuda"), torch.is_autocast_cache_enabled()
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_cache_enabled(cache)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_cache_enabled(before[1])


def of(*args: Any, **kwargs: Any) -> Any:
    return read(args, kwargs, CPU)[0]


def test_contents_of_tensors_do_not_count_and_all_else_does() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    calls = [
        of(x),
        of(x, 1),
        of(x, True),
        of(x, 1.0),
        of(x, "1"),
        of(x, None),
        of(x, Mode.GREEDY),
        of(x, Mode.SAMPLED),
        of(x, n=1),
        of(x, m=1),
        of(x.double()),
        of(x[:2]),
        of(x.t().contiguous().t()),
        of(x.reshape(-1)[1:5].reshape(1, 4)),
        of([x]),
        of((x,)),
        of({"a": x}),
        of({"b": x}),
        of(Pair(x, 0)),
        of(Batch(x)),
        of(Batch(x, 2.0)),
        of(x, 0.0),
        of(x, -0.0),
    ]
    assert len(set(calls)) == len(calls)
    assert of(x) == of(torch.zeros(3, 4))
    assert of({"a": Pair(x, 7)}, n="s") == of({"a": Pair(x + 1, 7)}, n="s")


def test_settings_that_choose_kernels_count() -> None:
    x = torch.zeros(2)
    found = {of(x)}
    with torch.no_grad():
        found.add(of(x))
    with torch.inference_mode():
        found.add(of(x))
    with cuda_autocast(cache=False):
        found.add(of(x))
    with entered(Frame("it", rows=RowRange(0, 4))):
        found.add(of(x))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        found.add(of(x))
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(found) == 6
    assert surroundings() == surroundings()


def test_what_cannot_be_copied_in_is_refused() -> None:
    x = torch.zeros(2)
    needs = torch.zeros(2, requires_grad=True)
    cases: list[tuple[Any, str]] = [
        (torch.zeros(2, device="meta"), "a tensor on meta among the arguments"),
        (x.to_sparse(), r"a tensor on torch\.sparse_coo among the arguments"),
        (needs, "an argument that needs gradients"),
        (np.zeros(2), "an argument of type ndarray"),
        ({1: x}, "an argument of type dict"),
        (object(), "an argument of type object"),
        (list(range(5_000)), "arguments of too many parts"),
    ]
    for value, fact in cases:
        with pytest.raises(UnfitError, match=f"^{fact}$") as caught:
            of(value)
        assert caught.value.action
    with torch.no_grad():
        assert of(needs) == of(x)
    with (
        cuda_autocast(cache=True),
        pytest.raises(UnfitError, match="autocast that keeps cast weights"),
    ):
        of(x)


def test_tensors_are_replaced_in_the_order_in_which_they_were_read() -> None:
    tensors = [torch.full((1,), float(n)) for n in range(6)]
    args = ({"a": Pair(tensors[0], 3), "b": [tensors[1], None]}, Batch(tensors[2]))
    kwargs = {"x": (tensors[3], "s"), "y": torch.nn.Parameter(tensors[4], requires_grad=False)}
    found = read(args, kwargs, CPU)[1]
    assert [int(x) for x in found] == [0, 1, 2, 3, 4]
    moved, named = replace_tensors((args, kwargs), iter([x + 10 for x in found]))
    again = read(moved, named, CPU)[1]
    assert [int(x) for x in again] == [10, 11, 12, 13, 14]
    assert moved[0]["a"].right == 3
    assert named["x"][1] == "s"
