"""CUDA streams as a conductor sees them: which one a body runs on, and when what it submitted is done.

Only the stream that is asked about is waited for, never the whole device.

Does not handle: streams of a node's own that its current stream does not wait for.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterable
from typing import Any


def _cuda() -> Any | None:
    """`torch.cuda` where it is in use; ``None`` where it is not: looking must not start it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


@contextlib.contextmanager
def current(stream: Any | None) -> Generator[None]:
    """Run a block with `stream` as this thread's stream; ``None`` leaves the thread's own."""
    cuda = _cuda()
    if stream is None or cuda is None:
        yield
        return
    with cuda.stream(stream):
        yield


def wait(values: Iterable[Any] = ()) -> None:
    """Wait until what this thread has submitted is done: on its device, and on those of `values`."""
    cuda = _cuda()
    if cuda is None:
        return
    devices = {value.device.index for value in values if getattr(value, "is_cuda", False)}
    for device in sorted(devices | {cuda.current_device()}):
        cuda.current_stream(device).synchronize()


def capturing() -> bool:
    """Whether this thread's stream records a CUDA graph: waiting for anything would break it."""
    cuda = _cuda()
    return cuda is not None and bool(cuda.is_current_stream_capturing())


def is_device_error(error: BaseException) -> bool:
    """Whether a device reports what somebody had submitted to it before."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.AcceleratorError)
