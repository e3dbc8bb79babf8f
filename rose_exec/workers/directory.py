"""Which process knows which chunk, and when a chunk that its owner gave up can go."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Protocol

from rose_exec.memory import Chunk, ChunkId, here


class Peer(Protocol):
    """A worker process, as the directory sees it."""

    owner: str

    def close_chunk(self, chunk: ChunkId) -> None:
        """Tell it to close a chunk."""
        ...

    def wait_until_read(self, owner: str) -> None:
        """Wait until it has read what it was given of process `owner`."""
        ...


class Directory:
    """The chunks of all processes of the program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: dict[ChunkId, Chunk] = {}
        self._knows: dict[ChunkId, dict[str, Peer]] = {}
        self._going: dict[ChunkId, Callable[[], None]] = {}
        self._peers: dict[str, Peer] = {}

    def join(self, peer: Peer) -> None:
        """A worker process begins."""
        here().outbox.announce = self.add
        with self._lock:
            self._peers[peer.owner] = peer

    def add(self, chunk: Chunk) -> None:
        """A chunk was made."""
        with self._lock:
            self._chunks[chunk.id] = chunk
            self._knows[chunk.id] = {}
        if chunk.id.owner != here().owner:
            here().inbox.learn(chunk)

    def tell(self, peer: Peer, chunk: ChunkId) -> Chunk | None:
        """What `peer` must be told of a chunk before it can read there; ``None`` if it knows.

        A chunk of a process that has ended is not told of either: who reads there finds out.
        """
        with self._lock:
            knows = self._knows.get(chunk)
            if chunk.owner == peer.owner or knows is None or peer.owner in knows:
                return None
            knows[peer.owner] = peer
            return self._chunks[chunk]

    def retire(self, chunk: ChunkId, release: Callable[[], None]) -> None:
        """The owner gave a chunk up: nothing in it is referred to any more.

        Args:
            chunk: The chunk.
            release: Tells the owner, once everybody has closed it.
        """
        here().inbox.close(chunk)
        with self._lock:
            self._going[chunk] = release
            peers = list(self._knows.get(chunk, {}).values())
        for peer in peers:
            peer.close_chunk(chunk)
        self._maybe_gone(chunk)

    def retire_own(self) -> None:
        """Do so for the chunks that this process gave up."""
        outbox = here().outbox
        for chunk in outbox.news()[1]:
            self.retire(chunk, functools.partial(outbox.release, chunk.number))

    def closed(self, chunk: ChunkId, owner: str) -> None:
        """Process `owner` has closed a chunk."""
        with self._lock:
            self._knows.get(chunk, {}).pop(owner, None)
        self._maybe_gone(chunk)

    def wait_until_read(self, peer: Peer) -> None:
        """Wait until all others have read what they were given of `peer`."""
        with self._lock:
            others = [other for other in self._peers.values() if other is not peer]
        for other in others:
            other.wait_until_read(peer.owner)
        here().inbox.wait()

    def leave(self, peer: Peer) -> None:
        """A worker process has ended: it has nothing open, and what it made is gone."""
        with self._lock:
            mine = [chunk for chunk in self._chunks if chunk.owner == peer.owner]
            others = [chunk for chunk, knows in self._knows.items() if peer.owner in knows]
            tell = [
                (other, chunk)
                for chunk in mine
                for other in self._knows[chunk].values()
                if other.owner != peer.owner
            ]
            for chunk in mine:
                del self._chunks[chunk], self._knows[chunk]
                self._going.pop(chunk, None)
            self._peers.pop(peer.owner, None)
            last = not self._peers
        here().inbox.forget(peer.owner)
        for other, chunk in tell:
            other.close_chunk(chunk)
        for chunk in others:
            self.closed(chunk, peer.owner)
        if last:
            here().close()
            with self._lock:
                self._chunks.clear()
                self._knows.clear()
                self._going.clear()

    def _maybe_gone(self, chunk: ChunkId) -> None:
        with self._lock:
            if chunk not in self._going or self._knows.get(chunk):
                return
            release = self._going.pop(chunk)
            self._chunks.pop(chunk, None)
            self._knows.pop(chunk, None)
        release()


directory = Directory()
"""The directory of this process, the program's."""
