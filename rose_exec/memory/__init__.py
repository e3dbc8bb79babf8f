"""Memory that processes share: values stay where they were made and others copy them from there."""

from rose_exec.memory.chunk import HOST, Chunk, ChunkId
from rose_exec.memory.held import Held, Layout, Ready, ValueLost
from rose_exec.memory.here import Memory, enter, here

__all__ = [
    "HOST",
    "Chunk",
    "ChunkId",
    "Held",
    "Layout",
    "Memory",
    "Ready",
    "ValueLost",
    "enter",
    "here",
]
