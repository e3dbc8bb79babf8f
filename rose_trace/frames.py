"""Where the program is: the frame of the current invocation, carried by context.

A frame crosses threads and processes with the work it belongs to, so paths, iteration indices and
rows are the same wherever an invocation runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass, field

from rose_trace.legality import RowRange


@dataclass(slots=True)
class Frame:
    """One open invocation: a composite node, a loop or the root.

    Attributes:
        path: Node path of the open invocation; ``""`` outside any.
        iteration: Indices of the enclosing loops, outermost first, this one's current index last.
        span_id: OpenTelemetry span id of the open invocation, 0 where nothing is recorded.
        trace_id: OpenTelemetry trace id, 0 where nothing is recorded.
        calls: Number of calls made so far by this invocation, per node name (gives the ordinal).
        group: Branch of a split that this runs in, -1 for the whole batch.
        groups: Number of branches of that split, 1 for the whole batch.
        rows: Global rows of that branch; ``None`` for the whole batch.
    """

    path: str = ""
    iteration: tuple[int, ...] = ()
    span_id: int = 0
    trace_id: int = 0
    calls: dict[str, int] = field(default_factory=dict[str, int])
    group: int = -1
    groups: int = 1
    rows: RowRange | None = None

    def child_path(self, name: str) -> str:
        """Path of a call to node `name` from here."""
        return f"{self.path}/{name}" if self.path else name

    def next_ordinal(self, name: str) -> int:
        """Ordinal of the next call to node `name` from here, counted from 0."""
        ordinal = self.calls.get(name, 0)
        self.calls[name] = ordinal + 1
        return ordinal


current: ContextVar[Frame | None] = ContextVar("rose_frame", default=None)
"""The innermost open invocation of this thread or task."""


def current_rows() -> RowRange | None:
    """Global rows that the current invocation serves; ``None`` for the whole batch."""
    frame = current.get()
    return None if frame is None else frame.rows


@contextlib.contextmanager
def entered(frame: Frame) -> Generator[Frame]:
    """Make `frame` the current one for a block."""
    token = current.set(frame)
    try:
        yield frame
    finally:
        current.reset(token)
