"""Messages between the program and a worker process: a pipe, with file descriptors beside it."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from rose_exec.memory import Chunk, ChunkId
from rose_exec.memory.arena import Place

_HEAD = struct.Struct("<qII")

NOTHING = -1
"""Number of a message that only says something about memory."""


@dataclass(frozen=True, slots=True)
class News:
    """What a message says about shared memory, beside what it asks or answers.

    Attributes:
        chunks: Chunks made by the worker; to the worker, chunks that values of this message lie in.
        retired: Chunks that the worker gave up; to the worker, chunks it must close.
        closed: Chunks that the worker has closed; to the worker, its chunks that all others have closed.
        freed: To the worker: places in its chunks that nobody refers to any more.
        finished: Jobs whose arguments the worker's device has read.
    """

    chunks: Sequence[Chunk] = ()
    retired: Sequence[ChunkId] = ()
    closed: Sequence[ChunkId] = ()
    freed: Sequence[Place] = ()
    finished: Sequence[int] = ()

    def __bool__(self) -> bool:
        return bool(self.chunks or self.retired or self.closed or self.freed or self.finished)


SILENCE = News()
"""No news."""


class Channel:
    """One end of the pipe.

    Args:
        pipe: A duplex pipe between processes of one machine.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, number: int, news: News, data: bytes) -> None:
        """Send a message.

        Raises:
            OSError: If the other end is gone.
        """
        if not news:
            self._pipe.send_bytes(_HEAD.pack(number, 0, 0) + data)
            return
        descriptors = [chunk.fd for chunk in news.chunks if chunk.fd >= 0]
        freed = [tuple(place) for place in news.freed]  # plain data: no class has to be named
        whole = news.chunks, news.retired, news.closed, freed, news.finished
        about = pickle.dumps(whole, protocol=5)
        head = _HEAD.pack(number, len(about), len(descriptors))
        self._pipe.send_bytes(b"".join((head, about, data)))
        for descriptor in descriptors:
            reduction.send_handle(self._pipe, descriptor, None)  # pyright: ignore[reportArgumentType]

    def receive(self) -> tuple[int, News, memoryview]:
        """Wait for a message.

        Raises:
            EOFError: If the other end is gone.
            OSError: If it went in the middle of a message.
        """
        data = memoryview(self._pipe.recv_bytes())
        number, length, descriptors = _HEAD.unpack_from(data)
        start = _HEAD.size
        if not length:
            return number, SILENCE, data[start:]
        chunks, retired, closed, freed, finished = pickle.loads(data[start : start + length])
        given: Any = iter([reduction.recv_handle(self._pipe) for _ in range(descriptors)])
        for chunk in chunks:
            if chunk.handle is None:
                chunk.fd = next(given)
        news = News(chunks, retired, closed, [Place(*place) for place in freed], finished)
        return number, news, data[start + length :]

    def waits(self, timeout_s: float) -> bool:
        """Whether a message comes within a time."""
        return self._pipe.poll(timeout_s)

    def close(self) -> None:
        """Close this end."""
        self._pipe.close()
