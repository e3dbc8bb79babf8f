"""Memory beside a graph's own: what comes in is copied there before a replay, what goes out after it.

Copies lie as their originals do, since kernels choose their way by strides and alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rose_exec.graphs.signature import ALIGNMENT

BLOCK_BYTES = 512  # what the caching allocator aligns to: copies lie modulo this as originals do


@dataclass(frozen=True, slots=True)
class Output:
    """Where a result lies.

    Attributes:
        block: Index of the byte range that holds it.
        dtype: Its element type.
        offset: First element in that range.
        shape: Its shape.
        stride: Its strides in elements.
    """

    block: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def buffer_like(value: torch.Tensor) -> torch.Tensor:
    """Memory of its own with the same strides and alignment; the contents are not set."""
    size = value.element_size()
    shift = value.data_ptr() % ALIGNMENT // size
    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    room = torch.empty(shift + max(extent, 0), dtype=value.dtype, device=value.device)
    return room.as_strided(value.shape, value.stride(), shift)


def written_once(value: torch.Tensor) -> torch.Tensor:
    """The tensor without repetitions of the same memory, which expanding makes."""
    strides = value.stride()
    if 0 not in strides:
        return value
    shape = [1 if s == 0 and n else n for n, s in zip(value.shape, strides, strict=True)]
    return value.as_strided(shape, strides)


def blocks_of(outputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[Output]]:
    """Byte ranges that hold results, one per storage, and where the results lie in them.

    Args:
        outputs: The results; those that share a storage share a range.

    Returns:
        The ranges, as views of the results' own memory, and the places.
    """
    spans: dict[int, tuple[Any, int, int]] = {}
    for value in outputs:
        storage: Any = value.untyped_storage()
        key = storage._cdata  # noqa: SLF001
        first = int(value.storage_offset()) * value.element_size()
        reach = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
        last = first + (reach + 1) * value.element_size() if value.numel() else first
        _, low, high = spans.get(key, (storage, first, last))
        spans[key] = storage, min(low, first), max(high, last)
    blocks: list[torch.Tensor] = []
    places: dict[int, tuple[int, int]] = {}
    for key, (storage, low, high) in spans.items():
        start = low // BLOCK_BYTES * BLOCK_BYTES
        places[key] = len(blocks), start
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
        blocks.append(whole.set_(storage, start, (high - start,), (1,)))  # pyright: ignore[reportUnknownMemberType]
    made: list[Output] = []
    for value in outputs:
        storage = value.untyped_storage()
        block, start = places[storage._cdata]  # noqa: SLF001
        offset = int(value.storage_offset()) - start // value.element_size()
        made.append(Output(block, value.dtype, offset, tuple(value.shape), value.stride()))
    return blocks, made


def view_in(block: torch.Tensor, output: Output) -> torch.Tensor:
    """The result in a copy of its range."""
    made = torch.empty(0, dtype=output.dtype, device=block.device)
    storage: Any = block.untyped_storage()
    return made.set_(storage, output.offset, output.shape, output.stride)  # pyright: ignore[reportUnknownMemberType]
