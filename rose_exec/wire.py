"""How leaves travel between workers: objects in this process, bytes between processes.

Tensors and arrays are sent as their bytes (pickle protocol 5); merges and slices are descriptions that
the consumer carries out, so that a value is copied once.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Object:
    """A value of this process."""

    value: Any


@dataclass(frozen=True, slots=True)
class Blob:
    """A pickled value, opened only where it is used."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Concat:
    """Rows of several values, one after the other."""

    parts: tuple[Wire, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows ``start:stop`` of a value."""

    whole: Wire
    start: int
    stop: int


Wire = Object | Blob | Concat | Rows


def decode(wire: Wire) -> Any:
    """The value that `wire` describes."""
    match wire:
        case Object(value):
            return value
        case Blob(data):
            return pickle.loads(data)
        case Concat(parts):
            return concatenate([decode(part) for part in parts])
        case Rows(whole, start, stop):
            return decode(whole)[start:stop]


def concatenate(parts: list[Any]) -> Any:
    """Concatenate tensors or arrays along axis 0."""
    if type(parts[0]).__module__.startswith("torch"):
        import torch

        return torch.cat(parts)
    return np.concatenate(parts)


def for_process(wire: Wire) -> Wire:
    """The same description with every object pickled, ready to be sent."""
    match wire:
        case Object(value):
            return Blob(dumps(value))
        case Blob():
            return wire
        case Concat(parts):
            return Concat(tuple(for_process(part) for part in parts))
        case Rows(Object(value), start, stop):
            return Blob(dumps(value[start:stop]))
        case Rows(whole, start, stop):
            return Rows(for_process(whole), start, stop)


def dumps(value: Any) -> bytes:
    """Pickle a value; CPU tensors as plain arrays, which is many times cheaper than torch's own way."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        if obj.requires_grad and obj.grad_fn is not None:
            raise pickle.PicklingError(
                "A tensor crosses workers: expected no autograd graph, got one that still requires "
                "gradients. Return .detach() from the node, or keep both nodes in one component."
            )
        if obj.device.type != "cpu" or obj.layout is not torch.strided or obj.is_quantized:
            return NotImplemented
        bits = obj.detach().contiguous().view(-1).view(torch.uint8).numpy()
        return _tensor, (
            bits,
            str(obj.dtype).removeprefix("torch."),
            tuple(obj.shape),
            obj.requires_grad,
        )


def _tensor(bits: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if bits.size == 0:
        return torch.empty(shape, dtype=kind).requires_grad_(requires_grad)
    array = bits if bits.flags.writeable else bits.copy()
    return torch.from_numpy(array).view(kind).view(shape).requires_grad_(requires_grad)  # pyright: ignore[reportUnknownMemberType]
