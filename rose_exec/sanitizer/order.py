"""Which invocations the executor orders, whatever the timing: happens-before of one iteration.

Two invocations are ordered by a value that one hands to the other, by declared accesses that conflict,
or because glue waited for the one before it called the other. Sharing a worker orders nothing: that is
capacity. The clock of a task is the set of tasks before it, one bit each; an iteration ends with a
barrier, so the bits begin anew there.

Paper: §4.3.1; FastTrack (Flanagan and Freund, 2009) for the idea of a check that needs no bad luck.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rose_exec.readiness import MAIN, Position, StrandId, TaskId
from rose_trace.legality import AccessSet, conflicting
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
        self._fence = 0
        self._all = 0
        for k, task in enumerate(self.tasks):
            before = [*task.inputs, *waits.get(task.strand, [])[: task.waits]]
            places = {self.index[i] for i in before if i is not None and i in self.index}
            places |= self._conflicts(k, task)
            clock = self._fence if not task.access.opaque else self._all
            for place in sorted(places):
                if place < k:
                    self._edges.append((self.tasks[place].id, task.id))
                    clock |= self._clock[place] | 1 << place
            self._clock.append(clock)
            self._all |= 1 << k
            if task.access.opaque:
                self._fence = clock | 1 << k

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

    def _conflicts(self, k: int, task: Placed) -> set[int]:
        found: set[int] = set()
        for access in task.access.accesses:
            state = self._states.setdefault(access.state, _State())
            against = [*state.writes, *(state.reads if access.mode.writes else ())]
            for place, other in against:
                earlier = self.tasks[place]
                if earlier.position != task.position and conflicting(
                    other, access, earlier.access.rows, task.access.rows
                ):
                    found.add(place)
            if not access.mode.writes:
                state.reads.append((k, access))
            elif access.keyed and task.access.rows is not None:
                # What lies within the same rows is ordered against later ones through this write.
                state.writes = [w for w in state.writes if not self._within(w, task)]
                state.reads = [r for r in state.reads if not self._within(r, task)]
                state.writes.append((k, access))
            else:
                shares = [w for w in state.writes if self.tasks[w[0]].position == task.position]
                state.writes, state.reads = [*shares, (k, access)], []
        return found

    def _within(self, item: tuple[int, Access], task: Placed) -> bool:
        other, rows = self.tasks[item[0]], task.access.rows
        inner = other.access.rows
        return (
            other.position != task.position
            and item[1].keyed
            and rows is not None
            and inner is not None
            and rows.start <= inner.start
            and inner.stop <= rows.stop
        )
