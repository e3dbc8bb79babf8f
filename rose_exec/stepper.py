"""A conductor that runs one body at a time, in an order that a policy picks: the base of checks and fuzzing.

All workers of the plan are then in this process; what a plan puts into a process gets components of
its own here, and values reach it as bytes, as they would there. A started task may be left alone while
others overtake it: that is its delay, counted in decisions and not in seconds.

Does not handle: process-wide generators and settings that worker processes have for themselves; here
all workers share the program's.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from rose_exec import streams, wire
from rose_exec.policies import Policy, Step
from rose_exec.readiness import StrandId, Submission, TaskId
from rose_exec.tasks import Task
from rose_exec.workers import Answer, InlineWorker, Job, ProcessWorker
from rose_exec.workers.job import Residence, isolate
from rose_trace import generators, pytree
from rose_trace.component import Instance, construct_natively, rebuild


class Bodies(Protocol):
    """Watches what the stepper runs."""

    def built(self, label: str, component: Any) -> None:
        """A component, or a shard of one, is there."""
        ...

    def run(self, task: Task, submission: Submission, execute: Callable[[Job], Any]) -> Any:
        """Run a task's body."""
        ...

    def answered(self, task: TaskId, result: Any, leaves: Sequence[wire.Wire]) -> None:
        """A body's result, and what its consumers get of it."""
        ...


@dataclass(slots=True)
class _Started:
    job: Job
    execute: Callable[[Job], Any]
    answer: Callable[[Any], Answer]
    future: Future[Answer]
    task: Task | None = None
    submission: Submission | None = None


class Stepper:
    """Runs the tasks of one session.

    Args:
        policy: Picks the next step.
        bodies: Watches.
    """

    def __init__(self, policy: Policy, bodies: Bodies) -> None:
        self._policy = policy
        self._bodies = bodies
        self._lock: Any = None
        self._known: dict[TaskId, tuple[Task, Submission]] = {}
        self._of_job: dict[int, TaskId] = {}
        self._started: dict[TaskId, _Started] = {}
        self._executing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rose-stepper")

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    # Conductor ----------------------------------------------------------------------------------

    def inline_worker(self, name: str, composites: frozenset[str]) -> InlineWorker:
        """A worker in the program's process."""
        return _Inline(name, composites, self)

    def process_worker(self, name: str, composites: frozenset[str]) -> ProcessWorker:
        """What takes the place of a worker process."""
        return _Separate(name, composites, self)

    def bind(self, lock: Any) -> None:
        """The lock under which everything is decided."""
        self._lock = lock

    def submitted(self, task: Task, submission: Submission) -> None:
        """A task is known."""
        self._known[submission.id] = task, submission
        self._of_job[id(task.job)] = submission.id

    def next(self, candidates: Sequence[TaskId]) -> TaskId | None:
        """The task to start; ``None`` where a started one was let go on, or nothing is there."""
        if self._executing:
            return None
        steps = [self._step(item, True) for item in candidates]
        steps += [self._step(item, False) for item in self._started]
        if not steps:
            return None
        steps.sort(key=lambda step: (step.position, step.task))
        picked = self._policy(steps)
        if picked.starts:
            return picked.task
        started = self._started.pop(picked.task)
        self._executing = True
        self._thread.submit(self._execute, picked.task, started)
        return None

    def opened(self, strand: StrandId, parent: StrandId) -> None:
        """A branch begins."""

    def joined(self, strand: StrandId, branch: StrandId) -> None:
        """A branch has waited for the end of another."""

    def waited(self, strand: StrandId, task: TaskId | None) -> None:
        """A branch has waited for a task, or for all."""

    def glue(self, entry: Callable[..., Any], path: str) -> None:
        """The body of a loop, composite or root runs as glue."""

    def begun(self) -> None:
        """Glue that nothing encloses begins."""

    def ended(self, result: Any) -> None:
        """It has ended; tasks that never ran are forgotten."""
        self._known.clear()
        self._of_job.clear()

    def let_be(self, path: str) -> None:
        """A coroutine or generator runs beside everything that is watched."""

    # Workers ------------------------------------------------------------------------------------

    def built(self, label: str, component: Any) -> None:
        """A component is there."""
        self._bodies.built(label, component)

    def take(
        self, job: Job, execute: Callable[[Job], Any], answer: Callable[[Any], Answer]
    ) -> Future[Answer]:
        """A worker was told to run a job: it waits for its turn."""
        started = _Started(job, execute, answer, Future())
        item = self._of_job.get(id(job))
        if item is None or job.attribute:  # read by the program itself, which waits
            try:
                started.future.set_result(answer(execute(job)))
            except BaseException as error:
                started.future.set_exception(error)
            return started.future
        started.task, started.submission = self._known[item]
        self._started[item] = started
        return started.future

    def _step(self, item: TaskId, starts: bool) -> Step:
        submission = self._known[item][1]
        return Step(submission.position, item, starts, submission.path)

    def _execute(self, item: TaskId, started: _Started) -> None:
        assert started.task is not None
        assert started.submission is not None
        answer: Answer | None = None
        error: BaseException | None = None
        try:
            with streams.current(started.job.stream):
                result = self._bodies.run(started.task, started.submission, started.execute)
                answer = started.answer(result)
                self._bodies.answered(item, result, answer.leaves)
                streams.wait(pytree.flatten(result)[0])  # its consumers may be on other streams
        except BaseException as raised:
            error = raised
        with self._lock:
            self._executing = False
            self._of_job.pop(id(started.job), None)
            del self._known[item]
            if error is not None:
                started.future.set_exception(error)
            else:
                started.future.set_result(answer)  # type: ignore[arg-type]


