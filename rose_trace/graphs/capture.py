"""One captured call: buffers for what comes in, a CUDA graph, copies of what comes out.

Memory of a graph is written again by every replay, so a replay hands out copies. Replays of one capture
follow each other on the device whatever streams they are on.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rose_trace import pytree
from rose_trace.graphs.signature import ALIGNMENT, PLAIN
from rose_trace.graphs.unfit import UnfitError
from rose_trace.pytree import class_of

BLOCK_BYTES = (
    512  # alignment of the caching allocator: copies lie modulo this as their originals do
)

_torch: Any = torch
_copy: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = _torch._foreach_copy_
_sides: dict[int, torch.cuda.Stream] = {}


@dataclass(frozen=True, slots=True)
class _Output:
    """Where a result lies: block, and place in it in elements."""

    block: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Capture:
    """Captures what a function launches.

    Nothing that it launches is executed by this; `replay` does that.

    Args:
        function: Makes the call with other tensors in place of its arguments.
        tensors: The tensors among the arguments.

    Raises:
        UnfitError: If what the function returns is neither tensors nor plain values.
        Exception: What the function or CUDA raises; the device can be used as before.
    """

    def __init__(
        self, function: Callable[[list[torch.Tensor]], Any], tensors: Sequence[torch.Tensor]
    ) -> None:
        self._lock = threading.Lock()
        self._done: Any = torch.cuda.Event()
        self._graph: Any = torch.cuda.CUDAGraph()
        self._home = torch.cuda.current_stream()
        with torch.no_grad():
            given = [_buffer_like(x) for x in tensors]
            self._inputs = [_written_once(x) for x in given]
        with side_stream(), _captured(self._graph):
            result = function(given)
            leaves, self._structure = pytree.flatten(result)
        del result
        self._leaves: list[Any] = [_plain(leaf) for leaf in leaves]
        outputs = [x for x in leaves if class_of(x) is torch.Tensor]
        with torch.no_grad():
            self._blocks, self._outputs = _blocks(outputs)

    def replay(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Make the captured call on the current stream.

        Args:
            tensors: The tensors among its arguments, of the captured shapes and strides.

        Returns:
            What the function returned, with tensors of its own.
        """
        with self._lock, torch.no_grad():
            stream = torch.cuda.current_stream()
            stream.wait_event(self._done)
            if self._inputs:
                _copy(self._inputs, [_written_once(x) for x in tensors])
            self._graph.replay()
            copies = [block.clone() for block in self._blocks]
            self._done.record(stream)
            if stream != self._home:  # the buffers may be let go of while this stream reads them
                for buffer in self._inputs:
                    buffer.record_stream(stream)
            made = iter([_view(copies[x.block], x) for x in self._outputs])
        leaves = [next(made) if leaf is _TENSOR else leaf for leaf in self._leaves]
        return pytree.unflatten(self._structure, iter(leaves))


@contextlib.contextmanager
def side_stream() -> Generator[None]:
    """Run a block on a stream that can be captured, after and before the work of the current one.

    That is a stream of this module for each device. A stream that torch did not make may belong to a
    green context and then is that stream itself: kernels keep the SMs of the stream that captured them.
    """
    current = torch.cuda.current_stream()
    if of_foreign_stream():
        yield
        return
    index = torch.cuda.current_device()
    if index not in _sides:
        _sides[index] = torch.cuda.Stream(index)
    side = _sides[index]
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):
            yield
    finally:
        current.wait_stream(side)


def of_foreign_stream() -> int:
    """Identity of the current stream if torch did not make it, else 0.

    torch numbers its own streams with odd numbers and the default stream with 0.
    """
    number = torch.cuda.current_stream().stream_id
    return 0 if number & 1 else number


def hand_over(result: Any, stream: torch.cuda.Stream) -> None:
    """Let `stream` use tensors that were made on another one, until it is done with them."""
    for leaf in pytree.flatten(result)[0]:
        if class_of(leaf) is torch.Tensor and leaf.is_cuda:
            leaf.record_stream(stream)


