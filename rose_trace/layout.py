"""Layout of values: slots, shapes, bytes and structure, read from the tokens of `rose_trace.dataref`.

Values of one shape share one `Signature`; only the first costs more than a lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rose_trace import dataref
from rose_trace.dataref import Tokens
from rose_trace.identity import derives
from rose_trace.pytree import NONE, Kind, Leaf, Structure, class_key


@dataclass(frozen=True, slots=True)
class LeafLayout:
    """What a reference says besides identity: layout of one leaf.

    Attributes:
        slot: Place in the arguments or the result, e.g. ``0.obs.image``; ``""`` for the value itself.
        device: ``cpu``, ``cuda:0``; empty for plain data.
        shape: Shape; ``None`` for plain data.
        dtype: Element type, or the Python type of plain data.
        nbytes: Bytes from the first to the last element of the view.
        unit: Bytes per unit of the recorded offset.
    """

    slot: str
    device: str
    shape: tuple[int, ...] | None
    dtype: str
    nbytes: int
    unit: int


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """Everything about a value that stays the same from call to call.

    Attributes:
        leaves: Layouts in flattening order.
        structure: JSON of the value's pytree; ``None`` for arguments, and where the value was too
            large to describe.
    """

    leaves: tuple[LeafLayout, ...]
    structure: str | None


EMPTY = Signature((), None)
TOO_LARGE = Signature((LeafLayout("*", "", None, "object", 0, 1),), None)
REMEMBERED = 16_384  # ours: shapes that never repeat must not fill the memory


def input_signature(tokens: Tokens) -> Signature:
    """Signature of a call's arguments; slots start with the position or the name."""
    return _signature(tokens, _inputs, _read_inputs)


def result_signature(tokens: Tokens) -> Signature:
    """Signature of a result, with its structure."""
    return _signature(tokens, _results, _read_result)


def _signature(
    tokens: Tokens, known: dict[Tokens, Signature], read: Callable[[Tokens], Signature]
) -> Signature:
    signature = known.get(tokens)
    if signature is None:
        if len(known) >= REMEMBERED:
            known.clear()
        signature = known[tokens] = read(tokens)
    return signature


_UNREADABLE: dict[Tokens, Signature] = {
    dataref.NO_VALUES: EMPTY,
    dataref.TOO_LARGE: TOO_LARGE,
}
_inputs: dict[Tokens, Signature] = {}
_results: dict[Tokens, Signature] = {}


def _read_inputs(tokens: Tokens) -> Signature:
    if tokens in _UNREADABLE:
        return _UNREADABLE[tokens]
    names: tuple[str, ...] = tokens[0]
    stream = iter(tokens[1:])
    values: list[list[LeafLayout]] = []
    for token in stream:
        values.append([])
        _read(token, stream, "", values[-1])
    slots = [*map(str, range(len(values) - len(names))), *names]
    return Signature(
        tuple(
            replace(leaf, slot=f"{slot}.{leaf.slot}" if leaf.slot else slot)
            for slot, leaves in zip(slots, values, strict=True)
            for leaf in leaves
        ),
        None,
    )


def _read_result(tokens: Tokens) -> Signature:
    if tokens in _UNREADABLE:
        return _UNREADABLE[tokens]
    leaves: list[LeafLayout] = []
    stream = iter(tokens)
    structure = _read(next(stream), stream, "", leaves)
    return Signature(tuple(leaves), structure.to_json())


def _read(token: Any, stream: Iterator[Any], slot: str, leaves: list[LeafLayout]) -> Structure:
    """Read one value whose first token is `token`; its leaves are appended."""
    if token is type(None):
        return NONE
    if isinstance(token, str):
        layout, leaf = _LEAVES[token](slot, stream)
        leaves.append(layout)
        return Structure("leaf", leaf=leaf)
    names = next(stream)
    kind = _CONTAINERS.get(token) or ("namedtuple" if derives(token, tuple) else "dataclass")
    numbered = isinstance(names, int)
    prefix = f"{slot}." if slot else ""
    children = tuple(
        _read(next(stream), stream, f"{prefix}{name}", leaves)
        for name in (range(names) if numbered else names)
    )
    named = kind in {"namedtuple", "dataclass"}
    return Structure(kind, () if numbered else names, class_key(token) if named else "", children)


_CONTAINERS: dict[Any, Kind] = {tuple: "tuple", list: "list", dict: "dict"}


def _tensor(slot: str, stream: Iterator[Any]) -> tuple[LeafLayout, Leaf]:
    shape, dtype, strides, device = (next(stream) for _ in range(4))
    shape, name = tuple(shape), str(dtype).removeprefix("torch.")
    nbytes = 0 if strides is None else _extent(shape, strides, 1) * dtype.itemsize
    return LeafLayout(slot, device, shape, name, nbytes, dtype.itemsize), Leaf(
        "tensor", name, shape
    )


def _array(slot: str, stream: Iterator[Any]) -> tuple[LeafLayout, Leaf]:
    shape, dtype, strides = (next(stream) for _ in range(3))
    nbytes = _extent(shape, strides, dtype.itemsize)
    return LeafLayout(slot, "cpu", shape, str(dtype), nbytes, 1), Leaf("array", str(dtype), shape)


def _plain(slot: str, stream: Iterator[Any]) -> tuple[LeafLayout, Leaf]:
    name = next(stream).__name__
    return LeafLayout(slot, "", None, name, 0, 1), Leaf(name)


def _shaped(slot: str, stream: Iterator[Any]) -> tuple[LeafLayout, Leaf]:
    leaf: Leaf = next(stream)
    return LeafLayout(slot, "", leaf.shape, leaf.dtype or leaf.type, 0, 1), leaf


_LEAVES: dict[str, Callable[[str, Iterator[Any]], tuple[LeafLayout, Leaf]]] = {
    "tensor": _tensor,
    "array": _array,
    "plain": _plain,
    "shaped": _shaped,
}


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> int:
    """From the first element's start to the last element's end, in units of the strides."""
    if 0 in shape:
        return 0
    return item + sum((size - 1) * abs(stride) for size, stride in zip(shape, strides, strict=True))
