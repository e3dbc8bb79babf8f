"""`rose_exec.replay`: train with a plan.

Paper: §4.2 "Execution", App. A.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sys
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rose_exec import code
from rose_exec.conductor import Conductor
from rose_exec.device_errors import advice, is_lost
from rose_exec.driver import Driver
from rose_exec.placement import Placement
from rose_exec.sanitizer.findings import Checks, Finding
from rose_opt.plan import Lane, Plan, PlanRefused, verify
from rose_trace import hooks
from rose_trace.component import Program, program

if TYPE_CHECKING:
    from rose_exec.guard import Guard
    from rose_exec.sanitizer.sanitizer import Sanitizer

logger = logging.getLogger(__name__)


class NativeOrderWarning(UserWarning):
    """A plan is not used; the program runs in its native order."""


class Replay:
    """A session that runs a program with a plan; a context manager.

    Attributes:
        plan: The plan.
        built: What ``build()`` returned, inside the block.
        native: Whether the program runs in its native order, and `reason` says why.
        reason: Why the native order runs; empty where the plan does.
    """

    def __init__(
        self,
        plan: Plan | str | Path,
        build: Callable[[], Any] | None = None,
        *,
        strict: bool = False,
        check: bool | Checks = False,
        conductor: Conductor | None = None,
    ) -> None:
        self.plan = plan if isinstance(plan, Plan) else Plan.load(plan)
        self.built: Any = None
        self.native = self.plan.kept_native
        self.reason = self.plan.reason if self.native else ""
        self._build = build
        self._strict = strict
        self._program = Program()
        self._sanitizer: Sanitizer | None = None
        if check:
            from rose_exec.private_copies import without_copies
            from rose_exec.sanitizer.sanitizer import Sanitizer

            self.plan = without_copies(self.plan)
            settings = Checks() if check is True else check
            conductor = self._sanitizer = Sanitizer(settings)
        self._conductor = conductor
        self._placement = Placement(self.plan, conductor)
        self._driver: Driver | None = None
        self._checked = False
        self._scope = contextlib.ExitStack()
        self._threads: int | None = None
        verify(self.plan, functools.partial(code.accesses, self.plan))

    def __enter__(self) -> Replay:
        if isinstance(hooks.active, Driver):
            raise RuntimeError(
                "rose_exec.replay: expected no other replay, got an open one. Close it first, or enter its paused()."
            )
        if not self.native:
            self._refusable(complete=False)
        self._scope.enter_context(program(self._program))
        try:
            if not self.native or self._conductor is not None:
                self._start()
            if self._build is not None:
                self.built = self._build()
                self._check_complete()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._driver is not None:
            hooks.install_executor(None)
            self._restore_threads()
        if error is not None and is_lost(error) and (told := advice(error, "The session")):
            error.add_note(told)
        self._placement.close()
        self._driver = None
        self._scope.close()
        if self._sanitizer is not None:
            self._sanitizer.report(raising=error is None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a session with ``check=True`` has found so far."""
        return () if self._sanitizer is None else self._sanitizer.findings

    @property
    def notes(self) -> dict[str, str]:
        """What a session with ``check=True`` could not look into or try, and why, by path."""
        return {} if self._sanitizer is None else self._sanitizer.notes

    def close(self) -> None:
        """End the session: the workers stop, the program's components are gone."""
        self.__exit__(None, None, None)

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Run another program natively inside the block, e.g. the other side of a comparison."""
        hooks.install_executor(None)
        self._restore_threads()
        try:
            yield
        finally:
            if self._driver is not None:
                hooks.install_executor(self._driver)

    def set_lanes(self, lanes: tuple[Lane, ...]) -> None:
        """Use other lanes or limits from the next iteration on; nothing is restarted.

        Args:
            lanes: Lanes of the same nodes.

        Raises:
            ValueError: If they are of other nodes: those would run as other tasks.
        """
        if {lane.path for lane in lanes} != {lane.path for lane in self.plan.lanes}:
            raise ValueError(
                f"Replay.set_lanes: expected lanes of {', '.join(lane.path for lane in self.plan.lanes) or 'no node'}, "
                f"got {', '.join(lane.path for lane in lanes) or 'none'}. Start another session."
            )
        self.plan = dataclasses.replace(self.plan, lanes=lanes)
        if self._driver is not None:
            self._driver.set_lanes(lanes)

    def check(self) -> None:
        """Compare the whole plan with the running code, once; falls back where it differs.

        Raises:
            PlanRefused: If the code differs and the session is strict.
        """
        if not self._checked:
            self._check_complete()

    def _check_complete(self) -> None:
        self._checked = True
        if self._driver is not None:
            self._driver.reread()
        if self.native:
            return
        self._refusable(complete=True)
        if self.native and self._driver is not None:
            self._driver.serial = True

    def _refusable(self, *, complete: bool) -> None:
        try:
            code.check(self.plan, complete=complete)
            verify(self.plan, functools.partial(code.accesses, self.plan))
        except PlanRefused as refusal:
            if self._strict:
                raise
            self.native, self.reason = True, str(refusal)
            warnings.warn(f"{refusal} Running in native order.", NativeOrderWarning, stacklevel=4)
            logger.warning("Running in native order: %s", refusal)

    def _start(self) -> None:
        torch = sys.modules.get("torch")
        self._threads = None if torch is None else torch.get_num_threads()
        if self.native:  # watched all the same, in program order
            self._placement.plan = dataclasses.replace(
                self.plan, transforms=(), workers=(), orders=(), kept_native=False
            )
        self._placement.start()
        if hooks.recorder() is not None:
            self._placement.record(hooks.recorder())
        self._scope.callback(hooks.watch_recorder(self._placement.record))
        self._driver = self._drive()
        self._driver.serial = self.native
        self._driver.before_iteration = self.check
        hooks.install_executor(self._driver)

    def _drive(self) -> Driver:
        return Driver(self._placement, self._threads)

    def _restore_threads(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and self._threads and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)


def replay(
    plan: Plan | str | Path,
    build: Callable[[], Any] | None = None,
    *,
    strict: bool = False,
    check: bool | Checks = False,
    guard: Guard | None = None,
) -> Replay:
    """Run a program with a plan.

    Components that the plan shards or moves must be built inside the block, or by `build`.

    Args:
        plan: The plan, or the path of its file.
        build: Builds the program; its result is the session's ``built``.
        strict: Raise where the plan does not fit the code, instead of running natively with a warning.
        check: Watch what every node really touches, one node at a time and all in this process; slow.
            What differs from the declarations is in the session's ``findings`` and, when it ends, a
            `SanitizerWarning`, or a `SanitizerError` with ``Checks(fail=True)``.
        guard: Drop the plan where it does not fit the program's shapes any more, or measures slower than
            the native order; see `rose_exec.guard`.

    Returns:
        A context manager; use it as ``with rose_exec.replay("plan.json"): iteration()``.

    Raises:
        PlanError: If the file is no plan of this version.
        PlanRefused: If the plan asks for an illegal overlap.
        ValueError: If a session that is checked is to be guarded, too.

    Paper: App. A.
    """
    if guard is not None:
        from rose_exec.guarded import GuardedReplay

        if check:
            raise ValueError(
                "rose_exec.replay: expected check or guard, got both. A checked session is slow by itself: check "
                "first, guard the training."
            )
        return GuardedReplay(plan, build, strict=strict, guard=guard)
    return Replay(plan, build, strict=strict, check=check)
