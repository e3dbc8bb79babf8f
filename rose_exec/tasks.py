"""Tasks in flight: submits them, performs the state machine's commands, and lets glue code wait.

Paper: App. A.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rose_exec.conductor import Conductor
from rose_exec.device_errors import advice
from rose_exec.placement import Placement
from rose_exec.readiness import (
    MAIN,
    Cancel,
    Command,
    Position,
    Readiness,
    StrandId,
    Submission,
    TaskId,
)
from rose_exec.refs import Cancelled, Output, Result, Value
from rose_exec.scope import scope
from rose_exec.workers import Answer, Job
from rose_trace import pytree
from rose_trace.legality import AccessSet
from rose_trace.node import ExecutionNode
from rose_trace.pytree import Leaf, Structure


class StructureChanged(RuntimeError):
    """A result has other containers than the recorded ones, which its consumers already hold."""


@dataclass(slots=True)
class Task:
    """One invocation in flight.

    Attributes:
        job: What its worker is asked to do.
        values: Its arguments' leaves.
        position: Place in the native program order.
        strand: Branch that submits it.
        cores: CPU cores it occupies.
        expected: Recorded structure of the result, with the shapes of this branch; ``None`` where it
            varied.
        guarded: Whether its exception goes to the caller alone, who waits for it.
        ready_ns: When it last waited for nothing but its worker (monotonic clock).
        access: What it touches, each state on its instance; ``None`` for what its job announces.
        node: Its definition; ``None`` for the reading of an attribute.
        first: Whether it goes before others that are ready.
    """

    job: Job
    values: list[Value]
    position: Position
    strand: StrandId
    cores: float
    expected: Structure | None
    guarded: bool
    ready_ns: int = 0
    access: AccessSet | None = None
    node: ExecutionNode | None = None
    first: bool = False


class Tasks:
    """All tasks of a session.

    Args:
        placement: Workers.
        cores: Cores the tasks may occupy together; 0 for no limit.
        conductor: Picks what runs next in a session that is watched.
    """

    def __init__(
        self, placement: Placement, cores: float, conductor: Conductor | None = None
    ) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.readiness = Readiness(placement.workers, cores)
        self._placement = placement
        self._ids = itertools.count(1)
        self._flying: dict[TaskId, tuple[Task, Result]] = {}
        self._errors: list[tuple[tuple[Position, int], BaseException]] = []
        self.conductor = conductor
        self._parked: dict[int, Callable[[], bool]] = {}
        self._deciding = False
        if conductor is not None:
            self.readiness.conducted = True
            conductor.bind(self.lock)

    def submit(self, task: Task, worker: str) -> Result:
        """Hand a task to the state machine; returns its future result.

        Raises:
            OrderViolation: If its branch did not announce what it touches and it comes too late.
        """
        result = Result(TaskId(next(self._ids)), task.job.path, task.position, guarded=task.guarded)
        with self.lock:
            inputs = [r.id for value in task.values for r in value.results() if not r.done.is_set()]
            self.perform(self.readiness.advance(task.strand, task.position))
            submission = Submission(
                result.id,
                task.position,
                task.strand,
                task.job.allowed if task.access is None else task.access,
                frozenset(inputs),
                worker,
                task.cores,
                task.job.path,
                task.first,
            )
            if self.conductor is not None:
                self.conductor.submitted(task, submission)
            commands = self.readiness.submit(submission)
            self._flying[result.id] = (task, result)
            self.perform(commands)
        return result

    def frontier(self, strand: StrandId) -> Position:
        """Where a branch is in program order."""
        with self.lock:
            return self.readiness.frontier(strand)

    def open(self, strand: StrandId, frontier: Position, reservation: AccessSet) -> None:
        """A branch begins."""
        with self.lock:
            self.readiness.open(strand, frontier, reservation)

    def advance(self, strand: StrandId, frontier: Position) -> None:
        """A branch has passed `frontier`."""
        with self.lock:
            self.perform(self.readiness.advance(strand, frontier))

    def close(self, strand: StrandId) -> None:
        """A branch has ended."""
        with self.changed:
            self.perform(self.readiness.close(strand))
            self.changed.notify_all()
            self._decide()

    def fail(self, position: Position, group: int, error: BaseException) -> None:
        """Glue code at `position` raised, in `group`: nothing later starts any more."""
        with self.changed:
            self._errors.append(((position, group), error))
            self.perform(self.readiness.stop(position))
            self.changed.notify_all()
            self._decide()

    @property
    def stopped(self) -> bool:
        """Whether something failed in this iteration."""
        with self.lock:
            return self.readiness.stopped_at is not None

    def perform(self, commands: Sequence[Command]) -> None:
        """Carry out what the state machine asks for; the lock is held."""
        now = time.monotonic_ns()
        for item in self.readiness.became_ready:
            if item in self._flying:
                self._flying[item][0].ready_ns = now
        self.readiness.became_ready.clear()
        for command in commands:
            task, result = self._flying[command.id]
            if isinstance(command, Cancel):
                result.error = Cancelled()
                self._complete(task, result)
                self.changed.notify_all()
                continue
            future = self._start(task, command.worker)
            future.add_done_callback(lambda done, t=task, r=result: self._done(t, r, done))

    def _start(self, task: Task, worker: str) -> Future[Answer]:
        """Run the task; whatever goes wrong before it runs is its own failure, too."""
        try:
            task.job.leaves = tuple(value.to_wire() for value in task.values)
            task.job.wait_ns = time.monotonic_ns() - task.ready_ns
            return self._placement.workers[worker].run(task.job)
        except Exception as error:
            failed: Future[Answer] = Future()
            failed.set_exception(error)
            return failed

    def _done(self, task: Task, result: Result, future: Future[Answer]) -> None:
        error = future.exception()
        if error is None:
            answer = future.result()
            try:
                error = _unexpected(task, answer)
            except Exception as problem:
                error = problem
            result.structure, result.leaves = answer.structure, answer.leaves
        with self.changed:
            if error is None:
                commands = self.readiness.finish(result.id)
            else:
                where = list(task.job.frame.iteration)
                error.add_note(f"Raised by {task.job.path}, iteration {where}.")
                said = advice(error, task.job.path)
                if said:
                    error.add_note(said)
                result.error = error
                if task.guarded:
                    commands = self.readiness.finish(result.id)
                else:
                    self._errors.append(((task.position, task.job.frame.group), error))
                    commands = self.readiness.fail(result.id)
            self._complete(task, result)
            self.perform(commands)
            self.changed.notify_all()
            self._decide()

    def _complete(self, task: Task, result: Result) -> None:
        del self._flying[result.id]
        task.values = []
        task.job.leaves = ()
        result.done.set()

    # Waiting ------------------------------------------------------------------------------------

    def wait(self, value: Value) -> Any:
        """The value itself, when it is there.

        Raises:
            BaseException: What its producer raised, where the caller handles it; `Cancelled` elsewhere.
        """
        for result in value.results():
            self.settle(result)
        return value.get()

    def settle(self, result: Result) -> None:
        """Wait for one result.

        Raises:
            Cancelled: If it failed, or will never run.
        """
        self.until(result.done.is_set, result.done)
        if self.conductor is not None:
            self.conductor.waited(_strand(), result.id)
        if result.error is not None:
            here = scope.get()
            if here is None or here.waits or result.guarded:
                raise result.error
            raise Cancelled

    def concrete(self, result: Result) -> Any:
        """The result of a task as a plain value; waits for it."""
        self.settle(result)
        assert result.structure is not None
        leaves = [Output(result, index).get() for index in range(len(result.leaves))]
        return pytree.unflatten(result.structure, iter(leaves))

    def wait_all(self) -> None:
        """Wait for every task submitted so far, and for what branches still submit."""
        self.until(lambda: self.readiness.active == 0)
        if self.conductor is not None:
            self.conductor.waited(_strand(), None)

    def until(self, ready: Callable[[], bool], event: threading.Event | None = None) -> None:
        """Let glue wait; where a conductor decides, it does so once all glue waits.

        Args:
            ready: What is waited for; changes are announced by `changed`.
            event: Set when it is there, where one tells.
        """
        if self.conductor is None and event is not None:
            event.wait()
            return
        with self.changed:
            me = threading.get_ident()
            self._parked[me] = ready
            self._decide()
            self.changed.wait_for(ready)
            del self._parked[me]

    def _decide(self) -> None:
        """Let the conductor move things on, if nobody else does; the lock is held."""
        if self.conductor is None or self._deciding:
            return
        self._deciding = True
        try:
            while sum(not ready() for ready in self._parked.values()) >= self.readiness.strands:
                picked = self.conductor.next(self.readiness.candidates())
                if picked is None:
                    return
                self.perform([self.readiness.start(picked)])
        finally:
            self._deciding = False

    def first_error(self) -> BaseException | None:
        """The error that is earliest in program order; forgets all of them."""
        with self.lock:
            errors, self._errors = self._errors, []
            self.readiness.reset()
            return min(errors, key=lambda item: item[0])[1] if errors else None


def _strand() -> StrandId:
    here = scope.get()
    return MAIN if here is None else here.strand


def with_rows(structure: Structure, whole: frozenset[int], rows: int) -> Structure:
    """A recorded structure with `rows` entries on axis 0 wherever a whole batch stood.

    Args:
        structure: As recorded for the whole batch.
        whole: Batch sizes.
        rows: Rows of the branch.

    Returns:
        The structure that a branch's result must have.
    """
    leaf = structure.leaf
    if leaf is not None:
        if not leaf.shape or leaf.shape[0] not in whole:
            return structure
        return Structure("leaf", leaf=Leaf(leaf.type, leaf.dtype, (rows, *leaf.shape[1:])))
    children = tuple(with_rows(child, whole, rows) for child in structure.children)
    return Structure(structure.kind, structure.keys, structure.cls, children)


def _unexpected(task: Task, answer: Answer) -> BaseException | None:
    expected = task.expected
    if expected is None:
        return None
    if not _same_containers(expected, answer.structure):
        if task.guarded:  # nobody holds parts of it: the caller waits for what there is
            return None
        return StructureChanged(
            f"{task.job.path}: expected the recorded result {expected.to_json()}, got "
            f"{answer.structure.to_json()}. Record a new trace that covers this case and plan again."
        )
    if task.job.frame.rows is None:
        return None
    rows = len(task.job.frame.rows)
    for wanted, found in zip(expected.leaves(), answer.structure.leaves(), strict=True):
        carries = wanted.shape and wanted.shape[0] == rows
        if carries and (not found.shape or found.shape[0] != rows):
            return StructureChanged(
                f"{task.job.path}: expected {rows} rows from its branch, got shape "
                f"{list(found.shape or ())}. Return one entry per row served (rose.current_rows())."
            )
    return None


def _same_containers(a: Structure, b: Structure) -> bool:
    same = (a.kind, a.keys, a.cls, len(a.children)) == (b.kind, b.keys, b.cls, len(b.children))
    return same and all(map(_same_containers, a.children, b.children))
