"""Trial copies: the program built once more, in the state that training is in, to run a plan on and throw away.

Paper: §4.3.3, "Evaluating alternatives".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rose_exec import handover
from rose_exec.driver import Driver
from rose_exec.live import Saved, load_copies
from rose_exec.replay import Replay
from rose_exec.stopwatch import Laps, NativeStopwatch, StopwatchDriver
from rose_opt.plan import Plan, PlanRefused
from rose_trace import hooks
from rose_trace.component import Program, program


class TrialCopies(Replay):
    """A separately built program under a plan, in a given state; nothing of it is kept.

    Args:
        plan: The plan.
        laps: What is timed.
        make: Builds the program.
        saved: States of its components.
    """

    def __init__(
        self, plan: Plan, laps: Laps, make: Callable[[], Callable[..., Any]], saved: Saved
    ) -> None:
        super().__init__(plan, self._make, strict=True)
        self._laps = laps
        self._made = make
        self._saved = saved
        self._stopwatch: NativeStopwatch | None = None

    def __enter__(self) -> Any:
        super().__enter__()
        return self.built

    def __exit__(self, *error: Any) -> None:
        with handover.uninterrupted():
            if self._stopwatch is not None:
                hooks.install_executor(None)
            super().__exit__(*error)

    def _drive(self) -> Driver:
        return StopwatchDriver(self._laps, self._placement, self._threads)

    def _make(self) -> Callable[..., Any]:
        own = Program()
        if self.native:
            self._stopwatch = NativeStopwatch(self._laps)
            hooks.install_executor(self._stopwatch)
        with program(own):
            made = self._made()
        self._same(own)
        if self._stopwatch is not None:
            for name, data in self._saved.items():
                handover.load(self._stopwatch.components[name], data)
        else:
            homes = {name: self._placement.home_of(item) for name, item in own.instances.items()}
            known = {name: home for name, home in homes.items() if home is not None}
            load_copies(self._placement, known, self._saved)
        return made

    def _same(self, own: Program) -> None:
        """Refuse a factory that builds another program.

        Raises:
            PlanRefused: With the first component that is missing.
        """
        for name in self._saved:
            if name not in own.instances:
                raise PlanRefused(
                    f"build: expected component {name}, got {', '.join(own.instances) or 'none'}. Build the program "
                    "that is trained, in the same order."
                )
