"""Data references: what a call is given and what it hands out, written down while the program waits.

Only what the values themselves know is read here, one pass over the containers: numbers that change
from call to call, and tokens that say what the value looks like. `rose_trace.layout` turns tokens into
slots, shapes and structure later, beside the program.

Paper: §4.2.
"""

from __future__ import annotations

import array
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rose_trace import identity, pytree
from rose_trace.identity import UNKNOWN, derives
from rose_trace.pytree import class_of

MAX_LEAVES = 65_536  # ours: a value with more leaves is recorded as one unknown reference

Tokens = tuple[Any, ...]
"""A value in pre-order: ``tensor, shape, dtype, strides, device`` for a tensor (strides in elements),
the same for an ``array`` (strides in bytes, no device), ``plain, type`` or ``shaped, description`` for
other leaves, and for a container its type with what its children are called: nothing, a length or
names. The tokens of a call's arguments start with the names of its keyword arguments."""

Numbers = list[int]
"""``ref, producer, offset`` of every leaf; offsets in the units of the strides."""

Refs = Sequence[int] | bytes
"""The same as a row keeps them: natively, eight bytes for each number."""

TOO_LARGE: Tokens = ("too large",)
UNKNOWN_NUMBERS = (0, 0, 0)
NO_VALUES: Tokens = ()
NONE: Tokens = (type(None),)


class TooManyLeavesError(Exception):
    """The value has more than `MAX_LEAVES` leaves."""


Claim = tuple[int, int, int]
"""Span id, start and end of the invocation that hands a value out."""

Walk = Callable[[Any, Numbers, "list[Any]", "Claim | None"], None]
"""Appends the numbers and tokens of one kind of value."""


def packed(numbers: Refs) -> bytes:
    """The numbers of a row, eight bytes for each."""
    return numbers if isinstance(numbers, bytes) else array.array("Q", numbers).tobytes()


def describe_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tokens, Sequence[int]]:
    """References in the arguments of a call.

    Args:
        args: Positional arguments, without the component.
        kwargs: Keyword arguments.

    Returns:
        Their tokens and numbers.
    """
    numbers: Numbers = []
    tokens: list[Any] = [tuple(kwargs)] if kwargs else [()]
    try:
        for value in args:
            kind = class_of(value)
            (walks.get(kind) or learn(kind))(value, numbers, tokens, None)
        if kwargs:
            _items(kwargs.values(), numbers, tokens, None)
    except (RecursionError, TooManyLeavesError):
        return TOO_LARGE, UNKNOWN_NUMBERS
    return tuple(tokens), tuple(numbers)


def describe_result(value: Any, claim: Claim) -> tuple[Tokens, Sequence[int]]:
    """References in a result; storages that did not come out of a child become the caller's.

    The producer of a storage is the invocation that handed it out last. One that merely passes on
    what was produced between its start and its end leaves the child's name on it.

    Args:
        value: The result.
        claim: Span id, start and end [Unix ns] of the invocation that returns it.

    Returns:
        Its tokens and numbers.
    """
    numbers: Numbers = []
    tokens: list[Any] = []
    kind = class_of(value)
    try:
        (walks.get(kind) or learn(kind))(value, numbers, tokens, claim)
    except (RecursionError, TooManyLeavesError):
        return TOO_LARGE, UNKNOWN_NUMBERS
    return tuple(tokens), tuple(numbers)


def _tensor(value: Any, numbers: Numbers, tokens: list[Any], claim: Claim | None) -> None:
    try:
        storage = value.untyped_storage()
        offset = value.storage_offset()
    except (NotImplementedError, RuntimeError):  # sparse and functional tensors have no storage
        numbers += (0, 0, 0)
        tokens += ("tensor", value.shape, value.dtype, None, str(value.device))
        return
    known = identity.of_storage(storage, value.device)
    if claim is not None and known.stamp < claim[1]:
        known.producer, _, known.stamp = claim
    numbers += (known.ref, known.producer, offset)
    tokens += ("tensor", value.shape, value.dtype, value.stride(), known.device)


def _array(value: Any, numbers: Numbers, tokens: list[Any], claim: Claim | None) -> None:
    known, offset = identity.of_array(value)
    if claim is not None and known is not UNKNOWN and known.stamp < claim[1]:
        known.producer, _, known.stamp = claim
    numbers += (known.ref, known.producer, offset)
    tokens += ("array", value.shape, value.dtype, value.strides)


def _plain(value: Any, numbers: Numbers, tokens: list[Any], claim: Claim | None) -> None:
    numbers += (0, 0, 0)
    tokens += ("plain", class_of(value))


def _shaped(value: Any, numbers: Numbers, tokens: list[Any], claim: Claim | None) -> None:
    numbers += (0, 0, 0)
    tokens += ("shaped", pytree.describe_leaf(value))


def _none(value: Any, numbers: Numbers, tokens: list[Any], claim: Claim | None) -> None:
    tokens.append(class_of(value))


def _sequence(value: Any, numbers: Numbers, tokens: list[Any], claim: Claim | None) -> None:
    tokens += (class_of(value), len(value))
    _items(value, numbers, tokens, claim)


def _dict(value: Any, numbers: Numbers, tokens: list[Any], claim: Claim | None) -> None:
    for key in value:
        if class_of(key) is not str:
            _plain(value, numbers, tokens, claim)
            return
    tokens += (dict, tuple(value))
    _items(value.values(), numbers, tokens, claim)


def _named_tuple(value: Any, numbers: Numbers, tokens: list[Any], claim: Claim | None) -> None:
    tokens += (class_of(value), value._fields)
    _items(value, numbers, tokens, claim)


def _dataclass(value: Any, numbers: Numbers, tokens: list[Any], claim: Claim | None) -> None:
    cls = class_of(value)
    names = _fields[cls]
    tokens += (cls, names)
    _items([getattr(value, name) for name in names], numbers, tokens, claim)


def _items(values: Any, numbers: Numbers, tokens: list[Any], claim: Claim | None) -> None:
    if len(numbers) > 3 * MAX_LEAVES:
        raise TooManyLeavesError
    for value in values:
        kind = class_of(value)
        (walks.get(kind) or learn(kind))(value, numbers, tokens, claim)


walks: dict[type[Any], Walk] = {type(None): _none, tuple: _sequence, list: _sequence, dict: _dict}
"""How values of the classes met so far are walked."""
_fields: dict[type[Any], tuple[str, ...]] = {}


def learn(cls: Any) -> Walk:
    """How values of a class are walked, found once and kept in `walks`."""
    torch = sys.modules.get("torch")
    if torch is not None and derives(cls, torch.Tensor):
        walk: Walk = _tensor
    elif derives(cls, np.ndarray):
        walk = _array
    elif derives(cls, tuple) and hasattr(cls, "_fields"):
        walk = _named_tuple
    elif hasattr(cls, "__dataclass_fields__"):
        _fields[cls] = tuple(f.name for f in dataclasses.fields(cls) if f.init)
        walk = _dataclass
    elif hasattr(cls, "shape") and hasattr(cls, "dtype"):
        walk = _shaped
    else:
        walk = _plain
    walks[cls] = walk
    return walk
