"""Digests of values: equal bits give equal digests, whatever holds them."""

from __future__ import annotations

import hashlib
import pickle
import sys
from typing import Any

import numpy as np

from rose_trace.identity import derives
from rose_trace.pytree import class_of

FULL_BYTES = 1 << 24  # ours: larger contents are sampled where the caller allows it
SAMPLE_BYTES = 1 << 12  # ours
SAMPLES = 64  # ours


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor; imports nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and derives(class_of(value), torch.Tensor)


def is_array(value: Any) -> bool:
    """Whether a value is a numpy array."""
    return derives(class_of(value), np.ndarray)


def content(value: Any) -> Any | None:
    """The bytes of a tensor or array as a flat uint8 array; ``None`` where it has none to look at."""
    if is_tensor(value):
        torch: Any = sys.modules["torch"]
        if value.layout is not torch.strided or value.device.type == "meta" or value.is_quantized:
            return None
        with torch.no_grad():
            plain = value.detach()
            plain = plain.resolve_conj().resolve_neg() if plain.is_complex() else plain
            return plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if is_array(value) and not value.dtype.hasobject:
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return None


def digest_bytes(data: Any, full_bytes: int | None = None) -> str:
    """Digest of a flat uint8 array.

    Args:
        data: The bytes. Shape: [n].
        full_bytes: Longer contents are sampled: both ends and evenly spaced blocks; ``None`` never.

    Returns:
        16 hexadecimal digits.
    """
    if full_bytes is not None and len(data) > full_bytes:
        starts = np.linspace(0, len(data) - SAMPLE_BYTES, SAMPLES).astype(np.int64)
        data = np.concatenate([data[start : start + SAMPLE_BYTES] for start in starts])
    return hashlib.blake2b(memoryview(data), digest_size=8).hexdigest()


def digest(value: Any, full_bytes: int | None = None) -> str:
    """Digest of one leaf: bits, element type and shape of a tensor or array; the value of plain data.

    Args:
        value: A leaf.
        full_bytes: Size above which contents are sampled.

    Returns:
        The digest; of an object that cannot be looked into, its type alone.
    """
    data = content(value)
    if data is not None:
        bits = digest_bytes(data, full_bytes)
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}:{bits}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        text = f"{class_of(value).__name__}:{value!r}"
        return text if len(text) < 80 else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    try:
        return hashlib.blake2b(pickle.dumps(value, protocol=5), digest_size=8).hexdigest()
    except Exception:
        return class_of(value).__qualname__


def digest_rows(value: Any) -> tuple[str, tuple[str, ...]]:
    """Digest of a leaf, and of each entry on axis 0 where it has any."""
    data = content(value)
    if data is None or not value.shape or not value.shape[0] or not len(data):
        return digest(value), ()
    parts = data.reshape(value.shape[0], -1)
    return digest(value), tuple(digest_bytes(part) for part in parts)
