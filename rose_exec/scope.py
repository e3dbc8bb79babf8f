"""Where glue code is in the program: a body being run, on one strand of the program's control flow."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Generator, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rose_exec.readiness import Position, StrandId
from rose_trace import frames
from rose_trace.frames import Frame
from rose_trace.legality import RowRange


@dataclass(slots=True)
class Scope:
    """One open body of glue code.

    Attributes:
        strand: Branch that runs it.
        prefix: Position of the body; calls append their ordinal.
        frame: Frame of the enclosing invocation.
        waits: Whether every call is waited for (a ``try`` or ``with`` may want its exception).
        calls: Calls made so far.
        handles: Whether the program may go on after an exception below; nothing is moved then.
    """

    strand: StrandId
    prefix: Position
    frame: Frame
    waits: bool = False
    calls: int = 0
    handles: bool = False

    @property
    def rows(self) -> RowRange | None:
        """Global rows of the branch."""
        return self.frame.rows

    def next_position(self) -> Position:
        """Position of the next call."""
        position = (*self.prefix, self.calls)
        self.calls += 1
        return position

    @property
    def frontier(self) -> Position:
        """Lower bound of every position this scope can still submit at."""
        return (*self.prefix, self.calls)


scope: ContextVar[Scope | None] = ContextVar("rose_scope", default=None)
"""The body that the current thread runs; ``None`` outside an iteration and inside tasks."""


@contextlib.contextmanager
def inside(body: Scope) -> Generator[Scope]:
    """Run a block as the glue code of `body`."""
    mark = scope.set(body)
    try:
        with frames.entered(body.frame):
            yield body
    finally:
        scope.reset(mark)


class Outputs(Sequence[Any]):
    """Outputs of a loop that still runs in a branch: item k is there once iteration k was submitted.

    To the program it is the list that the loop returns natively.

    Args:
        count: Number of iterations.
        wait: Blocks until item k exists and returns it.
    """

    __hash__ = None  # type: ignore[assignment]  # a list has none

    def __init__(self, count: int, wait: Callable[[int], Any]) -> None:
        self._count = count
        self._wait = wait

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._wait(k) for k in range(*index.indices(self._count))]
        k = operator.index(index)
        k = k + self._count if k < 0 else k
        if not 0 <= k < self._count:
            raise IndexError("list index out of range")
        return self._wait(k)

    def __iter__(self) -> Iterator[Any]:
        return (self._wait(k) for k in range(self._count))

    def __add__(self, other: Any) -> list[Any]:
        return list(self) + list(other)

    def __radd__(self, other: Any) -> list[Any]:
        return list(other) + list(self)

    def __mul__(self, times: int) -> list[Any]:
        return list(self) * times

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, Outputs) else other)

    def __repr__(self) -> str:
        return repr(list(self))
