"""Program order: tasks that are known and not finished, by their place and by what they touch.

A task is ordered against what conflicts with it, before and after it. The scan stops behind the first task
that already separates the rest: whatever lies beyond it and conflicts too is ordered against that one.
Fragments of one invocation share a position and are not ordered among themselves, so none of them separates
the others.

Paper: §4.2 "Execution", App. A.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from rose_exec.submission import Position, Submission, TaskId
from rose_trace.legality import AccessSet, first_conflict

Entry = tuple[Position, TaskId]


class ProgramOrder:
    """Known tasks in program order."""

    def __init__(self) -> None:
        self._submissions: dict[TaskId, Submission] = {}
        self._by_state: dict[str, list[Entry]] = {}
        self._all: list[Entry] = []
        self._fences: list[Entry] = []

    def add(self, submission: Submission) -> None:
        """A task is known."""
        entry = (submission.position, submission.id)
        self._submissions[submission.id] = submission
        bisect.insort(self._all, entry)
        if submission.access.opaque:
            bisect.insort(self._fences, entry)
        for state in dict.fromkeys(item.state for item in submission.access.accesses):
            bisect.insort(self._by_state.setdefault(state, []), entry)

    def remove(self, submission: Submission) -> None:
        """A task has finished, or will never run."""
        entry = (submission.position, submission.id)
        del self._submissions[submission.id]
        take_out(self._all, entry)
        if submission.access.opaque:
            take_out(self._fences, entry)
        for state in {item.state for item in submission.access.accesses}:
            take_out(self._by_state[state], entry)

    def since(self, position: Position) -> list[TaskId]:
        """Tasks at `position` or later, in order."""
        return [item for _, item in self._all[_first(self._all, position) :]]

    def at(self, position: Position) -> list[TaskId]:
        """Fragments of the invocation at `position`."""
        return [
            item for _, item in self._all[_first(self._all, position) : _past(self._all, position)]
        ]

    def before(self, submission: Submission) -> Iterator[TaskId]:
        """Earlier tasks that must finish before this one starts."""
        for entries in self._touching(submission.access):
            earlier = entries[: _first(entries, submission.position)]
            yield from self._conflicting(submission, reversed(earlier))

    def after(self, submission: Submission) -> Iterator[TaskId]:
        """Later tasks that must wait for this one."""
        for entries in self._touching(submission.access):
            later = entries[_past(entries, submission.position) :]
            yield from self._conflicting(submission, later)

    def _touching(self, access: AccessSet) -> list[list[Entry]]:
        """Lists that hold everything an access may conflict with."""
        if access.opaque:
            return [self._all]
        states = dict.fromkeys(item.state for item in access.accesses)
        return [self._fences, *(self._by_state[s] for s in states if s in self._by_state)]

    def _conflicting(self, submission: Submission, entries: Iterable[Entry]) -> Iterator[TaskId]:
        """What conflicts among `entries`, nearest first, up to what separates the rest."""
        separated: Position | None = None
        for place, item in entries:
            if separated not in (None, place):
                break
            other = self._submissions[item]
            pair = (other, submission) if place < submission.position else (submission, other)
            if first_conflict(pair[0].access, pair[1].access):
                yield item
                if _separates(other.access, submission.access):
                    separated = place


def take_out(entries: list[Entry], entry: Entry) -> None:
    """Remove an entry from a sorted list, if it is there."""
    at = bisect.bisect_left(entries, entry)
    if at < len(entries) and entries[at] == entry:
        del entries[at]


def _first(entries: list[Entry], position: Position) -> int:
    return bisect.bisect_left(entries, (position,))


def _past(entries: list[Entry], position: Position) -> int:
    return bisect.bisect_right(entries, (position, TaskId(1 << 62)))


def _separates(barrier: AccessSet, access: AccessSet) -> bool:
    """Whether everything that conflicts with `access` also conflicts with `barrier`, state by state."""
    if barrier.opaque:
        return True
    if access.opaque:
        return False
    for item in access.accesses:
        whole = any(
            other.state == item.state
            and other.mode.writes
            and (
                not other.keyed or barrier.rows is None or (item.keyed and _inside(access, barrier))
            )
            for other in barrier.accesses
        )
        if not whole:
            return False
    return True


def _inside(access: AccessSet, barrier: AccessSet) -> bool:
    return (
        access.rows is not None
        and barrier.rows is not None
        and barrier.rows.start <= access.rows.start
        and access.rows.stop <= barrier.rows.stop
    )
