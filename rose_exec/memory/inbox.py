"""Values of other processes, read where they are."""

from __future__ import annotations

import collections
import contextlib
import threading
from typing import Any

from rose_exec.memory.chunk import HOST, Chunk, ChunkId, open_host
from rose_exec.memory.device import Device
from rose_exec.memory.held import Held, Mapped, ValueLost


class Inbox:
    """Chunks of other processes that this one has open.

    Args:
        device: Devices of this process.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._chunks: dict[ChunkId, Chunk] = {}
        self._open: dict[ChunkId, Mapped] = {}
        self._local = threading.local()
        self._fences: collections.deque[tuple[Any, list[Any], list[Held]]] = collections.deque()

    def learn(self, chunk: Chunk) -> None:
        """A chunk that values may lie in; it is opened when one is read."""
        self._chunks[chunk.id] = chunk

    def close(self, chunk: ChunkId) -> None:
        """Nothing of a chunk will be read any more."""
        with self._lock:
            known = self._chunks.pop(chunk, None)
            opened = self._open.pop(chunk, None)
        if known is not None and opened is not None and known.device != HOST:
            self._device.close(known.device, opened)

    def close_all(self) -> None:
        """Nothing will be read any more."""
        for chunk in list(self._chunks):
            self.close(chunk)

    def forget(self, owner: str) -> None:
        """A process has ended: close all its chunks."""
        for chunk in [c for c in self._chunks if c.owner == owner]:
            self.close(chunk)
        self._device.forget(owner)

    def view(self, held: Held) -> Any:
        """A value as a view, ordered after its producer on the current stream; call `fence` after use.

        Raises:
            ValueLost: If its process has ended.
        """
        if held.chunk not in self._chunks:
            raise ValueLost(
                f"A value of worker {held.chunk.owner.partition('#')[0]}: expected it to be there, got "
                f"{held.lost or 'a worker that has ended'}. Use values before the session closes, or run the "
                "iteration again."
            )
        with self._lock:
            if held.chunk not in self._open:
                chunk = self._chunks[held.chunk]
                opened = open_host(chunk) if chunk.device == HOST else self._device.open(chunk)
                self._open[held.chunk] = Mapped(opened)
            memory = self._open[held.chunk]
            if held.ready is not None:
                self._device.wait(held.chunk.owner, held.device, held.ready)
        if held.device != HOST:
            self._used().append(held)
        return held.within(memory)

    def fence(self, tag: Any = None) -> None:
        """Everything viewed by this thread since the last fence has been submitted for reading.

        Args:
            tag: What `finished` returns once the device has read it.
        """
        used = self._used()
        if used:
            events = [self._device.fence(device) for device in {held.device for held in used}]
            self._fences.append((tag, events, used[:]))
            used.clear()

    def finished(self) -> list[Any]:
        """Tags of the fences that the device has passed since the last time."""
        tags: list[Any] = []
        if not self._fences:
            return tags
        with self._lock:
            for _ in range(len(self._fences)):
                tag, events, held = self._fences.popleft()
                if all(map(_passed, events)):
                    tags.append(tag)
                else:
                    self._fences.append((tag, events, held))
        return tags

    def wait(self) -> None:
        """Wait until the device has read everything."""
        for _, events, _ in list(self._fences):
            for event in events:
                with contextlib.suppress(RuntimeError):  # of a device that no longer works
                    event.synchronize()
        self.finished()

    @property
    def reading(self) -> bool:
        """Whether the device may still be reading something."""
        return bool(self._fences)

    def _used(self) -> list[Held]:
        used: list[Held] | None = getattr(self._local, "used", None)
        if used is None:
            used = self._local.used = []
        return used


def _passed(event: Any) -> bool:
    try:
        return event.query()
    except RuntimeError:  # of a device that no longer works, and reads nothing any more
        return True
