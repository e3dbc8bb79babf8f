"""A device that finishes its work when told to: what CUDA does by itself, and out of sight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rose_exec.memory.chunk import Chunk, ChunkId
from rose_exec.memory.held import Ready

NAME = "slow:0"


class Event:
    """Done when all work submitted before it is."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.after = stream, len(stream.submitted)

    def query(self) -> bool:
        return self.stream.done >= self.after

    def synchronize(self) -> None:
        self.stream.run_until(self.after)


class Stream:
    """Work in order of submission, none of it done before `run_until`."""

    def __init__(self) -> None:
        self.submitted: list[Callable[[], None]] = []
        self.done = 0

    def run_until(self, count: int) -> None:
        while self.done < count:
            self.submitted[self.done]()
            self.done += 1


class Driver:
    """What all processes of a machine share: memory and events by handle."""

    def __init__(self) -> None:
        self.chunks: dict[int, torch.Tensor] = {}
        self.events: dict[tuple[int, int], Event] = {}
        self.released: list[ChunkId] = []


class SlowDevice:
    """One process's view of the device."""

    def __init__(self, driver: Driver, *, full: bool = False) -> None:
        self.driver, self.full = driver, full
        self.stream = Stream()
        self.waits: list[tuple[str, int]] = []

    def of(self, leaf: Any) -> str:
        return NAME

    def create(self, id: ChunkId, device: str, nbytes: int) -> tuple[Chunk, Any]:
        if self.full:
            raise torch.OutOfMemoryError("device full\nby 2 MiB")
        memory = torch.zeros(nbytes, dtype=torch.uint8)
        handle = len(self.driver.chunks)
        self.driver.chunks[handle] = memory
        return Chunk(id, device, nbytes, handle), memory

    def open(self, chunk: Chunk) -> Any:
        return self.driver.chunks[chunk.handle]

    def release(self, chunk: Chunk) -> None:
        self.driver.released.append(chunk.id)

    def close(self, device: str, opened: object) -> None:
        assert device == NAME

    def collect(self) -> None:
        self.waits.clear()

    def record(self, device: str, index: int) -> Ready | None:
        self.driver.events[id(self), index] = Event(self.stream)
        return Ready(index, (id(self), index))

    def wait(self, owner: str, device: str, ready: Ready) -> None:
        self.waits.append((owner, ready.event))
        event = self.driver.events[ready.handle]
        self.stream.submitted.append(event.synchronize)

    def forget(self, owner: str) -> None:
        pass

    def fence(self, device: str) -> Any:
        return Event(self.stream)

    def to_host(self, tensor: Any) -> Any:
        self.fence(NAME).synchronize()
        return tensor.clone()
