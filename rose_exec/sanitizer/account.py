"""What an object says of itself: its state, its attributes, the memory that it lies in."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from rose_exec.digest import digest, is_array, is_tensor
from rose_trace.pytree import class_of


def own_account(value: Any) -> Any | None:
    """What an object says of its own state, where that can stand for it.

    Objects of C code say it in bytes. Of others it counts where it names just their attributes, so
    that a cache can be left out; many pickle no more than what they were made from.
    """
    custom = getattr(class_of(value), "__getstate__", None)
    if custom is None or custom is getattr(object, "__getstate__", None):
        return None
    try:
        account = value.__getstate__()
    except Exception:
        return None
    names = getattr(value, "__dict__", None)
    if names is None:
        return account
    return account if isinstance(account, dict) and account.keys() == names.keys() else None  # pyright: ignore[reportUnknownVariableType]


def generator_state(value: Any) -> str | None:
    """Digest of a random generator's state; ``None`` for anything else."""
    if isinstance(value, np.random.Generator):
        return digest(repr(value.bit_generator.state))
    if isinstance(value, np.random.BitGenerator):
        return digest(repr(value.state))
    if isinstance(value, np.random.RandomState):
        return digest(repr([np.asarray(x).tobytes() for x in value.get_state()]))  # type: ignore[arg-type]
    if isinstance(value, random.Random):
        return digest(repr(value.getstate()))
    if class_of(value).__module__.startswith("torch") and class_of(value).__name__ == "Generator":
        return digest(value.get_state())
    return None


def attributes(value: Any) -> dict[str, Any]:
    """Attributes of an object, slots included, without what Rose keeps there."""
    found: dict[str, Any] = {}
    for cls in reversed(class_of(value).__mro__):
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    found |= getattr(value, "__dict__", {})
    return {k: v for k, v in found.items() if k != "_rose_instance"}


def memory_of(value: Any) -> tuple[int, int] | None:
    """Address range of a tensor or array; ``None`` for anything else."""
    try:
        if is_tensor(value):
            if not value.numel():
                return None
            start = int(value.data_ptr())
            extent = sum((n - 1) * abs(s) for n, s in zip(value.shape, value.stride(), strict=True))
            return start, start + (extent + 1) * value.element_size()
        if is_array(value) and value.size:
            low, high = np.lib.array_utils.byte_bounds(value)
            return int(low), int(high)
    except (RuntimeError, NotImplementedError):
        return None
    return None
