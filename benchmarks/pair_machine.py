"""What the pair runs on: a CUDA device, or a CPU that stands in for one.

The stand-in has levels, streams and clients that do nothing, so that everything around them can be run
without a GPU. Its times mean nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rose_exec.quota import GreenQuota, MpsQuota, daemon, sms_by_percent
from rose_opt.measure import QuotaLevel, expected_levels, quota_levels

SMS = 132  # of the stand-in: an H200


class Machine(Protocol):
    """The device as a process sees it."""

    def sms(self) -> int:
        """SMs that this process may use."""
        ...

    def quota(self) -> GreenQuota:
        """Partitions of this process."""
        ...

    def stream(self, urgent: bool = False) -> Any:
        """A stream of its own; the blocks of an urgent one go first."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """A block on a stream."""
        ...

    def wait(self, stream: Any) -> None:
        """Wait for a stream."""
        ...

    def synchronize(self) -> None:
        """Wait for everything of this process."""
        ...

    def release(self) -> None:
        """Give unused memory back."""
        ...

    def close(self) -> None:
        """Give partitions back."""
        ...


class CudaMachine:
    """One CUDA device."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._quota: GreenQuota | None = None

    def sms(self) -> int:
        """SMs that this process may use; fewer under an MPS percentage."""
        return int(self._cuda.get_device_properties(0).multi_processor_count)

    def quota(self) -> GreenQuota:
        """Partitions, made at first use."""
        if self._quota is None:
            self._quota = GreenQuota()
        return self._quota

    def stream(self, urgent: bool = False) -> Any:
        """A stream of the whole device."""
        return self._cuda.Stream(priority=-1 if urgent else 0)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """A block on a stream."""
        return self._cuda.stream(stream)

    def wait(self, stream: Any) -> None:
        """Wait for a stream."""
        stream.synchronize()

    def synchronize(self) -> None:
        """Wait for the device."""
        self._cuda.synchronize()

    def release(self) -> None:
        """Give unused memory back."""
        self._cuda.synchronize()
        self._cuda.empty_cache()

    def close(self) -> None:
        """Give partitions back."""
        if self._quota is not None:
            self._quota.close()


class CpuPartitions:
    """Sizes of an H200, and streams that are nothing."""

    def sizes(self) -> tuple[int, ...]:
        """Sizes in steps of eight."""
        return (*range(8, SMS, 8), SMS)

    def open(self, sms: int | None) -> tuple[object, Any]:
        """Nothing to open."""
        return None, f"stream of {sms} SMs"

    def joined(self, stream: Any) -> AbstractContextManager[object]:
        """Nothing to order."""
        return contextlib.nullcontext(stream)


class CpuMachine:
    """A CPU that stands in for a device."""

    def __init__(self) -> None:
        self._quota = GreenQuota(partitions=CpuPartitions())

    def sms(self) -> int:
        """SMs of an H200."""
        return SMS

    def quota(self) -> GreenQuota:
        """Partitions that limit nothing."""
        return self._quota

    def stream(self, urgent: bool = False) -> Any:
        """Not a stream."""
        return None

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """A block."""
        return contextlib.nullcontext(stream)

    def wait(self, stream: Any) -> None:
        """Nothing runs behind the caller's back."""

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def release(self) -> None:
        """Nothing to give back."""

    def close(self) -> None:
        """Nothing to give back."""


def machine(device: str) -> Machine:
    """The machine of a process."""
    return CudaMachine() if device == "cuda" else CpuMachine()


class Clients(Protocol):
    """How processes of one device are started side by side."""

    def environment(self, level: QuotaLevel | None = None) -> Mapping[str, str]:
        """Variables of a process of a level."""
        ...

    @property
    def levels(self) -> tuple[QuotaLevel, ...]:
        """Levels of whole processes."""
        ...


class _CpuClients:
    levels = expected_levels(SMS)

    def environment(self, level: QuotaLevel | None = None) -> Mapping[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ""}


@contextlib.contextmanager
def clients(device: str) -> Generator[Clients]:
    """A private MPS daemon and the levels behind its percentages, for a block."""
    if device != "cuda":
        yield _CpuClients()
        return
    with daemon() as running:
        yield MpsQuota(running, quota_levels(sms_by_percent(running)))
