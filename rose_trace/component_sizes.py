"""How much memory each component of a program holds in tensors and arrays.

A plan may copy a component for its readers; what that costs depends on its size. It is read once, when a
recording ends.
"""

from __future__ import annotations

import contextlib
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np

from rose_trace.component import INSTANCE, current_program

MOST_OBJECTS = 100_000  # ours: a tenth of a second; what is beyond is not counted

_PLAIN = (str, bytes, int, float, complex, bool, type, type(None))
_CODE = (FunctionType, MethodType, BuiltinFunctionType, ModuleType)


def component_sizes() -> dict[str, int]:
    """Sizes of the components of the current program that are alive.

    Returns:
        ``host_bytes of NAME`` and, where there are any, ``gpu_bytes of NAME`` [bytes].
    """
    told: dict[str, int] = {}
    for name, instance in current_program().instances.items():
        component = None if instance.alive is None else instance.alive()
        if component is None or instance.home is not None:  # gone, or in another process
            continue
        with contextlib.suppress(
            Exception
        ):  # of objects that answer for their attributes themselves
            host, gpu = held_bytes(component)
            told[f"host_bytes of {name}"] = host
            if gpu:
                told[f"gpu_bytes of {name}"] = gpu
    return told


def held_bytes(component: Any) -> tuple[int, int]:
    """Memory of the tensors and arrays that a component reaches, each storage once.

    Args:
        component: Any object with attributes.

    Returns:
        Host and GPU memory [bytes].

    >>> class Holder:
    ...     def __init__(self):
    ...         self.whole = np.zeros(8)
    ...         self.part = self.whole[:4]
    >>> held_bytes(Holder())
    (64, 0)
    """
    torch: Any = sys.modules.get("torch")
    found: dict[tuple[str, int], int] = {}
    seen: set[int] = set()
    attributes = cast("dict[str, Any]", vars(component))
    todo: list[Any] = [value for name, value in attributes.items() if name != INSTANCE]
    while todo and len(seen) < MOST_OBJECTS:
        item = todo.pop()
        if isinstance(item, _PLAIN) or id(item) in seen or isinstance(item, _CODE):
            continue
        seen.add(id(item))
        if torch is not None and isinstance(item, torch.Tensor):
            if item.layout == torch.strided and not item.is_meta:
                storage = item.untyped_storage()
                found[item.device.type, storage.data_ptr()] = storage.nbytes()
            todo += [item.grad] if item.is_leaf else []
        elif isinstance(item, np.ndarray):
            place, size = _memory(cast("Any", item))
            found["cpu", place] = size
        else:
            todo += _inside(item)
    host = sum(size for (device, _), size in found.items() if device == "cpu")
    return host, sum(found.values()) - host


def _memory(array: Any) -> tuple[int, int]:
    """Address and size of the memory that an array is, or is a view of [bytes]."""
    while isinstance(array.base, np.ndarray):
        array = cast("Any", array.base)
    return int(array.__array_interface__["data"][0]), int(array.nbytes)


def _inside(item: Any) -> list[Any]:
    """What a container or an object refers to; other components stand for themselves."""
    if isinstance(item, dict):
        return [*cast("dict[Any, Any]", item).values()]
    if isinstance(item, list | tuple | set | frozenset):
        return [*cast("list[Any]", item)]
    attributes: dict[str, Any] = getattr(item, "__dict__", {})
    return [] if INSTANCE in attributes else [*attributes.values()]
