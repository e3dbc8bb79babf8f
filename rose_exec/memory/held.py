"""Values that stay in the process that made them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rose_exec.copies import strides_of_copy
from rose_exec.memory.arena import Place
from rose_exec.memory.chunk import ChunkId


class ValueLost(RuntimeError):
    """A value is used whose worker has ended."""


class Layout(NamedTuple):
    """How a tensor or array lies in its bytes.

    Attributes:
        array: Whether it is a numpy array.
        dtype: Element type, e.g. ``float32`` for a tensor, ``<f4`` for an array.
        shape: Shape.
        strides: Strides of a tensor [elements]; ``None`` for the last axis first. An array has ``(0,)``
            where its first axis is the fastest.
        requires_grad: Whether a tensor records gradients.
        laid: Strides that a reader's copy takes over from the original, where those have holes.
    """

    array: bool
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    requires_grad: bool = False
    laid: tuple[int, ...] | None = None

    def view(self, data: Any) -> Any:
        """The tensor or array over its bytes.

        Args:
            data: Bytes, as a numpy array or as a tensor.

        Returns:
            A view that shares memory with `data`.
        """
        if self.array:
            order = "F" if self.strides else "C"
            return np.ndarray(self.shape, self.dtype, data, order=order)
        import torch

        if isinstance(data, np.ndarray):
            data = torch.from_numpy(data)  # pyright: ignore[reportUnknownMemberType]
        flat = data.view(getattr(torch, self.dtype))
        return flat.view(self.shape) if self.strides is None else flat.as_strided(*self[2:4])


class Ready(NamedTuple):
    """The event after which a value on a device is there.

    Attributes:
        event: Its place among the events of the process that made the value.
        handle: What another process opens it by.
    """

    event: int
    handle: Any


@dataclass(slots=True, eq=False, weakref_slot=True)
class Held:
    """A tensor or array in a chunk.

    Attributes:
        chunk: The chunk.
        place: Bytes in use there.
        nbytes: Bytes of the value.
        device: Where the chunk lives.
        layout: How the value lies there.
        ready: When it is there; ``None`` if it is there already.
        saved: A copy in this process that outlives the chunk.
        lost: Why the chunk cannot be read any more; empty while it can.
    """

    chunk: ChunkId
    place: Place
    nbytes: int
    device: str
    layout: Layout
    ready: Ready | None = None
    saved: Any = None
    lost: str = ""

    def __reduce__(self) -> Any:
        # Flat: one call instead of one for each part makes a message a third shorter and faster.
        return _held, (
            self.chunk.owner,
            *self.place,
            self.nbytes,
            self.device,
            *self.layout,
            *(self.ready or ()),
        )

    def within(self, memory: Any) -> Any:
        """The value as a view of its chunk's bytes."""
        start = self.place.offset
        return self.layout.view(memory[start : start + self.nbytes])


def _held(
    owner: str,
    chunk: int,
    offset: int,
    used: int,
    nbytes: int,
    device: str,
    array: bool,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    requires_grad: bool,
    laid: tuple[int, ...] | None,
    *ready: Any,
) -> Held:
    return Held(
        ChunkId(owner, chunk),
        Place(chunk, offset, used),
        nbytes,
        device,
        Layout(array, dtype, shape, strides, requires_grad, laid),
        Ready(*ready) if ready else None,
    )


def layout_of(leaf: Any) -> Layout:
    """How a copy of a tensor or array lies in memory: as `leaf` does, without holes."""
    if type(leaf).__module__ == "numpy":
        fortran = leaf.flags.f_contiguous and not leaf.flags.c_contiguous
        return Layout(True, leaf.dtype.str, leaf.shape, (0,) if fortran else None)
    import torch

    strides = None
    if not leaf.is_contiguous():
        strides = torch.empty_like(leaf, device="meta").stride()
    laid = strides_of_copy(leaf)
    name = str(leaf.dtype).removeprefix("torch.")
    return Layout(
        False,
        name,
        tuple(leaf.shape),
        strides,
        leaf.requires_grad,
        None if laid == strides else laid,
    )
