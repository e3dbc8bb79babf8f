"""Which task may start: a pure state machine, events in and commands out.

Sequential task flow: tasks are submitted with their place in the native program order and the
accesses they declare. A task starts when its inputs exist, every conflicting access that is earlier
in program order has finished, no branch that is still running could submit such an access, and its
worker and enough cores are free. A plan only changes which tasks are offered early; it cannot change
these rules.

Does not handle: time, threads, values. `driver.py` performs the commands.

Paper: §4.2 "Execution", App. A.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

from rose_exec.program_order import ProgramOrder, take_out
from rose_exec.submission import MAIN, Position, StrandId, Submission, TaskId
from rose_trace.legality import AccessSet, first_conflict


@dataclass(frozen=True, slots=True)
class Start:
    """Command: run the task now on its worker."""

    id: TaskId
    worker: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Command: the task will never run."""

    id: TaskId


Command = Start | Cancel


class OrderViolation(RuntimeError):
    """A task came too late: something that must follow it has already started."""


@dataclass(slots=True)
class _Task:
    submission: Submission
    pending: set[TaskId] = field(default_factory=set[TaskId])
    successors: list[TaskId] = field(default_factory=list[TaskId])
    blockers: set[StrandId] = field(default_factory=set[StrandId])
    started: bool = False

    @property
    def free(self) -> bool:
        return not self.pending and not self.blockers


@dataclass(slots=True)
class _Strand:
    frontier: Position
    reservation: AccessSet
    blocked: set[TaskId] = field(default_factory=set[TaskId])


