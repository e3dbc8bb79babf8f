"""The training that goes on while plans are measured: every iteration of it is kept, or taken back whole.

Paper: §4.3.3, Alg. 1; §5.4.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rose_exec.live import LiveProgram, LiveReplay, Saved
from rose_exec.stopwatch import synchronize
from rose_exec.trial_log import TrialLog
from rose_trace import generators


@dataclass(slots=True)
class Training:
    """The training that goes on while the search measures.

    Attributes:
        iteration: Runs one iteration.
        arguments: Its arguments, by its number counted from 0.
        on_iteration: Told the number and the result of every iteration.
        log: Every trial.
        program: Components and what of them lives on; ``None`` before anything was watched.
        next_index: Number of the next iteration.
        clock: What tells the time [ns].
        notes: What could not be done, and why.
    """

    iteration: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    on_iteration: Callable[[int, Any], None]
    log: TrialLog
    program: LiveProgram | None = None
    next_index: int = 0
    clock: Callable[[], int] = time.perf_counter_ns
    notes: list[str] = field(default_factory=list[str])
    _saved: tuple[int, Saved] | None = None

    @property
    def restorable(self) -> bool:
        """Whether an iteration that does not end can be taken back."""
        return self.program is not None and not self.program.blocked

    def advance(
        self,
        run: Callable[[Callable[[], Any]], Any] = lambda call: call(),
        session: LiveReplay | None = None,
    ) -> int:
        """Train one iteration further; one that does not end is taken back, if that is possible.

        Args:
            run: Runs it, e.g. inside a probe.
            session: The session that it runs in.

        Returns:
            Its duration [ns].
        """
        index, drawn = self.next_index, generators.capture()
        saved = self.state(session)
        try:
            synchronize()
            start = self.clock()
            result = run(lambda: self.iteration(*self.arguments(index)))
            synchronize()
            taken = self.clock() - start
            after = None if session is None else self._save(session)  # its workers may not last
            self.next_index = index + 1
        except BaseException:
            if self.next_index == index:
                self._take_back(saved, session)
                generators.restore(drawn)
            raise
        self._saved = None if after is None else (self.next_index, after)
        self.on_iteration(index, result)
        return taken

    def state(self, session: LiveReplay | None = None) -> Saved | None:
        """The present state of training, saved once per iteration; ``None`` where that is impossible."""
        if self._saved is None or self._saved[0] != self.next_index:
            self._saved = None
            saved = self._save(session)
            self._saved = None if saved is None else (self.next_index, saved)
        return None if self._saved is None else self._saved[1]

    def recover(self) -> None:
        """A session has failed: put the program where training is."""
        if self.program is not None and self._saved is not None:
            at, saved = self._saved
            if at == self.next_index:
                self.program.restore(saved)

    def _save(self, session: LiveReplay | None) -> Saved | None:
        return self.program.save(session) if self.program is not None and self.restorable else None

    def _take_back(self, saved: Saved | None, session: LiveReplay | None) -> None:
        live = self.program
        if live is None or saved is None:
            why = live.blocked[0] if live is not None and live.blocked else "it was the first."
            self.notes.append(f"An iteration that was cut short is not taken back: {why}")
            return
        if session is not None:
            session.abandoned = True
            session.close()
        live.restore(saved)
        late = [name for name in live.members if live.boundary.carried(name) and name not in saved]
        if late:
            self.notes.append(
                f"An iteration that was cut short is only partly taken back: {', '.join(late)} live on, which was "
                "not known before it."
            )
