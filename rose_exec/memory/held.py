"""Values that stay in the process that made them."""

from __future__ import annotations

import itertools
import operator
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

    def view(self, memory: Mapped, start: int) -> Any:
        """The tensor or array over its bytes.

        Args:
            memory: The chunk that they lie in.
            start: Their place there [bytes].

        Returns:
            A view that shares memory with the chunk.
        """
        if self.array:
            order = "F" if self.strides else "C"
            return np.ndarray(self.shape, self.dtype, memory.data, start, order=order)
        typed = memory.typed(self.dtype)
        strides = packed(self.shape) if self.strides is None else self.strides
        return typed.as_strided(self.shape, strides, start // typed.itemsize)


def packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of the last axis first [elements]."""
    products = itertools.accumulate(shape[:0:-1], operator.mul, initial=1)
    return tuple(products)[::-1] if shape else ()


class Mapped:
    """The bytes of a chunk in this process.

    Args:
        data: Them, as an array or as a tensor.
    """

    def __init__(self, data: Any) -> None:
        self.data = data
        self._typed: dict[str, Any] = {}

    def typed(self, dtype: str) -> Any:
        """All of them as a tensor of an element type; made once, so that a value is one view of it."""
        found = self._typed.get(dtype)
        if found is None:
            import torch

            with torch.inference_mode(False):
                data = self.data
                whole: Any = torch.from_numpy(data) if type(data) is np.ndarray else data  # pyright: ignore[reportUnknownMemberType]
                found = self._typed[dtype] = whole.view(getattr(torch, dtype))
        return found


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
        return Held.of, self.flat()

    def flat(self) -> tuple[Any, ...]:
        """Everything that another process needs, as plain data; `of` is its inverse."""
        return (
            self.chunk.owner,
            *self.place,
            self.nbytes,
            self.device,
            *self.layout,
            *(self.ready or ()),
        )

    @staticmethod
    def of(
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
        """What `flat` describes."""
        return Held(
            ChunkId(owner, chunk),
            Place(chunk, offset, used),
            nbytes,
            device,
            Layout(array, dtype, shape, strides, requires_grad, laid),
            Ready(*ready) if ready else None,
        )

    def within(self, memory: Mapped) -> Any:
        """The value as a view of its chunk's bytes."""
        return self.layout.view(memory, self.place.offset)


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
