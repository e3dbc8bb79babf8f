"""Chunks: pieces of host or device memory that another process can open."""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

HOST = "cpu"


class ChunkId(NamedTuple):
    """Name of a chunk, unique among the processes of a program.

    Attributes:
        owner: The process that made it.
        number: Number among its chunks.
    """

    owner: str
    number: int


@dataclass(slots=True, eq=False)
class Chunk:
    """What it takes to open a chunk.

    Attributes:
        id: Its name.
        device: ``cpu``, or where it lives, e.g. ``cuda:0``.
        nbytes: Length.
        handle: What the device's driver opens it by; ``None`` for host memory.
        fd: File descriptor of host memory in this process, -1 where there is none; it travels beside the
            pickled rest and is closed with this object.
    """

    id: ChunkId
    device: str
    nbytes: int
    handle: Any = None
    fd: int = -1

    def __reduce__(self) -> Any:
        return Chunk, (self.id, self.device, self.nbytes, self.handle)

    def __del__(self) -> None:
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)
            self.fd = -1


def create_host(id: ChunkId, nbytes: int) -> tuple[Chunk, Any]:
    """Make a chunk of host memory.

    It has no name, so nothing is left of it when the last process that knows it has ended, however it
    ended; and it does not count against the size of ``/dev/shm``.

    Returns:
        The chunk, and its bytes as an array.

    Raises:
        OSError: If there is not that much memory.
    """
    chunk = Chunk(id, HOST, nbytes, fd=os.memfd_create(f"rose-{id.owner}-{id.number}"))
    os.posix_fallocate(chunk.fd, 0, nbytes)  # a lack of memory shows here, not as a bus error later
    return chunk, open_host(chunk)


def open_host(chunk: Chunk) -> Any:
    """The bytes of a chunk of host memory, as an array; unmapped with its last view."""
    return np.frombuffer(mmap.mmap(chunk.fd, chunk.nbytes), np.uint8)
