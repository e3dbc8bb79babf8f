"""Device memory and events that another process can open: CUDA IPC, through torch.

torch counts the readers of every tensor it sends and waits for the reader's stream when one lets go.
Here a whole chunk is sent once and stays open; who reads which part of it is counted by messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import Any, Protocol

from rose_exec.memory.chunk import HOST, Chunk, ChunkId
from rose_exec.memory.held import Ready

EVENTS = (
    64  # ours: one a message; an older one that is recorded again only makes a reader wait longer
)


class Device(Protocol):
    """What sharing needs of a kind of device."""

    def of(self, leaf: Any) -> str:
        """Where a tensor lives: ``cpu`` or e.g. ``cuda:0``; empty where it cannot be shared."""
        ...

    def create(self, id: ChunkId, device: str, nbytes: int) -> tuple[Chunk, Any]:
        """Make a chunk; returns it and its bytes as a tensor."""
        ...

    def open(self, chunk: Chunk) -> Any:
        """The bytes of another process's chunk."""
        ...

    def close(self, device: str, opened: object) -> None:
        """Let go of what holds another process's chunk open."""
        ...

    def release(self, chunk: Chunk) -> None:
        """Nobody else has this process's chunk open any more."""
        ...

    def collect(self) -> None:
        """Give back what released chunks have left."""
        ...

    def record(self, device: str, index: int) -> Ready | None:
        """Record event `index` after the work submitted so far; ``None`` where the work was waited for."""
        ...

    def wait(self, owner: str, device: str, ready: Ready) -> None:
        """Let work submitted from now on wait for an event of process `owner`."""
        ...

    def forget(self, owner: str) -> None:
        """Process `owner` has ended."""
        ...

    def fence(self, device: str) -> Any:
        """An event of this process after the work submitted so far; ``query()`` says whether it is done."""
        ...

    def to_host(self, tensor: Any) -> Any:
        """A copy in pinned host memory; waits for this copy alone."""
        ...


class Cuda:
    """CUDA devices."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], tuple[Any, bytes | None]] = {}
        self._opened: dict[tuple[str, str, int], Any] = {}
        self._events_travel = True

    def of(self, leaf: Any) -> str:
        """Where a tensor lives."""
        kind = leaf.device.type
        if kind == HOST:
            return HOST
        if kind != "cuda" or os.environ.get("ROSE_CUDA_IPC") == "0":
            return ""
        return f"cuda:{leaf.device.index}"

    def create(self, id: ChunkId, device: str, nbytes: int) -> tuple[Chunk, Any]:
        """Make a chunk of device memory."""
        import torch

        with torch.inference_mode(False):
            memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        storage: Any = memory.untyped_storage()
        handle = storage._share_cuda_()
        return Chunk(id, device, nbytes, handle), memory

    def open(self, chunk: Chunk) -> Any:
        """Map another process's chunk."""
        import torch

        torch.cuda.init()
        made: Any = torch.UntypedStorage
        storage = made._new_shared_cuda(*chunk.handle[:7], False)  # noqa: SLF001
        with torch.inference_mode(False):
            return torch.empty(0, dtype=torch.uint8, device=chunk.device).set_(
                storage, 0, (chunk.nbytes,), (1,)
            )

    def close(self, device: str, opened: object) -> None:
        """Let go of another process's chunk; where the device no longer works, never.

        torch closes it when the last reference goes, and ends the process where the driver refuses.
        """
        if not _works(device):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(opened))

    def release(self, chunk: Chunk) -> None:
        """Take back the count that torch gave the chunk, so that its memory can be freed."""
        import torch

        storage: Any = torch.UntypedStorage
        with contextlib.suppress(RuntimeError):  # of a device that no longer works
            storage._release_ipc_counter_cuda(*chunk.handle[4:6])  # noqa: SLF001

    def collect(self) -> None:
        """Free what torch still keeps for readers."""
        torch = sys.modules.get("torch")
        self._made.clear()
        self._opened.clear()
        if torch is not None and torch.cuda.is_initialized():
            with contextlib.suppress(RuntimeError):  # of a device that no longer works
                torch.cuda.ipc_collect()

    def record(self, device: str, index: int) -> Ready | None:
        """Record an event on the current stream; where events cannot travel, wait for that stream."""
        import torch

        stream: Any = torch.cuda.current_stream(device)
        index %= EVENTS
        if self._events_travel and (device, index) not in self._made:
            self._made[device, index] = self._make(device)
        event, handle = self._made.get((device, index), (None, None))
        if handle is None:
            self._events_travel = False
            stream.synchronize()
            return None
        event.record(stream)
        return Ready(index, handle)

    @staticmethod
    def _make(device: str) -> tuple[Any, bytes | None]:
        import torch

        made: Any = torch.cuda.Event
        try:
            with torch.cuda.device(device):
                event = made(interprocess=True)
                return event, event.ipc_handle()
        except RuntimeError:
            return None, None

    def wait(self, owner: str, device: str, ready: Ready) -> None:
        """Let the current stream wait for an event of another process."""
        import torch

        stream: Any = torch.cuda.current_stream(device)
        if (owner, device, ready.event) not in self._opened:
            made: Any = torch.cuda.Event
            self._opened[owner, device, ready.event] = made.from_ipc_handle(
                torch.device(device), ready.handle
            )
        stream.wait_event(self._opened[owner, device, ready.event])

    def forget(self, owner: str) -> None:
        """Drop the events of a process that has ended."""
        for key in [key for key in self._opened if key[0] == owner]:
            del self._opened[key]

    def fence(self, device: str) -> Any:
        """An event on the current stream."""
        import torch

        event: Any = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return event

    def to_host(self, tensor: Any) -> Any:
        """Copy into pinned memory, asynchronously, and wait for the copy."""
        import torch

        staged = torch.empty_like(tensor, device="cpu", pin_memory=True)
        staged.copy_(tensor, non_blocking=True)
        self.fence(f"cuda:{tensor.device.index}").synchronize()
        return staged


def _works(device: str) -> bool:
    import torch

    stream: Any = torch.cuda.current_stream(device)
    try:
        stream.query()
    except RuntimeError:
        return False
    return True
