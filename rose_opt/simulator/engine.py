"""Discrete events: tasks on workers, slowed by what runs beside them.

The rule of dispatch is the executor's: of the tasks that wait for nothing, the earliest in program order
starts on its free workers, and nothing later overtakes one that waits for cores or memory. While the
same tasks run, each progresses at a constant rate (see `rates.py`); the next event is the first end.
Work is conserved: over its run, the integral of a task's rate is its solo duration.

Does not handle: preemption, tasks that appear while others run.

Paper: §4.2, "Execution".
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from rose_opt.simulator.rates import Rates, full_speed

_DONE_NS = 1e-6  # ours: below this much work left, a task is done


@dataclass(frozen=True, slots=True)
class Task:
    """One invocation, or one fragment of it.

    Attributes:
        name: What `Rates` knows it by.
        workers: Workers that it occupies; a worker runs one task at a time.
        solo_ns: Duration with nothing else running [ns, > 0].
        after: Positions of the tasks that it waits for, all smaller than its own.
        cores: CPU cores it occupies [cores].
        memory_bytes: Memory it holds while it runs, beyond what is always resident [bytes].
    """

    name: str
    workers: tuple[str, ...]
    solo_ns: float
    after: tuple[int, ...] = ()
    cores: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """What the tasks share; None means no limit.

    Attributes:
        cores: CPU cores [cores]. A task larger than the machine runs alone.
        memory_bytes: Memory beyond what is always resident [bytes].
    """

    cores: float | None = None
    memory_bytes: int | None = None


class DoesNotFit(ValueError):
    """A task asks for more memory than the machine has."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When every task ran.

    Attributes:
        start_ns: Start of each task [ns]. Shape: one per task.
        end_ns: End of each task [ns]. Shape: one per task.
    """

    start_ns: tuple[float, ...]
    end_ns: tuple[float, ...]

    @property
    def makespan_ns(self) -> float:
        """End of the last task [ns]; 0 without tasks."""
        return max(self.end_ns, default=0.0)


@dataclass(slots=True)
class _Run:
    """A task that runs: work left at the last event, and when it ends at the present rate."""

    index: int
    task: Task
    left_ns: float
    rate: float
    end_ns: float


@dataclass(slots=True)
class _State:
    """What waits, what is ready, what runs and what is free."""

    waiting: list[int]
    successors: list[list[int]]
    ready: list[int]
    running: list[_Run] = field(default_factory=list[_Run])
    busy: set[str] = field(default_factory=set[str])
    cores: float = 0.0
    memory: int = 0


def simulate(
    tasks: Sequence[Task], machine: Machine | None = None, rates: Rates = full_speed
) -> Timeline:
    """Run tasks.

    Args:
        tasks: In program order; each waits only for earlier ones.
        machine: What they share.
        rates: How fast tasks that run together progress.

    Returns:
        Their starts and ends.

    Raises:
        DoesNotFit: If a task alone exceeds the memory.
        ValueError: If a task waits for itself or for a later one.
    """
    machine = machine or Machine()
    state = _prepare(tasks, machine)
    starts, ends = [0.0] * len(tasks), [0.0] * len(tasks)
    known: dict[tuple[str, ...], Sequence[float]] = {}
    now = 0.0
    while state.ready or state.running:
        for run in _dispatch(tasks, machine, state, now):
            starts[run.index] = now
        if rates is not full_speed:
            _set_rates(state, rates, known, now)
        before, now = now, min(run.end_ns for run in state.running)
        for run in _finished(state, before, now):
            ends[run.index] = now
            for later in state.successors[run.index]:
                state.waiting[later] -= 1
                if not state.waiting[later]:
                    bisect.insort(state.ready, later)
    return Timeline(tuple(starts), tuple(ends))


def _prepare(tasks: Sequence[Task], machine: Machine) -> _State:
    successors: list[list[int]] = [[] for _ in tasks]
    waiting: list[int] = []
    limit = machine.memory_bytes
    for index, task in enumerate(tasks):
        if limit is not None and task.memory_bytes > limit:
            raise DoesNotFit(
                f"{task.name}: expected at most {limit} bytes, got {task.memory_bytes}. "
                "Use fewer groups or replicas, or a larger machine."
            )
        before = task.after if len(task.after) < 2 else tuple(set(task.after))
        waiting.append(len(before))
        for earlier in before:
            if earlier >= index:
                raise ValueError(
                    f"{task.name}: expected tasks that wait for earlier ones, got task {index} waiting "
                    f"for {earlier}. List the tasks in program order."
                )
            successors[earlier].append(index)
    return _State(waiting, successors, [i for i, count in enumerate(waiting) if not count])


def _dispatch(tasks: Sequence[Task], machine: Machine, state: _State, now: float) -> list[_Run]:
    """Start what can start, earliest in program order first."""
    started: list[_Run] = []
    for index in state.ready:
        task = tasks[index]
        if not state.busy.isdisjoint(task.workers):
            continue
        if state.running and not _fits(task, machine, state):
            break
        run = _Run(index, task, task.solo_ns, 1.0, now + task.solo_ns)
        started.append(run)
        state.running.append(run)
        state.busy.update(task.workers)
        state.cores += task.cores
        state.memory += task.memory_bytes
    for run in started:
        state.ready.remove(run.index)
    return started


def _fits(task: Task, machine: Machine, state: _State) -> bool:
    if machine.cores is not None and state.cores + task.cores > machine.cores + 1e-9:
        return False
    limit = machine.memory_bytes
    return limit is None or state.memory + task.memory_bytes <= limit


def _set_rates(
    state: _State, rates: Rates, known: dict[tuple[str, ...], Sequence[float]], now: float
) -> None:
    """Let every running task go on at the rate that its company leaves it."""
    names = tuple([run.task.name for run in state.running])
    found = known.get(names)
    if found is None:
        found = known[names] = rates(names)
    for run, rate in zip(state.running, found, strict=True):
        if rate != run.rate:
            run.rate = rate
            run.end_ns = now + run.left_ns / rate


def _finished(state: _State, before: float, now: float) -> list[_Run]:
    """Take away what has ended; the others have made progress since `before`."""
    done: list[_Run] = []
    kept: list[_Run] = []
    for run in state.running:
        if run.end_ns <= now + _DONE_NS:
            done.append(run)
            state.busy.difference_update(run.task.workers)
            state.cores -= run.task.cores
            state.memory -= run.task.memory_bytes
        else:
            run.left_ns -= (now - before) * run.rate
            kept.append(run)
    state.running = kept
    if not kept:
        state.cores = 0.0  # sums of fractions leave dust
    return done
