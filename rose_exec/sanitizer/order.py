"""Which invocations the executor orders, whatever the timing: happens-before of one iteration.

Two invocations are ordered by a value that one hands to the other, by declared accesses that conflict,
or because glue waited for the one before it called the other. Sharing a worker orders nothing: that is
capacity. The clock of a task is the set of tasks before it, one bit each; an iteration ends with a
barrier, so the bits begin anew there.

Paper: §4.3.1; FastTrack (Flanagan and Freund, 2009) for the idea of a check that needs no bad luck.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rose_exec.readiness import MAIN, Position, StrandId, TaskId
from rose_trace.legality import AccessSet, RowRange, conflicting
from rose_trace.records import Access


@dataclass(slots=True)
class Placed:
    """One task, as the order sees it.

    Attributes:
        id: Task id.
        position: Place in the native program order.
        access: What the executor holds it to.
        inputs: Tasks whose results it was given.
        strand: Branch that called it.
        waits: Number of waits of that branch before the call.
    """

    id: TaskId
    position: Position
    access: AccessSet
    inputs: frozenset[TaskId]
    strand: StrandId
    waits: int


@dataclass(slots=True)
class Order:
    """Everything that orders the tasks of one iteration."""

    tasks: list[Placed] = field(default_factory=list[Placed])
    _waits: dict[StrandId, list[TaskId | None]] = field(default_factory=lambda: {MAIN: []})

    def submitted(
        self,
        item: TaskId,
        position: Position,
        access: AccessSet,
        inputs: Iterable[TaskId],
        strand: StrandId,
    ) -> None:
        """A branch called a node."""
        waits = len(self._waits.setdefault(strand, []))
        self.tasks.append(Placed(item, position, access, frozenset(inputs), strand, waits))

    def waited(self, strand: StrandId, task: TaskId | None) -> None:
        """A branch has waited for a task, or for all that there are (``None``)."""
        known: Iterable[TaskId] = [task] if task is not None else [t.id for t in self.tasks]
        self._waits.setdefault(strand, []).extend(known)

    def opened(self, strand: StrandId, parent: StrandId) -> None:
        """A branch begins with what its parent has waited for."""
        self._waits[strand] = list(self._waits.setdefault(parent, []))

    def joined(self, strand: StrandId, branch: StrandId) -> None:
        """A branch has waited for the end of another's glue."""
        self._waits.setdefault(strand, []).extend(self._waits.get(branch, ()))

    def clocks(self) -> Clocks:
        """The clock of every task."""
        return Clocks(self.tasks, self._waits)


@dataclass(slots=True)
class _State:
    """The accesses to one state that a later one is still ordered against."""

    writes: list[tuple[int, Access]] = field(default_factory=list[tuple[int, Access]])
    reads: list[tuple[int, Access]] = field(default_factory=list[tuple[int, Access]])


class Clocks:
    """Clocks of the tasks of one iteration, in program order.

    Args:
        tasks: The tasks.
        waits: What each branch waited for, in order.
    """

    def __init__(self, tasks: Sequence[Placed], waits: dict[StrandId, list[TaskId | None]]) -> None:
        self.tasks = sorted(tasks, key=lambda task: (task.position, task.id))
        self.index = {task.id: k for k, task in enumerate(self.tasks)}
        self._clock: list[int] = []
        self._edges: list[tuple[TaskId, TaskId]] = []
        self._states: dict[str, _State] = {}
        everything = fence = 0
        for _, group in itertools.groupby(
            range(len(self.tasks)), key=lambda k: self.tasks[k].position
        ):
            # Fragments of one invocation share a position: nothing orders them among themselves.
            fragments = list(group)
            for k in fragments:
                task = self.tasks[k]
                given = [*task.inputs, *waits.get(task.strand, [])[: task.waits]]
                places = {self.index[i] for i in given if i is not None and i in self.index}
                places |= self._conflicts(task)
                clock = everything if task.access.opaque else fence
                for place in sorted(p for p in places if p < k):
                    self._edges.append((self.tasks[place].id, task.id))
                    clock |= self._clock[place] | 1 << place
                self._clock.append(clock)
            for k in fragments:
                everything |= 1 << k
                if self.tasks[k].access.opaque:
                    fence |= self._clock[k] | 1 << k
            self._remember(fragments)

    def ordered(self, earlier: TaskId, later: TaskId) -> bool:
        """Whether `earlier` has always finished before `later` starts."""
        return bool(self._clock[self.index[later]] >> self.index[earlier] & 1)

    def broken(self, ran: Mapping[TaskId, int]) -> Iterator[tuple[TaskId, TaskId]]:
        """Pairs that are ordered and ran the other way round: the executor's own mistakes.

        Args:
            ran: When each task ran, counted from 0.

        Yields:
            The earlier and the later one in program order.
        """
        for earlier, later in self._edges:
            if earlier in ran and later in ran and ran[earlier] > ran[later]:
                yield earlier, later

    def _conflicts(self, task: Placed) -> set[int]:
        """Nearest earlier tasks that the declared accesses order before `task`."""
        found: set[int] = set()
        for access in task.access.accesses:
            state = self._states.get(access.state, _State())
            for place, other in (*state.writes, *(state.reads if access.mode.writes else ())):
                if conflicting(other, access, self.tasks[place].access.rows, task.access.rows):
                    found.add(place)
        return found

    def _remember(self, fragments: Sequence[int]) -> None:
        """Let later tasks be ordered against these, and no more against what lies behind them."""
        accesses = [(k, access) for k in fragments for access in self.tasks[k].access.accesses]
        for k, access in accesses:
            if access.mode.writes:
                state = self._states.setdefault(access.state, _State())
                rows = self.tasks[k].access.rows if access.keyed else None
                state.writes = [item for item in state.writes if not self._within(item, rows)]
                state.reads = [item for item in state.reads if not self._within(item, rows)]
        for k, access in accesses:
            state = self._states.setdefault(access.state, _State())
            (state.writes if access.mode.writes else state.reads).append((k, access))

    def _within(self, item: tuple[int, Access], rows: RowRange | None) -> bool:
        """Whether whatever conflicts with an access also conflicts with a write of `rows`."""
        inner = self.tasks[item[0]].access.rows
        if rows is None:
            return True
        return (
            item[1].keyed
            and inner is not None
            and rows.start <= inner.start
            and inner.stop <= rows.stop
        )
