"""Which earlier tasks a task conflicts with, kept in one list per state.

A write that covers a whole state separates: whatever conflicts with it or comes after it need not be
compared with what lies before. Reads are kept apart, since a read conflicts with none of them. So lists
that are looked at stay short, and the answer implies all conflicts.

Paper: §4.3.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rose_trace.legality import AccessSet, RowRange, conflicting
from rose_trace.records import Access

_Entry = tuple[int, Access, RowRange | None]
"""A task, what it touches, and which rows of that."""


class Hazards:
    """Accesses of the tasks so far, in program order."""

    def __init__(self) -> None:
        self._reads: defaultdict[str, list[_Entry]] = defaultdict(list)
        self._writes: defaultdict[str, list[_Entry]] = defaultdict(list)
        self._since_fence: list[int] = []
        self._fences: list[int] = []

    def before(self, access: AccessSet) -> Iterator[int]:
        """Yield the tasks that must finish first.

        Args:
            access: What the next task may touch.

        Yields:
            Positions of earlier tasks; those that they imply may be left out.
        """
        yield from self._fences
        if access.opaque:
            yield from self._since_fence
            return
        for item in access.accesses:
            earlier = self._writes[item.state]
            if item.mode.writes:
                earlier = [*self._reads[item.state], *earlier]
            for task, other, rows in earlier:
                if conflicting(other, item, rows, access.rows):
                    yield task

    def add(self, fragments: Sequence[tuple[int, AccessSet]]) -> None:
        """Remember what the fragments of one invocation touch; none of them separates the others."""
        if any(access.opaque for _, access in fragments):
            self._reads.clear()
            self._writes.clear()
            self._since_fence = []
            self._fences = [task for task, _ in fragments]
            return
        for _, access in fragments:
            for item in access.accesses:
                if item.mode.writes:
                    self._drop(item, access.rows)
        for task, access in fragments:
            self._since_fence.append(task)
            for item in access.accesses:
                kept = self._writes if item.mode.writes else self._reads
                kept[item.state].append((task, item, access.rows))

    def _drop(self, write: Access, rows: RowRange | None) -> None:
        """Forget what a write separates from all that follows."""
        whole = not write.keyed or rows is None
        for kept in (self._reads, self._writes):
            entries = kept[write.state]
            entries[:] = [e for e in entries if not whole and not _covered(e, write, rows)]


def _covered(entry: _Entry, access: Access, rows: RowRange | None) -> bool:
    """Whether whatever conflicts with an entry also conflicts with a later write of `rows`."""
    _, earlier, earlier_rows = entry
    return (
        earlier.keyed
        and access.keyed
        and rows is not None
        and earlier_rows is not None
        and rows.start <= earlier_rows.start
        and earlier_rows.stop <= rows.stop
    )
