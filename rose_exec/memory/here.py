"""The shared memory of this process."""

from __future__ import annotations

import threading
from typing import Any

from rose_exec.copies import copied
from rose_exec.memory.device import Cuda, Device
from rose_exec.memory.held import Held
from rose_exec.memory.inbox import Inbox
from rose_exec.memory.outbox import Outbox

PROGRAM = "program"


class Memory:
    """What this process shares and what it reads of others.

    Args:
        owner: Name of this process.
        device: Its devices.
    """

    def __init__(self, owner: str, device: Device | None = None) -> None:
        self.owner = owner
        self.device = device or Cuda()
        self.outbox = Outbox(owner, self.device)
        self.inbox = Inbox(self.device)

    def view(self, held: Held) -> Any:
        """A value where it is; nobody may write to it, and who has submitted its reading says `fence`."""
        if held.saved is not None:
            return held.saved
        if held.chunk.owner == self.owner:
            return self.outbox.view(held)
        return self.inbox.view(held)

    def fence(self, tag: Any = None) -> None:
        """What this thread has viewed is being read."""
        self.inbox.fence(tag)

    def to_host(self, held: Held) -> Any:
        """A copy of a tensor in host memory, through pinned memory."""
        value = self.view(held)
        if held.saved is not None:
            return value.cpu()
        staged = self.device.to_host(value)
        self.fence()
        return staged

    def save(self, held: Held) -> None:
        """Keep a copy of a value whose process is about to end; waits for it."""
        value = self.view(held)
        held.saved = copied(value, held.layout.laid)
        self.fence()
        self.inbox.wait()

    def settle(self) -> None:
        """Let go of values that the device has read."""
        if self.inbox.reading:
            self.inbox.finished()

    def close(self) -> None:
        """Close what is open and give back what is shared."""
        self.outbox.close()
        self.inbox.close_all()
        self.inbox = Inbox(self.device)
        self.device.collect()


_lock = threading.Lock()
_memory: Memory | None = None


def here() -> Memory:
    """The shared memory of this process."""
    global _memory
    if _memory is not None:
        return _memory
    with _lock:
        if _memory is None:
            _memory = Memory(PROGRAM)
        return _memory


def enter(memory: Memory) -> Memory:
    """Make `memory` that of this process."""
    global _memory
    _memory = memory
    return memory
