"""The capture mode of a thread, against a driver that answers as CUDA's does."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from rose_trace import cuda_events
from rose_trace.cuda_events import INVALID_CONTEXT, RELAXED, TorchCuda


class Driver:
    """Keeps the mode of one thread; without a context it refuses to change it."""

    def __init__(self, contexts: int, failing: int = 0) -> None:
        self.contexts = contexts
        self.failing = failing
        self.mode = 0
        self.retained = 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        if not self.contexts:
            return INVALID_CONTEXT
        if self.failing:
            return self.failing
        given = mode._obj
        self.mode, given.value = given.value, self.mode
        return 0

    def cuDeviceGet(self, handle: Any, device: int) -> int:  # noqa: N802
        handle._obj.value = device
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, handle: ctypes.c_int) -> int:  # noqa: N802
        self.retained += 1
        context._obj.value = 4096 + handle.value
        return 0

    def cuCtxPushCurrent_v2(self, context: ctypes.c_void_p) -> int:  # noqa: N802
        assert context.value == 4097
        self.contexts += 1
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.contexts -= 1
        return 0


class Cuda:
    """Enough of torch.cuda to make an adapter."""

    is_current_stream_capturing = staticmethod(lambda: False)
    current_device = staticmethod(lambda: 0)


class Torch:
    cuda = Cuda

    class _C:
        @staticmethod
        def _cuda_getCurrentStream(device: int) -> tuple[int, int, int]:  # noqa: N802
            return 0, device, 1


def adapter(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> TorchCuda:
    def load(name: str) -> Driver:
        assert name == "libcuda.so.1"
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    return TorchCuda(Torch)


def test_the_mode_is_relaxed_inside_and_as_before_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(contexts=1)
    cuda = adapter(monkeypatch, driver)

    def fails() -> None:
        with cuda.relaxed(1):
            assert driver.mode == RELAXED
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert (driver.mode, driver.contexts, driver.retained) == (0, 1, 0)


def test_a_thread_without_a_context_borrows_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(contexts=0)
    cuda = adapter(monkeypatch, driver)
    for _ in range(3):
        with cuda.relaxed(1):
            assert (driver.mode, driver.contexts) == (RELAXED, 1)
        assert (driver.mode, driver.contexts) == (0, 0)
    assert driver.retained == 1


def test_a_driver_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(contexts=0, failing=999)
    with (
        pytest.raises(RuntimeError, match="expected success, got CUDA error 999"),
        adapter(monkeypatch, driver).relaxed(1),
    ):
        pass
    assert driver.contexts == 0


def test_cuda_is_never_initialised_from_here() -> None:
    if torch.cuda.is_initialized():
        pytest.skip("another test has initialised CUDA")
    assert cuda_events.initialised() is None
    assert not torch.cuda.is_initialized()
