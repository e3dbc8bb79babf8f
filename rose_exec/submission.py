"""One invocation that is to run, and its place in the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from rose_trace.legality import AccessSet

Position = tuple[int, ...]
"""Place in the native program order; the fragments of one split invocation share it."""

TaskId = NewType("TaskId", int)
StrandId = NewType("StrandId", int)

MAIN = StrandId(0)
"""The strand that runs the program itself."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One invocation that is to run.

    Attributes:
        id: Unique id, increasing in submission order.
        position: Place in the native program order.
        strand: Branch that submits it.
        access: What it may touch.
        inputs: Tasks whose results it needs.
        worker: Worker that runs it.
        cores: CPU cores it occupies.
        path: Node path, for messages.
        first: Whether it goes before others that are ready: it keeps a device busy while they are issued.
    """

    id: TaskId
    position: Position
    strand: StrandId
    access: AccessSet
    inputs: frozenset[TaskId]
    worker: str
    cores: float = 1.0
    path: str = ""
    first: bool = False
