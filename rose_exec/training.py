"""The training that goes on while plans are measured: every iteration of it is kept, or taken back whole.

Paper: §4.3.3, Alg. 1; §5.4.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rose_exec.live import LiveProgram, LiveReplay, Saved
from rose_exec.outcome import Outcome
from rose_exec.stopwatch import synchronize
from rose_exec.trial_log import TrialLog
from rose_opt.plan import PlanRefused
from rose_trace import generators

HINT = (
    "Libraries choose kernels by the SMs that a process sees. Limit a lane instead (docs/lanes.md); if the program "
    'does not repeat itself bit for bit natively either, tune with bits="any".'
)


class OtherResults(RuntimeError):
    """A plan computes something else than the native program."""


@dataclass(frozen=True, slots=True)
class Trained:
    """An iteration that a session is to repeat.

    Attributes:
        index: Its number.
        outcome: What it has come to.
        drawn: Process-wide generators after it.
    """

    index: int
    outcome: Outcome
    drawn: generators.State


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
    _repeated: Trained | None = None

    @property
    def restorable(self) -> bool:
        """Whether an iteration that does not end can be taken back."""
        return self.program is not None and not self.program.blocked

    def blocked(self, otherwise: str) -> str:
        """Why no state can be saved; `otherwise` where no component is the reason."""
        found = () if self.program is None else self.program.blocked
        return found[0] if found else otherwise

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
            result, taken = self._timed(lambda: run(lambda: self._call(index)))
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
        if self._repeated is not None:
            generators.restore(self._repeated.drawn)
            self._repeated = None

    def advance_to_repeat(self) -> int:
        """Train one iteration natively, and put the program back to before it: `repeat` comes next.

        Returns:
            Its duration [ns].

        Raises:
            PlanRefused: If the program cannot be put back.
        """
        live, before, drawn = self.program, self.state(), generators.capture()
        if live is None or before is None:
            why = self.blocked("nothing was watched yet")
            raise PlanRefused(
                f"An iteration that is to be repeated: expected states that can be saved, got: {why}"
            )
        results: list[Any] = []

        def run(call: Callable[[], Any]) -> Any:
            results.append(call())
            return results[0]

        taken = self.advance(run)
        after = self.state()
        assert after is not None
        self._repeated = Trained(
            self.next_index - 1, Outcome.of(results[0], after), generators.capture()
        )
        live.restore(before)
        generators.restore(drawn)
        return taken

    def repeat(self, session: LiveReplay, exact: bool) -> int:
        """Run the iteration of `advance_to_repeat` again in a session: after it, training is where it was.

        Args:
            session: The session; it took the program over from before that iteration.
            exact: Whether every bit counts.

        Returns:
            Its duration [ns].

        Raises:
            OtherResults: If it comes to something else.
        """
        first, live = self._repeated, self.program
        assert first is not None
        assert live is not None
        result, taken = self._timed(lambda: self._call(first.index))
        difference = first.outcome.difference(Outcome.of(result, live.save(session)), exact)
        drawn = generators.changed(first.drawn, generators.capture())
        if difference or drawn:
            told = difference or f"other draws from {', '.join(drawn)}"
            raise OtherResults(
                f"Iteration {first.index} with workers at their percentages: expected what it comes to "
                f"natively, got {told}. {HINT}"
            )
        self._repeated = None
        return taken

    def _call(self, index: int) -> Any:
        return self.iteration(*self.arguments(index))

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """What a call returns, and its duration with its device work [ns]."""
        synchronize()
        start = self.clock()
        result = call()
        synchronize()
        return result, self.clock() - start

    def _save(self, session: LiveReplay | None) -> Saved | None:
        return self.program.save(session) if self.program is not None and self.restorable else None

    def _take_back(self, saved: Saved | None, session: LiveReplay | None) -> None:
        live = self.program
        if live is None or saved is None:
            why = self.blocked("it was the first.")
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
