"""One captured call: buffers for what comes in, a CUDA graph, copies of what comes out.

Memory of a graph is written again by every replay, so a replay hands out copies. Replays of one capture
follow each other on the device whatever streams they are on.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from rose_exec.graphs.buffers import blocks_of, buffer_like, view_in, written_once
from rose_exec.graphs.signature import PLAIN
from rose_exec.graphs.unfit import UnfitError
from rose_trace import pytree
from rose_trace.pytree import class_of

_torch: Any = torch
_copy: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = _torch._foreach_copy_


class _Turn:
    """What one replay at a time uses: memory of a capture, or where all captures find a generator's state."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done: Any = torch.cuda.Event()


_drawing: dict[int, _Turn] = {}


class Capture:
    """Captures what a function launches.

    Nothing that it launches is executed by this; `replay` does that.

    Args:
        function: Makes the call with other tensors in place of its arguments.
        tensors: The tensors among the arguments.
        draws: Whether it draws from the device's default generator.

    Raises:
        UnfitError: If what the function returns is neither tensors nor plain values.
        Exception: What the function or CUDA raises; the device can be used as before.
    """

    def __init__(
        self,
        function: Callable[[list[torch.Tensor]], Any],
        tensors: Sequence[torch.Tensor],
        *,
        draws: bool = False,
    ) -> None:
        index = torch.cuda.current_device()
        self._turn = _drawing.setdefault(index, _Turn()) if draws else _Turn()
        self._graph: Any = torch.cuda.CUDAGraph()
        self._home = torch.cuda.current_stream()
        with torch.no_grad():
            given = [buffer_like(x) for x in tensors]
            self._inputs = [written_once(x) for x in given]
        with side_stream(), _captured(self._graph):
            result = function(given)
            leaves, self._structure = pytree.flatten(result)
        del result
        self._leaves: list[Any] = [_plain(leaf) for leaf in leaves]
        outputs = [x for x in leaves if class_of(x) is torch.Tensor]
        with torch.no_grad():
            self._blocks, self._outputs = blocks_of(outputs)

    def replay(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Make the captured call on the current stream.

        Args:
            tensors: The tensors among its arguments, of the captured shapes and strides.

        Returns:
            What the function returned, with tensors of its own.
        """
        with self._turn.lock, torch.no_grad():
            stream = torch.cuda.current_stream()
            stream.wait_event(self._turn.done)
            if self._inputs:
                _copy(self._inputs, [written_once(x) for x in tensors])
            self._graph.replay()
            copies = [block.clone() for block in self._blocks]
            self._turn.done.record(stream)
            if stream != self._home:  # the buffers may be let go of while this stream reads them
                for buffer in self._inputs:
                    buffer.record_stream(stream)
            made = iter([view_in(copies[x.block], x) for x in self._outputs])
        leaves = [next(made) if leaf is _TENSOR else leaf for leaf in self._leaves]
        return pytree.unflatten(self._structure, iter(leaves))


@contextlib.contextmanager
def side_stream() -> Generator[None]:
    """Run a block on a stream that can be captured, after and before the work of the current one.

    torch has few streams and hands them out in turn: the next one is the one least likely to be in use. A
    stream that torch did not make may belong to a green context and is taken itself: kernels of a graph
    keep the SMs of the stream that captured them.
    """
    current = torch.cuda.current_stream()
    if of_foreign_stream():
        yield
        return
    side = torch.cuda.Stream()
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
    stream current where a capture cannot end. It would also let all captures of a stream share one cuBLAS
    workspace, which replays on two streams must not; made anew inside a capture, it is the graph's own.
    """
    gc.collect()  # freeing a graph in the middle of a capture would break it
    device, pool = torch.cuda.current_device(), torch.cuda.graph_pool_handle()
    clear_workspaces = _torch._C._cuda_clearCublasWorkspaces  # noqa: SLF001
    clear_workspaces()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        yield
    except BaseException:
        with contextlib.suppress(Warning):  # of an empty graph
            _end(graph, device, pool, quiet=True)
        raise
    else:
        _end(graph, device, pool, quiet=False)
    finally:
        clear_workspaces()


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
    with torch.cuda.stream(torch.cuda.Stream(device)):
        spare.capture_begin(capture_error_mode="thread_local")
        value.zero_()
        spare.capture_end()


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
