"""How leaves travel between workers: objects in this process, places in shared memory, bytes for the rest.

Tensors on a device, and large ones on the host, stay in the process that made them until somebody reads
them there; small host values are sent as their bytes (pickle protocol 5). Merges and slices are
descriptions that the consumer carries out, so that a value is copied once. Every consumer gets a copy of
its own: what it writes there nobody else sees.
"""

from __future__ import annotations

import io
import pickle
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rose_exec.copies import copied, strides_of_copy
from rose_exec.memory import HOST, Held, here

PLAIN = (int, float, bool, str, type(None))
"""Values that nobody can change: the same object in every process, and nothing to open."""


@dataclass(frozen=True, slots=True)
class Object:
    """A value of this process, or one of `PLAIN`.

    Attributes:
        value: The value.
        ready: For tensors on a device: the stream that computes it, and an event after it is there.
    """

    value: Any
    ready: tuple[Any, Any] | None = None


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


Wire = Object | Blob | Held | Concat | Rows


def decode(wire: Wire) -> Any:
    """The value that `wire` describes, for its consumer alone; follow with `here().fence()`."""
    value, shared = _open(wire)
    return copied(value) if shared else value


def _open(wire: Wire) -> tuple[Any, bool]:
    """The value, and whether it is a view of memory that others read."""
    match wire:
        case Object(value, ready):
            if ready is not None:
                _order(value, *ready)
            return value, False
        case Blob(data):
            return pickle.loads(data), False
        case Held():
            value, laid = here().view(wire), wire.layout.laid
            if wire.layout.requires_grad:
                return copied(value, laid).requires_grad_(), False
            return (value, True) if laid is None else (copied(value, laid), False)
        case Concat(parts):
            return concatenate([_open(part)[0] for part in parts]), False
        case Rows(whole, start, stop):
            value, shared = _open(whole)
            return value[start:stop], shared


def _order(value: Any, stream: Any, event: Any) -> None:
    """Let the current stream wait for a value of another stream, and keep its memory until it is read."""
    import torch

    current: Any = torch.cuda.current_stream(value.device)
    if current != stream:
        current.wait_event(event)
        value.record_stream(current)


def to_host(wire: Wire) -> Any:
    """A copy in host memory of a tensor that another process holds on a device; ``None`` for all else."""
    if isinstance(wire, Held) and wire.device != HOST and not wire.layout.requires_grad:
        return here().to_host(wire)
    return None


def unordered(wire: Wire) -> bool:
    """Whether a tensor on a device is part of it of which no event tells when it is there."""
    match wire:
        case Object(value, None):
            return bool(getattr(value, "is_cuda", False))
        case Concat(parts):
            return any(map(unordered, parts))
        case Rows(whole):
            return unordered(whole)
        case _:
            return False


def held_in(wire: Wire) -> tuple[Held, ...]:
    """The places in shared memory that `wire` refers to."""
    match wire:
        case Held():
            return (wire,)
        case Concat(parts):
            return tuple(held for part in parts for held in held_in(part))
        case Rows(whole):
            return held_in(whole)
        case _:
            return ()


def concatenate(parts: list[Any]) -> Any:
    """Concatenate tensors or arrays along axis 0."""
    if type(parts[0]).__module__.startswith("torch"):
        import torch

        return torch.cat(parts)
    return np.concatenate(parts)


def for_process(wire: Wire) -> Wire:
    """The same description without objects of this process, ready to be sent."""
    match wire:
        case Object(value) if type(value) in PLAIN:
            return wire
        case Object():
            return _share(_open(wire)[0])
        case Held() if wire.saved is not None:
            return _share(wire.saved)
        case Blob() | Held():
            return wire
        case Concat(parts):
            return Concat(tuple(for_process(part) for part in parts))
        case Rows(Object(value, ready), start, stop):
            _open(Object(value, ready))
            return _share(value[start:stop])
        case Rows(whole, start, stop):
            return Rows(for_process(whole), start, stop)


def _share(value: Any) -> Wire:
    """A value of the program's process, in its shared memory until nobody refers to it any more."""
    found = pack([value])[0]
    if isinstance(found, Held):
        weakref.finalize(found, here().outbox.free, found.place).atexit = False
    return found


def pack(leaves: Sequence[Any]) -> tuple[Blob | Held | Object, ...]:
    """Values of this process: in shared memory where that pays, as bytes where not.

    Raises:
        PicklingError: If a value cannot leave this process.
    """
    if all(type(leaf) in PLAIN for leaf in leaves):
        return tuple(map(Object, leaves))
    for leaf in leaves:
        refuse_graph(leaf)
    held = here().outbox.put(leaves)
    return tuple(
        _sent(leaf) if item is None else item for leaf, item in zip(leaves, held, strict=True)
    )


def _sent(leaf: Any) -> Blob | Object:
    return Object(leaf) if type(leaf) in PLAIN else Blob(dumps(leaf))


def refuse_graph(value: Any) -> None:
    """Refuse a tensor whose autograd graph would be cut.

    Raises:
        PicklingError: If it has one.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor:
        return
    if value.requires_grad and value.grad_fn is not None:
        raise pickle.PicklingError(
            "A tensor crosses workers: expected no autograd graph, got one that still requires "
            "gradients. Return .detach() from the node, or keep both nodes in one component."
        )


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
        refuse_graph(obj)
        if obj.layout is not torch.strided or obj.is_quantized:
            return NotImplemented
        if obj.device.type not in ("cpu", "cuda"):
            return NotImplemented
        device = "" if obj.device.type == "cpu" else str(obj.device)
        source = obj.detach()
        if device and obj.numel():
            source = here().device.to_host(source)
        bits = source.cpu().contiguous().view(-1).view(torch.uint8).numpy()
        return _tensor, (
            bits,
            str(obj.dtype).removeprefix("torch."),
            tuple(obj.shape),
            obj.requires_grad,
            device,
            strides_of_copy(obj),
        )


def _tensor(
    bits: Any,
    dtype: str,
    shape: tuple[int, ...],
    requires_grad: bool,
    device: str = "",
    strides: tuple[int, ...] | None = None,
) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if bits.size == 0:
        made = torch.empty(shape, dtype=kind)
    else:
        array = bits if bits.flags.writeable else bits.copy()
        made = torch.from_numpy(array).view(kind).view(shape)  # pyright: ignore[reportUnknownMemberType]
    made = made.to(device) if device else made
    return (made if strides is None else copied(made, strides)).requires_grad_(requires_grad)
