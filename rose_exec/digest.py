"""Digests of values: equal bits give equal digests, whatever holds them."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable
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


def content(value: Any, full_bytes: int | None = None) -> Any | None:
    """The bytes of a tensor or array as a flat uint8 array; ``None`` where it has none to look at.

    Args:
        value: Anything. Of a tensor on a device, its current stream there is waited for, nothing else.
        full_bytes: Of longer contents only samples are given; those of a device are taken there.
    """
    if is_tensor(value):
        torch: Any = sys.modules["torch"]
        if value.layout is not torch.strided or value.device.type == "meta" or value.is_quantized:
            return None
        with torch.no_grad():
            plain = value.detach()
            plain = plain.resolve_conj().resolve_neg() if plain.is_complex() else plain
            if plain.is_contiguous() and full_bytes is not None:
                flat = plain.reshape(-1).view(torch.uint8)
                return _sampled(flat, full_bytes, torch.cat).cpu().numpy()
            data = plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return _sampled(data, full_bytes, np.concatenate)
    if is_array(value) and not value.dtype.hasobject:
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return _sampled(data, full_bytes, np.concatenate)
    return None


def _sampled(data: Any, full_bytes: int | None, join: Callable[[list[Any]], Any]) -> Any:
    """Both ends and evenly spaced blocks of what is longer than `full_bytes`; all of the rest."""
    if full_bytes is None or len(data) <= max(full_bytes, SAMPLE_BYTES):
        return data
    starts = np.linspace(0, len(data) - SAMPLE_BYTES, SAMPLES).astype(np.int64).tolist()
    return join([data[start : start + SAMPLE_BYTES] for start in starts])


def digest_bytes(data: Any) -> str:
    """Digest of a flat uint8 array.

    Args:
        data: The bytes. Shape: [n].

    Returns:
        16 hexadecimal digits.
    """
    return hashlib.blake2b(memoryview(data), digest_size=8).hexdigest()


def digest(value: Any, full_bytes: int | None = None) -> str:
    """Digest of one leaf: bits, element type and shape of a tensor or array; the value of plain data.

    Args:
        value: A leaf.
        full_bytes: Size above which contents are sampled.

    Returns:
        The digest; of an object that cannot be looked into, its type alone.
    """
    data = content(value, full_bytes)
    if data is not None:
        bits = digest_bytes(data)
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