class Readiness:
    """The state machine.

    Args:
        workers: Names of the workers; each runs one task at a time.
        cores: Cores the tasks may occupy together; 0 for no limit.
    """

    def __init__(self, workers: Iterable[str], cores: float = 0.0) -> None:
        self._busy: dict[str, TaskId | None] = dict.fromkeys(workers)
        self._capacity = cores
        self._tasks: dict[TaskId, _Task] = {}
        self._order = ProgramOrder()
        self._ready: list[tuple[Position, TaskId]] = []
        self._strands: dict[StrandId, _Strand] = {MAIN: _Strand((), AccessSet(opaque=True))}
        self._started: list[Submission] = []
        self._stop: Position | None = None
        self.conducted = False
        """Whether nothing starts by itself: somebody else picks among the `candidates`."""
        self.became_ready: list[TaskId] = []
        """Tasks that wait for nothing but their worker since this list was last cleared."""

    # Events -------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> list[Command]:
        """A task becomes known.

        Raises:
            OrderViolation: If its branch did not announce what it touches, and a later conflicting
                task has already started.
        """
        if self._stop is not None and submission.position >= self._stop:
            return [Cancel(submission.id)]
        self._check_announced(submission)
        task = _Task(submission)
        self._tasks[submission.id] = task
        task.pending.update(i for i in submission.inputs if i in self._tasks)
        task.pending.update(self._order.before(submission))
        for item in self._order.after(submission):
            self._precede(submission.id, self._tasks[item])
        for item in task.pending:
            self._tasks[item].successors.append(submission.id)
        for name, strand in self._strands.items():
            if (
                name != submission.strand
                and strand.frontier < submission.position
                and first_conflict(strand.reservation, submission.access)
            ):
                task.blockers.add(name)
                strand.blocked.add(submission.id)
        self._order.add(submission)
        if task.free:
            self._offer(submission)
        return self._dispatch()

    def finish(self, task: TaskId) -> list[Command]:
        """A running task has its result."""
        self._retire(task)
        return self._dispatch()

    def start(self, item: TaskId) -> Start:
        """A task that may start does."""
        task = self._tasks[item]
        worker = task.submission.worker
        self._busy[worker] = item
        task.started = True
        self._ready.remove((task.submission.position, item))
        self._started.append(task.submission)
        return Start(item, worker)

    def fail(self, task: TaskId) -> list[Command]:
        """A running task raised: nothing later in program order starts any more.

        Other fragments of the same invocation still run, so that the same one is always the first.
        """
        position = self._tasks[task].submission.position
        self._retire(task)
        return self.stop((*position, 0))

    def stop(self, position: Position) -> list[Command]:
        """Start nothing at or after `position`; what is earlier goes on."""
        if self._stop is None or position < self._stop:
            self._stop = position
        commands: list[Command] = []
        for item in self._order.since(self._stop):
            if not self._tasks[item].started:
                self._forget(item)
                commands.append(Cancel(item))
        return commands + self._dispatch()

    def open(self, strand: StrandId, frontier: Position, reservation: AccessSet) -> None:
        """A branch begins at `frontier`; `reservation` is all that it may touch."""
        self._strands[strand] = _Strand(frontier, reservation)
        self._block(strand)

    def advance(self, strand: StrandId, frontier: Position) -> list[Command]:
        """A branch will submit nothing before `frontier` any more."""
        state = self._strands[strand]
        state.frontier = frontier
        if not state.blocked:
            return []
        passed = [t for t in state.blocked if self._tasks[t].submission.position <= frontier]
        return self._unblock(strand, passed)

    def close(self, strand: StrandId) -> list[Command]:
        """A branch has submitted everything."""
        state = self._strands.pop(strand)
        return self._unblock(strand, state.blocked)

    def reset(self) -> None:
        """Forget finished work at an iteration boundary."""
        self._started.clear()
        self._stop = None

    # Questions ----------------------------------------------------------------------------------

    @property
    def stopped_at(self) -> Position | None:
        """Earliest position that failed, if any."""
        return self._stop

    @property
    def strands(self) -> int:
        """Number of branches that may submit more, with the program itself."""
        return len(self._strands)

    def candidates(self) -> list[TaskId]:
        """Tasks that may start now, earliest in program order first."""
        return [
            item
            for _, item in self._ready
            if self._busy[self._tasks[item].submission.worker] is None
            and self._fits(self._tasks[item].submission.cores)
        ]

    @property
    def active(self) -> int:
        """Number of tasks submitted and not finished, and of branches that may submit more."""
        return len(self._tasks) + len(self._strands) - 1

    def frontier(self, strand: StrandId) -> Position:
        """Where a branch is in program order."""
        return self._strands[strand].frontier

    def waiting_for(self, task: TaskId) -> tuple[str, ...]:
        """Paths of the tasks and branches that `task` waits for, for messages."""
        state = self._tasks[task]
        return tuple(self._tasks[i].submission.path for i in state.pending) + tuple(
            f"branch {strand}" for strand in state.blockers
        )

    # Internals ----------------------------------------------------------------------------------

    def _check_announced(self, submission: Submission) -> None:
        strand = self._strands[submission.strand]
        if strand.reservation.covers(submission.access):
            return
        place = submission.position
        beside = [self._tasks[item].submission for item in self._order.at(place)]
        for other in (*self._started, *beside):
            other_group = other.position == place and other.strand != submission.strand
            if other.position > place or other_group:
                conflict = first_conflict(submission.access, other.access)
                if conflict is not None:
                    what = "belongs to another group" if other_group else "has already started"
                    raise OrderViolation(
                        f"{submission.path}: expected only the accesses that were recorded for its "
                        f"branch, got {conflict}: {other.path}, which comes later in the program, "
                        f"{what}. Record a new trace that covers this path and plan again."
                    )
        strand.reservation = strand.reservation.union(submission.access)
        self._block(submission.strand)

    def _precede(self, item: TaskId, later: _Task) -> None:
        """Let a task wait for an earlier one that comes only now, unless it has started."""
        if not later.started:
            self._hold(later)
            later.pending.add(item)
            self._tasks[item].successors.append(later.submission.id)

    def _hold(self, later: _Task) -> None:
        """Take back the offer of a task that is about to get something to wait for."""
        if later.free:
            self._ready.remove((later.submission.position, later.submission.id))

    def _block(self, name: StrandId) -> None:
        """Let a branch hold what it may still submit something earlier against."""
        strand = self._strands[name]
        for item in self._order.since(strand.frontier):
            task = self._tasks[item]
            if (
                not task.started
                and task.submission.strand != name
                and name not in task.blockers
                and strand.frontier < task.submission.position
                and first_conflict(strand.reservation, task.submission.access)
            ):
                self._hold(task)
                task.blockers.add(name)
                strand.blocked.add(item)

    def _retire(self, item: TaskId) -> None:
        submission = self._tasks[item].submission
        self._busy[submission.worker] = None
        for successor in self._tasks[item].successors:
            later = self._tasks.get(successor)
            if later is not None and item in later.pending:
                later.pending.discard(item)
                if later.free and not later.started:
                    self._offer(later.submission)
        self._forget(item)

    def _forget(self, item: TaskId) -> None:
        task = self._tasks.pop(item)
        self._order.remove(task.submission)
        take_out(self._ready, (task.submission.position, item))
        for strand in task.blockers:
            if strand in self._strands:
                self._strands[strand].blocked.discard(item)

    def _unblock(self, strand: StrandId, tasks: Iterable[TaskId]) -> list[Command]:
        for item in list(tasks):
            task = self._tasks.get(item)
            if task is None:
                continue
            task.blockers.discard(strand)
            if strand in self._strands:
                self._strands[strand].blocked.discard(item)
            if task.free and not task.started:
                self._offer(task.submission)
        return self._dispatch()

    def _fits(self, cores: float) -> bool:
        """Whether `cores` more are free; what runs alone always fits."""
        running = [self._tasks[item].submission.cores for item in self._busy.values() if item]
        return not self._capacity or not running or sum(running) + cores <= self._capacity

    def _offer(self, submission: Submission) -> None:
        bisect.insort(self._ready, (submission.position, submission.id))
        self.became_ready.append(submission.id)

    def _dispatch(self) -> list[Command]:
        """Start what is ready: what goes first, then by program order; cores are never oversubscribed."""
        commands: list[Command] = []
        if self.conducted:
            return commands
        running = [self._tasks[i].submission.cores for i in self._busy.values() if i is not None]
        used = sum(running)
        for _, item in sorted(self._ready, key=lambda entry: not self._urgent(entry[1])):
            task = self._tasks[item]
            worker = task.submission.worker
            if self._busy[worker] is not None:
                continue
            if self._capacity and used and used + task.submission.cores > self._capacity:
                break
            used += task.submission.cores
            commands.append(self.start(item))
        return commands

    def _urgent(self, item: TaskId) -> bool:
        return self._tasks[item].submission.first


__all__ = [
    "MAIN",
    "Cancel",
    "Command",
    "OrderViolation",
    "Position",
    "Readiness",
    "Start",
    "StrandId",
    "Submission",
    "TaskId",
]
