"""Identity of storages: the same number for every view of one storage, never one number for two.

A storage keeps its identity as an attribute on the storage object, so views share it and a freed
address is never mistaken for the old value. Where the native hot path records, it keeps them instead, by
storage: `keep_in`. Torch is looked up, never imported.
"""

from __future__ import annotations

import functools
import itertools
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from rose_trace.pytree import class_of

derives: Callable[[Any, Any], bool] = issubclass


class Identity:
    """One storage.

    Attributes:
        ref: Number of the storage, unique among all processes of a run.
        producer: Span id of the invocation that last handed the storage out; 0 unknown.
        stamp: End of that invocation [Unix ns].
        device: Device of the storage.
    """

    __slots__ = ("device", "producer", "ref", "stamp")

    def __init__(self, ref: int, device: str = "") -> None:
        self.ref = ref
        self.producer = 0
        self.stamp = 0
        self.device = device


UNKNOWN = Identity(0)

Table = Callable[[Any], Identity | None]
"""Gives the identity of a storage; ``None`` for what it cannot keep."""

_table: Table | None = None


def of_tensor(tensor: Any) -> Identity:
    """Identity of the storage behind a tensor.

    Raises:
        NotImplementedError: If it has no storage (a sparse tensor).
        RuntimeError: The same for a functional tensor.
    """
    return of_storage(tensor.untyped_storage(), tensor.device)


def of_storage(storage: Any, device: Any) -> Identity:
    """Identity of a storage, given to it now where it has none."""
    known = None if _table is None else _table(storage)
    if known is None:
        known = getattr(storage, "rose_identity", None)
    if known is None:
        name = _devices.get(device)
        if name is None:
            name = _devices[device] = str(device)
        known = storage.rose_identity = Identity(next_ref(), name)
    return known


def keep_in(table: Table | None) -> None:
    """Ask `table` for the identities of torch's storages from now on; ``None``: the storages themselves.

    Numbers given before are not taken over: a recording must not begin before.
    """
    global _table
    _table = table


def of_array(array: Any) -> tuple[Identity, int]:
    """Identity of the buffer an array looks at, and the byte offset of its first element.

    A foreign buffer (shared memory, a mapped file) has the identity of its owner, with addresses as
    offsets; one whose owner cannot be watched is unknown.
    """
    base: Any = array
    parent: Any = array.base
    while derives(class_of(parent), np.ndarray):
        base, parent = parent, parent.base
    if parent is None:
        return _watched(base), 0 if array is base else _address(array) - _address(base)
    if hasattr(class_of(parent), "untyped_storage"):  # made by Tensor.numpy()
        return of_tensor(parent), _address(array) - parent.untyped_storage().data_ptr()
    if class_of(parent) is memoryview:
        parent = parent.obj
    try:
        return _watched(parent), _address(array)
    except TypeError:
        return UNKNOWN, 0


def after_fork() -> None:
    """Hand out numbers of this process alone from now on."""
    global next_ref
    next_ref = _new_refs()


def _new_refs() -> Callable[[], int]:
    """Numbers that other processes do not hand out: a random high part, then a count."""
    return itertools.count((random.SystemRandom().getrandbits(30) + 1) << 32).__next__


next_ref = _new_refs()
"""Gives the number of the next storage."""

_devices: dict[Any, str] = {}
_arrays: dict[int, tuple[Identity, weakref.ref[Any]]] = {}


def _watched(owner: Any) -> Identity:
    """Identity of an object that can be referred to weakly; forgotten when it dies."""
    place = id(owner)
    entry = _arrays.get(place)
    if entry is None:
        watch: weakref.ref[Any] = weakref.ref(owner, functools.partial(_forget, place))
        entry = _arrays[place] = (Identity(next_ref()), watch)
    return entry[0]


def _forget(place: int, _: Any) -> None:
    _arrays.pop(place, None)


def _address(array: Any) -> int:
    return array.__array_interface__["data"][0]
