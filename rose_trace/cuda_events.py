"""The little of CUDA that device times need: events, streams and the capture mode of a thread.

Torch is looked up, never imported, and CUDA is never initialised from here: a process that has not used
it by itself must be able to fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Generator, Hashable
from typing import Any, Protocol

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: the thread has not used CUDA yet


class Event(Protocol):
    """A timing event, as in ``torch.cuda.Event(enable_timing=True)``."""

    def record(self, stream: Any) -> None:
        """Take the time when everything given to the stream so far is done."""
        ...

    def query(self) -> bool:
        """Whether that is so."""
        ...

    def synchronize(self) -> None:
        """Wait until it is."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Time from this event to another one, both done [ms]; negative for an earlier one."""
        ...


class Cuda(Protocol):
    """What the clock asks of CUDA."""

    def capturing(self) -> bool:
        """Whether the calling thread's current stream captures a graph."""
        ...

    def current_device(self) -> int:
        """Device of the calling thread."""
        ...

    def current_stream(self, device: int) -> tuple[Hashable, int, Any]:
        """Key, id and object of the calling thread's stream on a device."""
        ...

    def event(self) -> Event:
        """A new timing event; it belongs to the first stream that it is recorded on."""
        ...

    def own_stream(self, device: int) -> Any:
        """A stream that the program does not use."""
        ...

    def on(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Make a device the calling thread's: queries elsewhere would make a context there."""
        ...

    def relaxed(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Let the calling thread query events of a device while another thread captures a graph.

        Without it, any query while a capture in CUDA's default mode goes on would break that capture.
        """
        ...


class TorchCuda:
    """CUDA through torch.

    Args:
        torch: The module, with CUDA initialised.

    Raises:
        OSError: If the driver library cannot be called.
    """

    def __init__(self, torch: Any) -> None:
        self._cuda: Any = torch.cuda
        self._raw: Callable[[int], tuple[int, int, int]] = torch._C._cuda_getCurrentStream  # noqa: SLF001 - what current_stream calls
        self._streams: dict[tuple[int, int, int], Any] = {}
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._driver: Any = ctypes.CDLL("libcuda.so.1")
        self.capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self.current_device: Callable[[], int] = torch.cuda.current_device

    def current_stream(self, device: int) -> tuple[Hashable, int, Any]:
        """Key, id and object of the calling thread's stream on a device."""
        key = self._raw(device)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = self._cuda.Stream(
                stream_id=key[0], device_index=key[1], device_type=key[2]
            )
        return key, key[0], stream

    def event(self) -> Event:
        """A new timing event."""
        return self._cuda.Event(enable_timing=True)

    def own_stream(self, device: int) -> Any:
        """A high-priority stream: programs rarely take those, so nothing waits in it."""
        return self._cuda.Stream(device=device, priority=-1)

    def on(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Make a device the calling thread's."""
        return self._cuda.device(device)

    @contextlib.contextmanager
    def relaxed(self, device: int) -> Generator[None]:
        """Let the calling thread query events while another thread captures a graph.

        A thread that has not used CUDA may have to borrow the device's context for that time: it must
        not keep one, because that would choose the device that the program's own code uses there.
        """
        mode = ctypes.c_int(RELAXED)
        exchange = self._driver.cuThreadExchangeStreamCaptureMode
        status = exchange(ctypes.byref(mode))
        borrowed = status == INVALID_CONTEXT
        if borrowed:
            self._borrow(device)
            status = exchange(ctypes.byref(mode))
        try:
            _require("cuThreadExchangeStreamCaptureMode", status)
            yield
        finally:
            if not status:
                exchange(ctypes.byref(mode))
            if borrowed:
                self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def _borrow(self, device: int) -> None:
        context = self._contexts.get(device)
        if context is None:
            handle, context = ctypes.c_int(), ctypes.c_void_p()
            _require("cuDeviceGet", self._driver.cuDeviceGet(ctypes.byref(handle), device))
            retain = self._driver.cuDevicePrimaryCtxRetain
            _require("cuDevicePrimaryCtxRetain", retain(ctypes.byref(context), handle))
            self._contexts[device] = context
        _require("cuCtxPushCurrent", self._driver.cuCtxPushCurrent_v2(context))


def _require(call: str, status: int) -> None:
    if status:
        raise RuntimeError(f"{call}: expected success, got CUDA error {status}. Check the driver.")


def initialised() -> Cuda | None:
    """CUDA, if this process has initialised it through torch; ``None`` otherwise.

    Raises:
        OSError: If the driver library cannot be called.
    """
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # torch may be in the middle of its import
    if cuda is None or not getattr(cuda, "is_initialized", bool)():
        return None
    return TorchCuda(torch)
