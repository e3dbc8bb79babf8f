"""Partitions of a device's SMs inside one process, through torch's green contexts.

Does not handle: work that a library submits on a context of its own (PhysX, a renderer); limit that
process by MPS percentage. Two processes still take turns without an MPS daemon, whatever their partitions.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator
from typing import Any, Protocol

import torch

from rose_exec.quota.quota import QuotaError

_DOCUMENTED = {6: (1, 1), 7: (2, 2), 8: (4, 2)}  # compute capability: smallest, step [SMs]
_DOCUMENTED_NEWER = (8, 8)


class Partitions(Protocol):
    """What a quota asks of a device."""

    def sizes(self) -> tuple[int, ...]:
        """Sizes that a partition can have, ascending; the last is the whole device [SMs]."""
        ...

    def open(self, sms: int | None) -> tuple[object, Any]:
        """A partition and a stream on it; ``None`` is a stream of the whole device.

        The partition must be kept for as long as the stream is used.
        """
        ...

    def joined(self, stream: Any) -> contextlib.AbstractContextManager[object]:
        """A block on a stream, after the caller's earlier work and before its later work."""
        ...


def documented_sizes(sms: int, major: int) -> tuple[int, ...]:
    """Sizes by the CUDA documentation, for where the driver cannot be asked.

    Args:
        sms: SMs of the device.
        major: Major compute capability.

    Returns:
        Sizes, ascending [SMs].

    >>> documented_sizes(132, 9)[-3:]
    (120, 128, 132)
    """
    smallest, step = _DOCUMENTED.get(major, _DOCUMENTED_NEWER)
    return (*range(smallest, sms, step), sms)


class TorchPartitions:
    """Partitions of one CUDA device.

    Args:
        device: Device number, as torch counts.

    Raises:
        QuotaError: If there is no CUDA device, or torch cannot make partitions.
    """

    def __init__(self, device: int = 0) -> None:
        if not torch.cuda.is_available():
            raise QuotaError(
                "GreenContext: expected a CUDA device that torch can use, got none. "
                "SM quotas need an NVIDIA GPU and a CUDA build of torch."
            )
        self._green = _green_context()
        self._device = device
        cuda: Any = torch.cuda  # its stubs are incomplete
        self._properties = cuda.get_device_properties(device)

    def sizes(self) -> tuple[int, ...]:
        """Sizes as the driver splits, or as documented without `cuda-bindings`."""
        total = int(self._properties.multi_processor_count)
        try:
            found = _split_sizes(self._device, total)
        except (ImportError, RuntimeError):
            found = ()
        return found or documented_sizes(total, int(self._properties.major))

    def open(self, sms: int | None) -> tuple[object, Any]:
        """Make a partition; takes the driver 2-3 ms.

        Raises:
            QuotaError: If the driver refuses.
        """
        with torch.cuda.device(self._device):
            before: Any = torch.cuda.current_stream()
            torch.cuda.Event().record(
                before
            )  # a context must be current before one is split from it
            if sms is None:
                return None, torch.cuda.Stream()
            try:
                context = self._green.create(num_sms=sms, device_id=self._device)
                context.set_context()
                try:
                    stream = context.Stream()
                finally:
                    context.pop_context()
                    torch.cuda.set_stream(before)
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[0]
                raise QuotaError(
                    f"GreenContext: expected a partition of {sms} SMs on cuda:{self._device}, got: {reason}. "
                    "Partitions need a driver of CUDA 12.8 or newer; limit the process by MPS percentage instead."
                ) from error
            return context, stream

    @contextlib.contextmanager
    def joined(self, stream: Any) -> Generator[Any]:
        """Run a block on `stream`, ordered with the caller's stream by events."""
        caller: Any = torch.cuda.current_stream(self._device)
        stream.wait_stream(caller)
        try:
            with torch.cuda.stream(stream):
                yield stream
        finally:
            caller.wait_stream(stream)


def _green_context() -> Any:
    try:
        module: Any = importlib.import_module("torch.cuda.green_contexts")
    except ImportError:
        module = None
    made = getattr(module, "GreenContext", None)
    if not getattr(module, "SUPPORTED", False) or not hasattr(made, "Stream"):
        raise QuotaError(
            f"GreenContext: expected torch 2.11 or newer built with CUDA 12.8 or newer, got {torch.__version__} "
            f"with CUDA {torch.version.cuda}. Update torch, or limit the process by MPS percentage."
        )
    return made


def _split_sizes(device: int, total: int) -> tuple[int, ...]:
    """Sizes that the driver makes of every request; empty where it cannot be asked."""
    driver: Any = importlib.import_module("cuda.bindings.driver")
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM

    def ask(name: str, *args: object) -> Any:
        code, *answer = getattr(driver, name)(*args)
        if int(code):
            raise RuntimeError(f"{name}: CUDA error {int(code)}")
        return answer

    ask("cuInit", 0)
    (handle,) = ask("cuDeviceGet", device)
    (whole,) = ask("cuDeviceGetDevResource", handle, kind)
    found = {total}
    for wanted in range(1, total):
        with contextlib.suppress(RuntimeError):
            groups, count, _ = ask("cuDevSmResourceSplitByCount", 1, whole, 0, wanted)
            if int(count) == 1:
                found.add(int(groups[0].sm.smCount))
    return tuple(sorted(size for size in found if 0 < size <= total)) if len(found) > 1 else ()
