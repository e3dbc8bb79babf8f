"""Times the body of one node inside an iteration that is thrown away: a local trial.

The iteration runs from its beginning, so that the body gets what it gets in training; once the body has
run often enough, the rest is not run at all.

Paper: §4.3.3, "Evaluating alternatives" (comparison graph A_v).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from rose_exec.driver import Driver
from rose_exec.loop_call import LoopCall
from rose_exec.native import running
from rose_exec.placement import Placement
from rose_exec.scope import Scope, scope
from rose_opt.plan import Plan, inside
from rose_trace import frames
from rose_trace.component import Instance, LocalComponents
from rose_trace.frames import Frame
from rose_trace.loop import LoopNode
from rose_trace.node import ExecutionNode


class TrialDone(BaseException):
    """Enough was measured; the iteration ends here. No exception of the program, and nobody handles it."""


@dataclass(slots=True)
class Laps:
    """Durations of one body.

    Attributes:
        graph: Path of the node whose body is timed, A_v.
        wanted: Runs to time.
        warm_up: Runs before those.
        clock: What tells the time [ns].
        taken_ns: Durations so far, those of the warm-up first [ns].
    """

    graph: str
    wanted: int
    warm_up: int
    clock: Callable[[], int]
    taken_ns: list[int] = field(default_factory=list[int])

    def timed(self, drain: Callable[[], None]) -> Lap:
        """Time a block, from the end of everything before it to the end of everything in it.

        Args:
            drain: Waits until everything that was started has completed.

        Returns:
            A context manager; it raises `TrialDone` once enough was measured.
        """
        return Lap(self, drain)

    @property
    def median_ns(self) -> int | None:
        """Median duration without the warm-up; ``None`` if the body did not run."""
        counted = self.taken_ns[min(self.warm_up, max(0, len(self.taken_ns) - 1)) :]
        return round(statistics.median(counted)) if counted else None


class Lap:
    """One run of the body."""

    def __init__(self, laps: Laps, drain: Callable[[], None]) -> None:
        self._laps = laps
        self._drain = drain
        self._start = 0
        self.void = False
        """Set inside the block where the body did not run after all."""

    def __enter__(self) -> Lap:
        self._drain()
        synchronize()
        self._start = self._laps.clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None or self.void:
            return
        self._drain()
        synchronize()
        laps = self._laps
        laps.taken_ns.append(laps.clock() - self._start)
        if len(laps.taken_ns) >= laps.warm_up + laps.wanted:
            raise TrialDone


def synchronize() -> None:
    """Wait for the devices of this process, where it uses any."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def alone(plan: Plan, graph: str) -> bool:
    """Whether a plan runs the bodies of a node one after the other, with nothing beside them."""
    moved = [*plan.splits(), *plan.chains(), *(path for pair in plan.rewires() for path in pair)]
    return not any(inside(graph, path) for path in moved)


class StopwatchDriver(Driver):
    """A driver that times one body.

    Args:
        laps: What is timed.
        placement: Workers and homes of a verified plan.
        native_threads: Intra-op threads of the program, ``None`` where torch is not loaded.
    """

    def __init__(self, laps: Laps, placement: Placement, native_threads: int | None) -> None:
        super().__init__(placement, native_threads)
        self._laps = laps

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of a node, timed where it is the one."""
        here = scope.get()
        if running.get() is None and here is not None:
            path = here.frame.child_path(node.full_name(node.instance_of(args)))
            if path == self._laps.graph:
                with self._laps.timed(self._tasks.wait_all):
                    return super().invoke(node, args, kwargs)
        return super().invoke(node, args, kwargs)

    def _bodies(self, here: Scope, call: LoopCall) -> Iterator[tuple[Any, Any]]:
        bodies = super()._bodies(here, call)
        if call.path != self._laps.graph:
            yield from bodies
            return
        items = iter(bodies)
        while True:
            with self._laps.timed(self._tasks.wait_all) as lap:
                done = next(items, None)
                lap.void = done is None
            if done is None:
                return
            yield done


class NativeStopwatch(LocalComponents):
    """Resolver that runs everything natively and times one body.

    Args:
        laps: What is timed.

    Attributes:
        components: What is built, by name.
    """

    def __init__(self, laps: Laps) -> None:
        self._laps = laps
        self.components: dict[str, Any] = {}

    def construct(
        self, instance: Instance, component: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Construct a component natively."""
        super().construct(instance, component, args, kwargs)
        self.components[instance.name] = component

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run natively."""
        frame = self._frame(node.full_name(node.instance_of(args)))
        with frames.entered(frame):
            if frame.path != self._laps.graph:
                return node.entry(*args, **kwargs)
            with self._laps.timed(_nothing):
                return node.entry(*args, **kwargs)

    def run_iteration(
        self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run natively."""
        with frames.entered(self._frame(node.full_name(None))):
            return node.entry(*args, **kwargs)

    def run_loop(
        self, loop: LoopNode[Any, Any, Any], carry: Any, items: Iterable[Any]
    ) -> tuple[Any, Any]:
        """Run the loop natively; an item is fetched inside the body's time, as the driver does it."""
        frame = self._frame(loop.full_name(loop.instance))
        outputs: list[Any] = []
        iterator = iter(items)
        with frames.entered(frame):
            while True:
                if frame.path != self._laps.graph:
                    item = next(iterator, _END)
                    if item is _END:
                        return carry, outputs
                    carry, output = loop.body(carry, item)
                else:
                    with self._laps.timed(_nothing) as lap:
                        item = next(iterator, _END)
                        lap.void = item is _END
                        if item is _END:
                            return carry, outputs
                        carry, output = loop.body(carry, item)
                outputs.append(output)

    def iterate(self, name: str, items: Iterable[Any]) -> Iterable[Any]:
        """Run the loop natively."""
        with frames.entered(self._frame(name)):
            yield from items

    def _frame(self, name: str) -> Frame:
        caller = frames.current.get() or Frame()
        return replace(caller, path=caller.child_path(name), calls={})


_END: Any = object()


def _nothing() -> None:
    """Native code waits by itself."""
