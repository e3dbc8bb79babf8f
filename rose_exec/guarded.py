"""A replay session with guards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from rose_exec.driver import Driver
from rose_exec.guard import Guard, Shapes, tell
from rose_exec.native import running
from rose_exec.placement import Placement
from rose_exec.replay import Replay
from rose_exec.scope import scope
from rose_opt.plan import Plan
from rose_trace.node import ExecutionNode


class GuardedDriver(Driver):
    """A driver that times its iterations, and runs those in program order that its guard asks for.

    Args:
        guard: Decides.
        shapes: Watches shapes; ``None`` to leave them.
        fell_back: Told why the native order runs from now on.
        placement: Workers and homes of a verified plan.
        native_threads: Intra-op threads of the program, ``None`` where torch is not loaded.
    """

    def __init__(
        self,
        guard: Guard,
        shapes: Shapes | None,
        fell_back: Callable[[str], None],
        placement: Placement,
        native_threads: int | None,
    ) -> None:
        super().__init__(placement, native_threads)
        self._guard = guard
        self._shapes = shapes
        self._fell_back = fell_back

    def run_iteration(
        self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One RL iteration, planned or in program order."""
        if running.get() is not None or scope.get() is not None or self.serial:
            return super().run_iteration(node, args, kwargs)
        order = self._guard.next_order()
        if self._shapes is not None:
            self._shapes.next_iteration()
            for worker in self._placement.workers.values():  # one that ended was replaced
                self._shapes.watch(worker)
        refused = False
        check = self.before_iteration

        def checked() -> None:
            nonlocal refused
            self.serial = False
            check()
            refused, self.serial = self.serial, self.serial or order == "native"

        self.before_iteration = checked
        clock = self._guard.settings.clock
        start = clock()
        try:
            result = super().run_iteration(node, args, kwargs)
        finally:
            self.before_iteration = check
        self._guard.ran(order, clock() - start)  # a failed iteration stays in program order
        self.serial = refused or bool(self._guard.reason)
        if self._guard.reason:
            self._fell_back(self._guard.reason)
        return result


class GuardedReplay(Replay):
    """A session whose plan gives way where it does not pay; see `rose_exec.guard`.

    Attributes:
        guard: What it has measured; ``None`` for a session without guards.
    """

    def __init__(
        self,
        plan: Plan | str | Path,
        build: Callable[[], Any] | None = None,
        *,
        strict: bool = False,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(plan, build, strict=strict)
        self.guard = guard

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def _drive(self) -> Driver:
        if self.guard is None:
            return super()._drive()
        placement = self._placement
        watched = self.guard.settings.shapes
        shapes = Shapes(placement.plan, self.guard.drop) if watched else None
        return GuardedDriver(self.guard, shapes, self._fall_back, placement, self._threads)

    def _fall_back(self, reason: str) -> None:
        self.native, self.reason = True, reason
        tell(reason)
