"""Sampling of detail: the first and last iterations of inner loops in full, of those between only sums.

Does not handle: the end of a loop over something without a length. It is known too late, so the
iterations that would be recorded there are recorded after the first ones.

Paper: App. A ("the first and last steps of inner loops").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any

from rose_trace.frames import Frame
from rose_trace.invocation import Invocation


@dataclass(slots=True, eq=False)
class Unsampled(Frame):
    """Where the program is in an iteration that is not recorded in full; one object per path and loop.

    Attributes:
        written: Version counters that an invocation here advances.
        alias: Stands for the span ids of the invocations here, as the producer of what they return.
        count: Invocations.
        total_ns: Their summed duration [ns].
        bodies: Iterations that a loop here has run.
        inner: The paths below, by definition and instance.
    """

    written: tuple[list[int], ...] = ()
    alias: int = 0
    count: int = 0
    total_ns: int = 0
    bodies: int = 0
    inner: dict[Any, Unsampled] = field(default_factory=dict[Any, "Unsampled"])


class Sampling:
    """Which iterations of a loop are recorded in full.

    Args:
        steps: Iterations at the start, and as many at the end.
        items: What the loop runs over.
    """

    def __init__(self, steps: int, items: Iterable[Any]) -> None:
        self._count = _length(items)
        self._head = steps if self._count is not None else 2 * steps
        self._tail = 2**63 if self._count is None else self._count - steps

    @property
    def everything(self) -> bool:
        """Whether no iteration is left out."""
        return self._count is not None and self._head >= self._tail

    def __contains__(self, index: int) -> bool:
        return index < self._head or index >= self._tail

    def left_out(self, count: int) -> range:
        """Which of the first `count` iterations are not recorded in full."""
        return range(self._head, max(min(count, self._tail), self._head))


def between(inv: Invocation) -> Unsampled:
    """The frame of all iterations of a loop that are not recorded in full."""
    return Unsampled(
        inv.path,
        inv.iteration,
        inv.span_id,
        inv.trace_id,
        {},
        inv.group,
        inv.groups,
        inv.rows,
    )


def sums(frame: Unsampled, prefix: str) -> Iterator[tuple[str, str]]:
    """Attributes with count, summed duration [ns], bodies and alias of every path below `frame`."""
    for inner in frame.inner.values():
        name = f"unsampled/{inner.path.removeprefix(prefix)}"
        yield name, f"{inner.count} {inner.total_ns} {inner.bodies} {inner.alias}"
        yield from sums(inner, prefix)


def _length(items: Iterable[Any]) -> int | None:
    """How many items there will be, where they can tell without being asked for one."""
    try:
        return len(items) if isinstance(items, Sized) else None
    except Exception:  # a length of its own that it does not know either
        return None
