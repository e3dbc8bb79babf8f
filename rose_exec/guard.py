"""Guards of long training: a plan that no longer fits, or no longer pays, gives way to the native order.

Every so many planned iterations one runs in program order and is timed. A plan that is slower by more than
a margin, and by more than iterations scatter, is dropped; so is one whose nodes get other shapes than those
it was made for. Falling back keeps the components where they are and runs in program order from the next
iteration on, which changes no result.

Does not handle: shapes inside coroutines and generators, which run outside the plan.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from rose_exec.tasks import with_rows
from rose_exec.workers import Answer, Job
from rose_opt.plan import Plan
from rose_trace.pytree import Structure

logger = logging.getLogger(__name__)

Order = Literal["planned", "native"]


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """When a plan is compared, and when it is dropped.

    Attributes:
        every: Planned iterations between two that run natively, at least 1.
        every_suspect: The same while the plan looks slower, until that is settled.
        window: Iterations of each order that a median is taken over.
        min_samples: Iterations of each order before anything is decided; a plan that is slower only once
            is never dropped. At least 2.
        margin: How much slower than native a plan may be [fraction].
        warm_up: Iterations at the start that are not counted.
        shapes: Whether shapes are watched.
        clock: What tells the time [ns].
    """

    every: int = 50  # ours: 2 % of the gain at most
    every_suspect: int = 2  # ours
    window: int = 5  # ours
    min_samples: int = 3  # ours
    margin: float = 0.05  # ours
    warm_up: int = 1  # ours: workers load libraries in the first one
    shapes: bool = True
    clock: Callable[[], int] = time.perf_counter_ns

    def __post_init__(self) -> None:
        if self.every < 1 or self.every_suspect < 1 or self.margin < 0 or self.warm_up < 0:
            raise ValueError(
                f"GuardSettings: expected every, every_suspect >= 1 and margin, warm_up >= 0, got {self.every}, "
                f"{self.every_suspect}, {self.margin} and {self.warm_up}. Leave them at their defaults."
            )
        if not 2 <= self.min_samples <= self.window:
            raise ValueError(
                f"GuardSettings: expected 2 <= min_samples <= window, got {self.min_samples} and {self.window}. "
                "One slow iteration proves nothing."
            )


@dataclass(slots=True)
class Guard:
    """Watches one session.

    Attributes:
        settings: When it compares and drops.
        reason: Why the native order runs; empty while the plan does.
        planned_ns: Durations of the last planned iterations [ns].
        native_ns: Durations of the last native ones [ns].
    """

    settings: GuardSettings = field(default_factory=GuardSettings)
    reason: str = ""
    planned_ns: deque[int] = field(default_factory=deque[int])
    native_ns: deque[int] = field(default_factory=deque[int])
    _since: int = 0
    _begun: int = 0
    _suspect: bool = False

    def __post_init__(self) -> None:
        self.planned_ns = deque(self.planned_ns, self.settings.window)
        self.native_ns = deque(self.native_ns, self.settings.window)

    def next_order(self) -> Order:
        """How the next iteration runs."""
        if self.reason:
            return "native"
        every = self.settings.every_suspect if self._suspect else self.settings.every
        return "native" if self._since >= every else "planned"

    def ran(self, order: Order, duration_ns: int) -> None:
        """An iteration has ended; decides about those that follow.

        Args:
            order: How it ran.
            duration_ns: How long it took [ns].
        """
        if self.reason:
            return
        self._since = 0 if order == "native" else self._since + 1
        self._begun += 1
        if self._begun <= self.settings.warm_up:
            return
        (self.native_ns if order == "native" else self.planned_ns).append(duration_ns)
        if order == "native":
            self._compare()

    def drop(self, reason: str) -> None:
        """Run natively from the next iteration on; said once."""
        if not self.reason:
            self.reason = reason

    def _compare(self) -> None:
        enough = min(len(self.native_ns), len(self.planned_ns)) >= self.settings.min_samples
        if not self.planned_ns:
            return
        planned, native = (statistics.median(x) for x in (self.planned_ns, self.native_ns))
        scatter = max(_scatter(self.planned_ns), _scatter(self.native_ns))
        slower = planned - native > max(self.settings.margin * native, scatter)
        self._suspect = slower
        if slower and enough:
            self.drop(
                f"The plan is slower than the native order: {planned / 1e6:.1f} ms per iteration against "
                f"{native / 1e6:.1f} (medians of the last {len(self.planned_ns)} and {len(self.native_ns)}, "
                f"scatter {scatter / 1e6:.1f} ms, margin {self.settings.margin:.0%}). Plan again."
            )


@dataclass(slots=True)
class Shapes:
    """What goes into nodes and comes out of them, beside what was recorded and seen before.

    A node's inputs are compared with those of its first iteration, each kind of branch by itself, unless
    they varied there; its result with the recorded one, unless that varied.

    Attributes:
        plan: The plan.
        drop: Told the first difference.
    """

    plan: Plan
    drop: Callable[[str], None]
    _results: dict[str, Structure] = field(default_factory=dict[str, Structure])
    _inputs: dict[tuple[str, int], Structure | None] = field(
        default_factory=dict[tuple[str, int], "Structure | None"]
    )
    _begun: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    _iteration: int = 0
    _watched: weakref.WeakSet[Any] = field(default_factory=lambda: weakref.WeakSet[Any]())
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._results = {
            node.path: Structure.from_json(node.structure)
            for node in self.plan.nodes
            if node.structure
        }

    def next_iteration(self) -> None:
        """An iteration begins."""
        self._iteration += 1

    def watch(self, worker: Any) -> None:
        """Look at every job of a worker, from its first time here on."""
        if worker in self._watched:
            return
        self._watched.add(worker)
        run: Callable[[Job], Future[Answer]] = worker.run

        def watched(job: Job) -> Future[Answer]:
            if job.attribute:
                return run(job)
            self.given(job)
            future = run(job)
            future.add_done_callback(lambda done: self._returned(job, done))
            return future

        worker.run = watched

    def given(self, job: Job) -> None:
        """Compare the inputs of a job."""
        key = job.path, -1 if job.frame.rows is None else len(job.frame.rows)
        with self._lock:
            first = self._begun.setdefault(key, self._iteration)
            known = self._inputs.setdefault(key, job.arguments)
            if known is None or known == job.arguments:
                return
            if first == self._iteration:
                self._inputs[key] = None  # it varies by itself
                return
        self._drifted(job.path, "inputs", known, job.arguments)

    def _returned(self, job: Job, done: Future[Answer]) -> None:
        expected = self._results.get(job.path)
        answer = None if done.cancelled() or done.exception() else done.result()
        if expected is None or answer is None:
            return
        if job.frame.rows is not None:
            batches = frozenset(self.plan.rows.values())
            expected = with_rows(expected, batches, len(job.frame.rows))
        if expected != answer.structure:
            self._drifted(job.path, "a result", expected, answer.structure)

    def _drifted(self, path: str, what: str, expected: Structure, found: Structure) -> None:
        self.drop(
            f"{path}: expected {what} {_shapes(expected)}, got {_shapes(found)}. The program has other shapes "
            "than the plan was made for: record and plan again."
        )


def tell(reason: str) -> None:
    """Say that the native order runs from now on."""
    from rose_exec.replay import NativeOrderWarning

    warnings.warn(f"{reason} Running in native order.", NativeOrderWarning, stacklevel=2)
    logger.warning("Running in native order: %s", reason)


def _scatter(durations_ns: deque[int]) -> float:
    """Median distance from the median [ns]."""
    middle = statistics.median(durations_ns)
    return statistics.median(abs(x - middle) for x in durations_ns)


def _shapes(structure: Structure) -> str:
    leaves = [f"{leaf.dtype or leaf.type}{list(leaf.shape or ())}" for leaf in structure.leaves()]
    shown = ", ".join(leaves[:6]) + (", ..." if len(leaves) > 6 else "")
    return f"({shown})"
