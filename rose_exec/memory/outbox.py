"""Values of this process that others may read."""

from __future__ import annotations

import collections
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rose_exec.device_errors import is_out_of_memory
from rose_exec.memory.arena import Arena, Place, chunk_bytes
from rose_exec.memory.chunk import HOST, Chunk, ChunkId, create_host
from rose_exec.memory.device import Device
from rose_exec.memory.held import Held, Mapped, layout_of

logger = logging.getLogger(__name__)

SHARED_BYTES = int(os.environ.get("ROSE_SHARED_BYTES", str(64 << 10)))
"""From here on a host value goes through shared memory; below, its bytes go with the message."""


class Outbox:
    """Copies of tensors and arrays in chunks that other processes can open.

    Args:
        owner: Name of this process.
        device: Its devices.
    """

    def __init__(self, owner: str, device: Device) -> None:
        self.owner = owner
        self._device = device
        self._lock = threading.Lock()
        self._arenas: dict[str, Arena] = {}
        self._memory: dict[int, tuple[Chunk, Mapped]] = {}
        self._where: dict[int, str] = {}
        self._numbers = 0
        self._events = 0
        self._made: list[Chunk] = []
        self.announce: Callable[[Chunk], None] = self._made.append
        """Takes every chunk that is made, before any value lies in it."""
        self._retired: list[ChunkId] = []
        self._freed: collections.deque[Place] = collections.deque()
        self._refused: set[str] = set()
        self._warned: set[str] = set()

    def put(self, leaves: Sequence[Any]) -> list[Held | None]:
        """Copy values into chunks, in order of the current stream.

        Args:
            leaves: Leaves of one message.

        Returns:
            Where each one is; ``None`` for what has to travel as bytes.
        """
        with self._lock:
            held = [self._put(leaf) for leaf in leaves]
            devices = {item.device for item in held if item is not None} - {HOST}
            ready = {device: self._device.record(device, self._events) for device in devices}
            self._events += 1
        for item in held:
            if item is not None:
                item.ready = ready.get(item.device)
        return held

    def view(self, held: Held) -> Any:
        """A value of this process, as a view."""
        return held.within(self._memory[held.chunk.number][1])

    def free(self, place: Place) -> None:
        """Nobody reads a place any more; may be called at any time, by a finalizer too."""
        self._freed.append(place)

    def release(self, number: int) -> None:
        """Nobody has a retired chunk open any more: give its memory back."""
        with self._lock:
            chunk, _ = self._memory.pop(number)
            if chunk.device != HOST:
                self._device.release(chunk)

    def news(self) -> tuple[list[Chunk], list[ChunkId]]:
        """Chunks made and retired since the last time."""
        if not self._made and not self._retired:
            return [], []
        with self._lock:
            made, retired = self._made[:], self._retired[:]
            self._made.clear()
            self._retired.clear()
        return made, retired

    @property
    def used_bytes(self) -> int:
        """Bytes that values occupy."""
        with self._lock:
            self._settle()
            return sum(arena.used_bytes for arena in self._arenas.values())

    def close(self) -> None:
        """Give all memory back."""
        with self._lock:
            for chunk, _ in self._memory.values():
                if chunk.device != HOST:
                    self._device.release(chunk)
            self._memory.clear()
            self._arenas.clear()
            self._freed.clear()
            self._made.clear()
            self._retired.clear()

    def _put(self, leaf: Any) -> Held | None:
        device = self._where_to(leaf)
        if not device:
            return None
        layout = layout_of(leaf)
        place = self._place(device, leaf.nbytes)
        if place is None:
            return None
        chunk, memory = self._memory[place.chunk]
        held = Held(chunk.id, place, leaf.nbytes, device, layout)
        target = held.within(memory)
        if layout.array:
            np.copyto(target, leaf)
        else:
            target.copy_(leaf.detach(), non_blocking=True)
        return held

    def _where_to(self, leaf: Any) -> str:
        if type(leaf) is np.ndarray:
            plain = leaf.dtype.kind in "biufcSUmM" and leaf.nbytes >= SHARED_BYTES
            return HOST if plain else ""
        torch = sys.modules.get("torch")
        if torch is None or type(leaf) not in (torch.Tensor, torch.nn.Parameter):
            return ""
        if leaf.layout is not torch.strided or leaf.is_quantized or not leaf.numel():
            return ""
        device = self._device.of(leaf)
        return "" if device == HOST and leaf.nbytes < SHARED_BYTES else device

    def _place(self, device: str, nbytes: int) -> Place | None:
        self._settle()
        arena = self._arenas.setdefault(device, Arena())
        place = arena.take(nbytes)
        if place is None and device not in self._refused:
            for number in arena.give_up():
                self._retired.append(self._memory[number][0].id)
            if self._grow(device, arena, chunk_bytes(nbytes)):
                place = arena.take(nbytes)
        return place

    def _settle(self) -> None:
        while self._freed:
            place = self._freed.popleft()
            if place.chunk in self._memory:  # not of a session that has been closed
                self._arenas[self._where[place.chunk]].give(place)

    def _grow(self, device: str, arena: Arena, nbytes: int) -> bool:
        number = self._numbers
        name = ChunkId(self.owner, number)
        try:
            if device == HOST:
                chunk, memory = create_host(name, nbytes)
            else:
                chunk, memory = self._device.create(name, device, nbytes)
        except (OSError, RuntimeError) as error:
            self._refuse(device, nbytes, error)
            return False
        self._numbers += 1
        self._memory[number], self._where[number] = (chunk, Mapped(memory)), device
        self.announce(chunk)
        arena.add(number, nbytes)
        return True

    def _refuse(self, device: str, nbytes: int, error: Exception) -> None:
        if not is_out_of_memory(error) and not isinstance(error, OSError):
            self._refused.add(device)  # it will not work later either
        if device in self._warned:
            return
        self._warned.add(device)
        logger.warning(
            "Worker %s: expected %d MiB of %s memory to share, got %s. Values travel as bytes, which is slower.",
            self.owner,
            nbytes >> 20,
            device,
            str(error).splitlines()[0],
        )
