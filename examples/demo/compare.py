"""Digests: two runs did the same if and only if these agree."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor

from rose_trace import pytree


def digest(value: Any) -> str:
    """SHA-256 over structure, shapes, element types and every bit of the tensors of a value.

    Args:
        value: Nested tuples, lists, dicts and records of tensors and plain data.

    Returns:
        64 hexadecimal digits.

    >>> import torch
    >>> digest({"x": torch.zeros(2)}) == digest({"x": torch.zeros(2)})
    True
    >>> digest({"x": torch.zeros(2)}) == digest({"x": -torch.zeros(2)})
    False
    """
    leaves, structure = pytree.flatten(value)
    total = hashlib.sha256(structure.to_json().encode())
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            total.update(leaf.detach().cpu().contiguous().numpy().tobytes())
        else:
            total.update(repr(leaf).encode())
    return total.hexdigest()
