from __future__ import annotations

from typing import Any

import torch

from rose_exec.graphs.buffers import BLOCK_BYTES, blocks_of, buffer_like, view_in, written_once
from rose_exec.graphs.signature import ALIGNMENT


def test_buffers_lie_as_their_originals_do() -> None:
    whole = torch.arange(240.0).reshape(12, 20)
    for value in (
        whole,
        whole[1:, 3:7],
        whole.t(),
        whole[2, 5],
        whole[:1].expand(6, 20),
        whole[:0],
        whole.reshape(-1)[3:].to(torch.uint8)[1:],
        torch.nn.Parameter(whole[:, ::2].clone()),
    ):
        with torch.no_grad():
            buffer = buffer_like(value)
            written_once(buffer).copy_(written_once(value))
            assert torch.equal(buffer, value)
        assert buffer.stride() == value.stride()
        assert buffer.dtype is value.dtype
        if value.numel():
            assert buffer.data_ptr() % ALIGNMENT == value.data_ptr() % ALIGNMENT
            assert buffer.data_ptr() != value.data_ptr()


def test_copies_of_results_share_memory_as_the_results_do() -> None:
    whole = torch.arange(3_000.0).reshape(50, 60)
    other = torch.arange(8, dtype=torch.int64)
    complex_ = torch.zeros(3, dtype=torch.complex64)
    outputs = [whole[40:, 5:], whole[45:48].t(), other, other[:0], complex_, whole[44:, 6:7]]
    blocks, places = blocks_of(outputs)
    assert len(blocks) == 3
    assert blocks[0].numel() <= 10 * 60 * 4 + BLOCK_BYTES  # not the rows before the first result
    copies = [block.clone() for block in blocks]
    made = [view_in(copies[place.block], place) for place in places]
    for mine, value in zip(made, outputs, strict=True):
        assert torch.equal(mine, value)
        assert (mine.stride(), mine.dtype) == (value.stride(), value.dtype)
        start: Any = value.untyped_storage().data_ptr()
        inside = value.data_ptr() - start
        if value.numel():
            copied = mine.data_ptr() - mine.untyped_storage().data_ptr()
            assert copied % BLOCK_BYTES == inside % BLOCK_BYTES
    made[0].zero_()
    assert float(made[5].sum()) == 0.0
    assert float(whole.sum()) == float(torch.arange(3_000.0).sum())