@contextlib.contextmanager
def _captured(graph: Any) -> Generator[None]:
    """Capture what a block launches on the current stream.

    `torch.cuda.graph` would wait for the device and empty the allocator's cache, and would leave its
    stream current where a capture cannot end.
    """
    gc.collect()  # freeing a graph in the middle of a capture would break it
    device, pool = torch.cuda.current_device(), torch.cuda.graph_pool_handle()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        yield
    except BaseException:
        with contextlib.suppress(Warning):  # of an empty graph
            _end(graph, device, pool, quiet=True)
        raise
    _end(graph, device, pool, quiet=False)


def _end(graph: Any, device: int, pool: Any, *, quiet: bool) -> None:
    try:
        graph.capture_end()
    except RuntimeError:
        _repair(device, pool)
        if not quiet:
            raise


def _repair(device: int, pool: Any) -> None:
    """Put right what torch leaves behind where a capture could not end.

    The allocator still waits for allocations of that capture, and the default generator takes itself for
    captured, which the end of any other capture corrects.
    """
    native = _torch._C  # noqa: SLF001
    for undo in (native._cuda_endAllocateToPool, native._cuda_releasePool):  # noqa: SLF001
        with contextlib.suppress(RuntimeError):
            undo(device, pool)
    spare: Any = torch.cuda.CUDAGraph()
    value = torch.zeros(1, device=torch.device("cuda", device))
    aside = torch.cuda.Stream(device)
    with torch.cuda.stream(aside):
        spare.capture_begin(capture_error_mode="thread_local")
        value.zero_()
        spare.capture_end()
    _sides.pop(device, None)


class _Tensor:
    """Stands for a tensor among the leaves of a result."""


_TENSOR = _Tensor()


def _plain(leaf: Any) -> Any:
    kind = class_of(leaf)
    if kind is torch.Tensor:
        return _TENSOR
    if kind not in PLAIN:
        raise UnfitError(f"a result of type {kind.__name__}", "Return tensors and plain values")
    return leaf


def _buffer_like(value: torch.Tensor) -> torch.Tensor:
    """Memory of its own with the same strides and alignment; the contents are not set."""
    size = value.element_size()
    shift = value.data_ptr() % ALIGNMENT // size
    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    room = torch.empty(shift + max(extent, 0), dtype=value.dtype, device=value.device)
    return room.as_strided(value.shape, value.stride(), shift)


def _written_once(value: torch.Tensor) -> torch.Tensor:
    """The tensor without repetitions of the same memory, which expanding makes."""
    strides = value.stride()
    if 0 not in strides:
        return value
    shape = [1 if s == 0 and n else n for n, s in zip(value.shape, strides, strict=True)]
    return value.as_strided(shape, strides)


def _blocks(outputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[_Output]]:
    """Byte ranges that hold the outputs, one per storage, and where the outputs lie in them."""
    spans: dict[int, tuple[Any, int, int]] = {}
    for value in outputs:
        storage: Any = value.untyped_storage()
        first = int(value.storage_offset()) * value.element_size()
        reach = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
        last = first + (reach + 1) * value.element_size() if value.numel() else first
        _, low, high = spans.get(storage._cdata, (storage, first, last))  # noqa: SLF001
        spans[storage._cdata] = storage, min(low, first), max(high, last)  # noqa: SLF001
    blocks: list[torch.Tensor] = []
    places: dict[int, tuple[int, int]] = {}
    for key, (storage, low, high) in spans.items():
        start = low // BLOCK_BYTES * BLOCK_BYTES
        places[key] = len(blocks), start
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
        blocks.append(whole.set_(storage, start, (high - start,), (1,)))  # pyright: ignore[reportUnknownMemberType]
    made: list[_Output] = []
    for value in outputs:
        storage = value.untyped_storage()
        block, start = places[storage._cdata]  # noqa: SLF001
        offset = int(value.storage_offset()) - start // value.element_size()
        made.append(_Output(block, value.dtype, offset, tuple(value.shape), value.stride()))
    return blocks, made


def _view(block: torch.Tensor, output: _Output) -> torch.Tensor:
    """The output in a copy of its block."""
    made = torch.empty(0, dtype=output.dtype, device=block.device)
    storage: Any = block.untyped_storage()
    return made.set_(storage, output.offset, output.shape, output.stride)  # pyright: ignore[reportUnknownMemberType]
