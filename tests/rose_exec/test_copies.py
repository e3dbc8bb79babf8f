"""Copies lie as their originals do, whichever way they travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rose_exec.copies import MOST_HOLES, copied
from rose_exec.wire import Held, Rows, decode, pack
from rose_exec.workers.job import isolate

LARGE = 1024  # rows: above what travels as bytes


def _tensors(rows: int) -> dict[str, torch.Tensor]:
    whole = torch.arange(rows * 8 * 16, dtype=torch.float32).view(rows, 8, 16)
    return {
        "packed": whole,
        "transposed": whole.transpose(0, 2),
        "columns": whole[:, :, 3:7],
        "every second": whole[::2],
        "column-major with holes": whole[:, 1:5].permute(2, 0, 1),
    }


def _same(found: Any, original: torch.Tensor) -> None:
    assert torch.equal(found, original)
    assert found.stride() == original.stride()
    assert found.untyped_storage().data_ptr() != original.untyped_storage().data_ptr()


@pytest.mark.parametrize("rows", [4, LARGE], ids=["bytes", "shared"])
@pytest.mark.parametrize("name", _tensors(4))
def test_strides_survive_every_way(name: str, rows: int) -> None:
    tensor = _tensors(rows)[name]
    _same(isolate(tensor), tensor)
    [sent] = pack([tensor])
    assert isinstance(sent, Held) == (rows == LARGE)
    _same(decode(sent), tensor)
    _same(decode(Rows(sent, 0, tensor.shape[0])), tensor)


def test_gradients_of_a_copy_with_holes() -> None:
    tensor = torch.zeros(4, 8, requires_grad=True)
    copied(tensor[:, :4]).sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.sum() == 16
    [sent] = pack([torch.zeros(4, 8)[:, :4].requires_grad_()])
    assert decode(sent).requires_grad


def test_what_shares_memory_or_is_mostly_holes_is_packed() -> None:
    row = torch.arange(4.0)
    spread = row.expand(3, 4)
    assert copied(spread).stride() == (4, 1)
    windows = torch.arange(10.0).unfold(0, 4, 1)
    assert torch.equal(copied(windows), windows)
    sparse = torch.zeros(64, 2 * MOST_HOLES)[:, :1]
    assert copied(sparse).stride() == (1, 1)


def test_arrays_keep_their_order() -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert isolate(array).flags.f_contiguous
    assert copied(array) is not array