class _Inline(InlineWorker):
    """A worker of the program's process whose jobs wait for their turn."""

    def __init__(self, name: str, composites: frozenset[str], stepper: Stepper) -> None:
        super().__init__(name, composites)
        self._stepper = stepper

    def build(self, resident: str, instance: Instance, component: Any) -> None:
        """Construct the component here."""
        construct_natively(instance, component)
        self.adopt(resident, component)

    def adopt(self, resident: str, component: Any) -> None:
        """Take in a component that exists already."""
        super().adopt(resident, component)
        self._stepper.built(resident, component)

    def run(self, job: Job) -> Future[Answer]:
        """Start a job."""
        return self._stepper.take(job, self._residence.execute, _handed_on)


class _Separate(ProcessWorker):
    """Components of its own in this process, reached by bytes alone."""

    def __init__(self, name: str, composites: frozenset[str], stepper: Stepper) -> None:
        self.name = name
        self._residence = Residence(name, composites)
        self._stepper = stepper

    def build(
        self, resident: str, instance: Instance, shard: int, shards: int
    ) -> Future[generators.State]:
        """Construct a component, or one shard of it, from a copy of its arguments."""
        done: Future[generators.State] = Future()
        before = generators.capture()
        try:
            copied = pickle.loads(pickle.dumps(instance, protocol=5))
            component = rebuild(copied, shard, shards)
            self._residence.components[resident] = component
            self._stepper.built(resident, component)
            after = generators.capture()
            generators.restore(before)  # a process would have drawn from its own
            done.set_result(after)
        except BaseException as error:
            done.set_exception(error)
        return done

    def run(self, job: Job) -> Future[Answer]:
        """Start a job."""
        return self._stepper.take(job, self._execute, _sent)

    def record(self, settings: Any) -> Future[None]:
        """Nothing to do: what runs in this process is recorded with it."""
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def ended(self) -> bool:
        """What is no process does not die."""
        return False

    @property
    def pid(self) -> int | None:
        """There is no process."""
        return None

    def close(self) -> None:
        """Forget the components."""
        self._residence.components.clear()

    def _execute(self, job: Job) -> Any:
        job.leaves = tuple(wire.for_process(leaf) for leaf in job.leaves)
        return self._residence.execute(job)


def _handed_on(result: Any) -> Answer:
    leaves, structure = pytree.flatten(result)
    return Answer(structure, tuple(wire.Object(isolate(leaf)) for leaf in leaves))


def _sent(result: Any) -> Answer:
    leaves, structure = pytree.flatten(result)
    return Answer(structure, tuple(wire.for_process(wire.Object(leaf)) for leaf in leaves))
