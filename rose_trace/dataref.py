"""Identity of values: which storage an argument or result lives in, and who made it.

A storage keeps its identity as an attribute on the storage object, so views share it and a freed
address is never mistaken for the old value. Torch is looked up, never imported.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rose_trace import pytree
from rose_trace.pytree import class_of

derives: Callable[[Any, Any], bool] = issubclass

MAX_LEAVES = 65_536  # ours: a value with more leaves is recorded as one unknown reference

Key = Any
"""Hashable description of a value's containers and of each leaf's layout."""


class Identity:
    """One storage.

    Attributes:
        ref: Number of the storage, unique among all processes of a run.
        producer: Span id of the invocation that last handed the storage out; 0 unknown.
        stamp: End of that invocation [Unix ns].
        device: Device of the storage.
    """

    __slots__ = ("device", "producer", "ref", "stamp")

    def __init__(self, ref: int, device: Any = None) -> None:
        self.ref = ref
        self.producer = 0
        self.stamp = 0
        self.device = device


UNKNOWN = Identity(0)


@dataclass(frozen=True, slots=True)
class LeafLayout:
    """What a reference says besides identity: layout of one leaf.

    Attributes:
        slot: Place in the arguments or the result, e.g. ``0.obs.image``; ``""`` for the value itself.
        device: ``cpu``, ``cuda:0``; empty for plain data.
        shape: Shape; ``None`` for plain data.
        dtype: Element type, or the Python type of plain data.
        nbytes: Bytes from the first to the last element of the view.
    """

    slot: str
    device: str
    shape: tuple[int, ...] | None
    dtype: str
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """Everything about a value that stays the same from call to call.

    Attributes:
        leaves: Layouts in flattening order.
        structure: JSON of the value's pytree; ``None`` where the value was too large to describe.
    """

    leaves: tuple[LeafLayout, ...]
    structure: str | None


EMPTY = Signature((), None)
NONE = Signature((), pytree.NONE.to_json())
TOO_LARGE = Signature((LeafLayout("*", "", None, "object", 0),), None)

Described = tuple[Signature, list[int]]
"""A signature, and ``ref, producer, offset`` of every leaf in turn."""


class _TooManyLeavesError(Exception):
    """The value has more than `MAX_LEAVES` leaves."""


_Claim = tuple[int, int, int]
"""Span id, start and end of the invocation that hands a value out."""


def describe_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described:
    """References in the arguments of a call; slots start with the position or the name.

    Args:
        args: Positional arguments, without the component.
        kwargs: Keyword arguments.

    Returns:
        Their signature and ``ref, producer, offset`` of every leaf.
    """
    leaves: list[int] = []
    known = _kinds
    try:
        key: Key = tuple(
            [(known.get(class_of(x)) or _learn(class_of(x)))(x, leaves, None) for x in args]
        )
        if kwargs:
            key = key, tuple(kwargs), _sequence(tuple(kwargs.values()), leaves, None)
    except (RecursionError, _TooManyLeavesError):
        return TOO_LARGE, [0, 0, 0]
    signature = _input_signatures.get(key)
    if signature is None:
        signature = _remember(_input_signatures, key, _input_signature(args, kwargs))
    return signature, leaves


def describe_result(value: Any, span_id: int, start_ns: int, end_ns: int) -> Described:
    """References in a result; storages that did not come out of a child become `span_id`'s.

    The producer of a storage is the invocation that handed it out last. One that merely passes on
    what was produced between its start and its end leaves the child's name on it.

    Args:
        value: The result.
        span_id: The invocation that returns it.
        start_ns: Its start [Unix ns].
        end_ns: Its end [Unix ns].

    Returns:
        Signature with structure, and ``ref, producer, offset`` of every leaf.
    """
    leaves: list[int] = []
    kind = class_of(value)
    try:
        key = (_kinds.get(kind) or _learn(kind))(value, leaves, (span_id, start_ns, end_ns))
    except (RecursionError, _TooManyLeavesError):
        return TOO_LARGE, [0, 0, 0]
    signature = _result_signatures.get(key)
    if signature is None:
        signature = _remember(_result_signatures, key, _result_signature(value))
    return signature, leaves


def identify(tensor_or_array: Any) -> Identity:
    """Identity of the storage behind a tensor or array; `UNKNOWN` for anything else."""
    kind = _kind(class_of(tensor_or_array))
    if kind is _tensor:
        return _tensor_identity(tensor_or_array)
    if kind is _array:
        return _array_identity(tensor_or_array)[0]
    return UNKNOWN


def _remember(known: dict[Key, Signature], key: Key, signature: Signature) -> Signature:
    if len(known) >= 16_384:  # shapes that never repeat must not fill the memory
        known.clear()
    known[key] = signature
    return signature


_input_signatures: dict[Key, Signature] = {}
_result_signatures: dict[Key, Signature] = {}


def _input_signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    layouts: list[LeafLayout] = []
    for index, item in enumerate(args):
        _layouts(item, str(index), layouts)
    for name, item in kwargs.items():
        _layouts(item, name, layouts)
    return Signature(tuple(layouts), None)


def _result_signature(value: Any) -> Signature:
    layouts: list[LeafLayout] = []
    _layouts(value, "", layouts)
    return Signature(tuple(layouts), pytree.flatten(value)[1].to_json())


def _layouts(value: Any, slot: str, layouts: list[LeafLayout]) -> None:
    prefix = f"{slot}." if slot else ""
    for name, child in _children(value):
        if name is None:
            layouts.append(_layout(value, slot))
        else:
            _layouts(child, prefix + name, layouts)


def _children(value: Any) -> list[tuple[str | None, Any]]:
    """Named parts of a container in flattening order; one nameless part for a leaf."""
    kind = _kind(class_of(value))
    if kind is _none:
        return []
    if kind is _sequence or kind is _namedtuple:
        names = getattr(value, "_fields", None) or map(str, range(len(value)))
        return list(zip(names, value, strict=True))
    if kind is _dict and all(class_of(key) is str for key in value):
        return list(value.items())
    if kind is _dataclass:
        return [(name, getattr(value, name)) for name in _init_fields(class_of(value))]
    return [(None, value)]


def _layout(value: Any, slot: str) -> LeafLayout:
    leaf = pytree.describe_leaf(value)
    kind = _kind(class_of(value))
    if kind is _tensor:
        item, strides = (
            value.element_size(),
            value.stride() if value.layout is _torch().strided else None,
        )
    elif kind is _array:
        item, strides = 1, value.strides  # already in bytes
    else:
        return LeafLayout(slot, "", leaf.shape, leaf.dtype or leaf.type, 0)
    nbytes = 0
    if strides is not None and 0 not in value.shape:
        extent = sum(
            (size - 1) * abs(stride) for size, stride in zip(value.shape, strides, strict=True)
        )
        nbytes = extent * item + (item if kind is _tensor else value.itemsize)
    return LeafLayout(
        slot, str(getattr(value, "device", "cpu")), leaf.shape, leaf.dtype, int(nbytes)
    )


# One function per kind of value: appends `ref, producer, offset` per leaf and returns the key.

Walk = Callable[[Any, "list[int]", "_Claim | None"], Key]


def _tensor(value: Any, leaves: list[int], claim: _Claim | None) -> Key:
    try:
        storage = value.untyped_storage()
        offset = value.storage_offset()
    except (NotImplementedError, RuntimeError):  # sparse and functional tensors have no storage
        leaves += (0, 0, 0)
        return _tensor, value.shape, value.dtype, value.device, value.layout
    identity = getattr(storage, "rose_identity", None)
    if identity is None:
        identity = _new_storage(storage, value)
    if claim is not None and identity.stamp < claim[1]:
        identity.producer = claim[0]
        identity.stamp = claim[2]
    leaves += (identity.ref, identity.producer, offset * value.itemsize if offset else 0)
    if value.is_contiguous():
        return value.shape, value.dtype, identity.device
    return value.shape, value.dtype, identity.device, value.stride()


def _array(value: Any, leaves: list[int], claim: _Claim | None) -> Key:
    identity, offset = _array_identity(value)
    if claim is not None and identity is not UNKNOWN and identity.stamp < claim[1]:
        identity.producer = claim[0]
        identity.stamp = claim[2]
    leaves += (identity.ref, identity.producer, offset)
    return value.shape, value.dtype, value.strides


def _plain(value: Any, leaves: list[int], claim: _Claim | None) -> Key:
    leaves += (0, 0, 0)
    return class_of(value)


def _shaped(value: Any, leaves: list[int], claim: _Claim | None) -> Key:
    leaves += (0, 0, 0)
    return class_of(value), pytree.describe_leaf(value)


def _none(value: Any, leaves: list[int], claim: _Claim | None) -> Key:
    return None


def _sequence(value: Any, leaves: list[int], claim: _Claim | None) -> Key:
    if len(leaves) > 3 * MAX_LEAVES:
        raise _TooManyLeavesError
    kinds = _kinds
    return class_of(value), *[
        (kinds.get(class_of(item)) or _learn(class_of(item)))(item, leaves, claim) for item in value
    ]


def _dict(value: Any, leaves: list[int], claim: _Claim | None) -> Key:
    if len(leaves) > 3 * MAX_LEAVES:
        raise _TooManyLeavesError
    for key in value:
        if class_of(key) is not str:
            leaves += (0, 0, 0)
            return dict
    return (
        dict,
        tuple(value),
        *[_kind(class_of(item))(item, leaves, claim) for item in value.values()],
    )


def _namedtuple(value: Any, leaves: list[int], claim: _Claim | None) -> Key:
    return _sequence(value, leaves, claim)


def _dataclass(value: Any, leaves: list[int], claim: _Claim | None) -> Key:
    cls = class_of(value)
    parts = [getattr(value, name) for name in _init_fields(cls)]
    return cls, *[_kind(class_of(item))(item, leaves, claim) for item in parts]


_kinds: dict[type[Any], Walk] = {type(None): _none, tuple: _sequence, list: _sequence, dict: _dict}


def _kind(cls: type[Any]) -> Walk:
    return _kinds.get(cls) or _learn(cls)


def _learn(cls: Any) -> Walk:
    torch = _torch()
    if torch is not None and derives(cls, torch.Tensor):
        walk: Walk = _tensor
    elif derives(cls, np.ndarray):
        walk = _array
    elif derives(cls, tuple) and hasattr(cls, "_fields"):
        walk = _namedtuple
    elif hasattr(cls, "__dataclass_fields__"):
        walk = _dataclass
    elif hasattr(cls, "shape") and hasattr(cls, "dtype"):
        walk = _shaped
    else:
        walk = _plain
    _kinds[cls] = walk
    return walk


def _init_fields(cls: type[Any]) -> tuple[str, ...]:
    names = _fields.get(cls)
    if names is None:
        names = _fields[cls] = tuple(f.name for f in dataclasses.fields(cls) if f.init)
    return names


_fields: dict[type[Any], tuple[str, ...]] = {}


def _torch() -> Any:
    return sys.modules.get("torch")


# Identities.


def _new_refs() -> Callable[[], int]:
    """Numbers that other processes do not hand out: a random high part, then a count."""
    return itertools.count((random.SystemRandom().getrandbits(30) + 1) << 32).__next__


_next_ref = _new_refs()


def after_fork() -> None:
    """Hand out numbers of this process alone from now on."""
    global _next_ref
    _next_ref = _new_refs()


def _new_storage(storage: Any, tensor: Any) -> Identity:
    device = tensor.device
    name = _devices.get(device)
    if name is None:
        name = _devices[device] = str(device)
    identity = storage.rose_identity = Identity(_next_ref(), name)
    return identity


_devices: dict[Any, str] = {}


def _tensor_identity(tensor: Any) -> Identity:
    storage = tensor.untyped_storage()
    return getattr(storage, "rose_identity", None) or _new_storage(storage, tensor)


_arrays: dict[int, tuple[Identity, weakref.ref[Any]]] = {}


def _array_identity(array: Any) -> tuple[Identity, int]:
    """Identity of the buffer an array looks at, and the byte offset of its first element.

    A foreign buffer (shared memory, a mapped file) has the identity of its owner, with addresses as
    offsets; one whose owner cannot be watched is unknown.
    """
    base: Any = array
    parent: Any = array.base
    while parent is not None and derives(class_of(parent), np.ndarray):
        base, parent = parent, parent.base
    if parent is None:
        return _watched(base), 0 if array is base else _address(array) - _address(base)
    if _kind(class_of(parent)) is _tensor:  # made by Tensor.numpy(): the tensor's storage
        return _tensor_identity(parent), _address(array) - parent.untyped_storage().data_ptr()
    if class_of(parent) is memoryview:
        parent = parent.obj
    try:
        return _watched(parent), _address(array)
    except TypeError:
        return UNKNOWN, 0


def _watched(owner: Any) -> Identity:
    """Identity of an object that can be referred to weakly; forgotten when it dies."""
    place = id(owner)
    entry = _arrays.get(place)
    if entry is None:
        watch: weakref.ref[Any] = weakref.ref(owner, functools.partial(_forget, place))
        entry = _arrays[place] = (Identity(_next_ref()), watch)
    return entry[0]


def _forget(place: int, _: Any) -> None:
    _arrays.pop(place, None)


def _address(array: Any) -> int:
    return array.__array_interface__["data"][0]
