"""Who decides what runs next in a session that is watched: one thing at a time, while all glue waits.

In training the state machine starts whatever may start. A checked or fuzzed session has a conductor
instead: nothing moves until every branch of the program waits for something; then the conductor picks
one task to start, or one started task to carry out. The rules of `readiness.py` stay what they are, so
every order that it can pick is one that training can take, and the same choices give the same run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rose_exec.readiness import StrandId, Submission, TaskId

if TYPE_CHECKING:
    from rose_exec.tasks import Task
    from rose_exec.workers import InlineWorker, ProcessWorker


class Conductor(Protocol):
    """Picks what happens next, and hears of everything that orders the program."""

    def inline_worker(self, name: str, composites: frozenset[str]) -> InlineWorker:
        """A worker in the program's process."""
        ...

    def process_worker(self, name: str, composites: frozenset[str]) -> ProcessWorker:
        """What takes the place of a worker process: components of its own, in this process."""
        ...

    def bind(self, lock: threading.RLock) -> None:  # type: ignore[valid-type]
        """The lock under which everything is decided."""
        ...

    def next(self, candidates: Sequence[TaskId]) -> TaskId | None:
        """The task to start; ``None`` where a started one was let go on, or nothing is there."""
        ...

    def submitted(self, task: Task, submission: Submission) -> None:
        """A task is known."""
        ...

    def opened(self, strand: StrandId, parent: StrandId) -> None:
        """A branch begins."""
        ...

    def joined(self, strand: StrandId, branch: StrandId) -> None:
        """A branch has waited for the end of another."""
        ...

    def waited(self, strand: StrandId, task: TaskId | None) -> None:
        """A branch has waited for a task, or for all (``None``)."""
        ...

    def glue(self, entry: Callable[..., Any], path: str) -> None:
        """The body of a loop, composite or root runs as glue."""
        ...

    def begun(self) -> None:
        """Glue that nothing encloses begins."""
        ...

    def ended(self, result: Any) -> None:
        """It has ended, with everything that it started."""
        ...

    def let_be(self, path: str) -> None:
        """A coroutine or generator runs in the program's thread, beside everything that is watched."""
        ...
