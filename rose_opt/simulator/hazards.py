"""Which earlier tasks a task conflicts with, kept in one list per state.

An access that covers a whole state separates: whatever conflicts with it or comes after it need not be
compared with what lies before. So lists stay short, and the answer implies all conflicts.

Paper: §4.3.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rose_trace.legality import AccessSet, RowRange, conflicting
from rose_trace.records import Access


class Hazards:
    """Accesses of the tasks so far, in program order."""

    def __init__(self) -> None:
        self._live: defaultdict[str, list[tuple[int, Access, RowRange | None]]] = defaultdict(list)
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
            for task, other, rows in self._live[item.state]:
                if conflicting(other, item, rows, access.rows):
                    yield task

    def add(self, fragments: Sequence[tuple[int, AccessSet]]) -> None:
        """Remember what the fragments of one invocation touch; none of them separates the others."""
        if any(access.opaque for _, access in fragments):
            self._live.clear()
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
                self._live[item.state].append((task, item, access.rows))

    def _drop(self, write: Access, rows: RowRange | None) -> None:
        """Forget what a write separates from all that follows."""
        whole = not write.keyed or rows is None
        entries = self._live[write.state]
        entries[:] = [entry for entry in entries if not whole and not _covered(entry, write, rows)]


def _covered(
    entry: tuple[int, Access, RowRange | None], access: Access, rows: RowRange | None
) -> bool:
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
