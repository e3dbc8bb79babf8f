"""Copies that lie in memory as the original does: kernels choose by strides, and so do the last bits.

Paper: §4.2 (a plan changes when work runs, not what it computes).
"""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_HOLES = 8  # ours: a copy is at most so many times as large as what it holds


def copied(value: Any, strides: tuple[int, ...] | None = None) -> Any:
    """A copy of a tensor or array, with memory of its own.

    Args:
        value: The tensor or array.
        strides: Strides of a tensor's copy [elements], where `value` lies otherwise than its original
            did; by default `strides_of_copy` of `value`.
    """
    if type(value) is np.ndarray:
        array: Any = value
        return array.copy(order="K")
    strides = strides or strides_of_copy(value)
    if strides is None:
        return value.clone()
    import torch

    made = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return made.copy_(value)


def strides_of_copy(tensor: Any) -> tuple[int, ...] | None:
    """Strides that a copy of a tensor takes over; ``None`` for the last axis first, without holes.

    A copy is packed that way where elements share memory, and where holes would make it more than
    `MOST_HOLES` times as large.
    """
    if tensor.is_contiguous() or not tensor.numel():
        return None
    strides: tuple[int, ...] = tensor.stride()
    reach = 1  # elements from the first to the last of the axes looked at
    for stride, size in sorted(zip(strides, tensor.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return None
            reach += stride * (size - 1)
    return strides if reach <= MOST_HOLES * tensor.numel() else None
