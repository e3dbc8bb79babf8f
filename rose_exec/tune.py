"""`rose_exec.tune`: find the plan of a running training by measuring it, without losing an iteration.

Algorithm 1 runs live: alternatives on trial copies, complete iterations as training whose results are kept.
Algorithm 2 follows for the lanes of opened composites, and where a quota backend is handed in.

Paper: §4.3.3, Alg. 1; §4.4, Alg. 2; §5.4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from rose_exec.guard import Guard
from rose_exec.lane_trials import device_levels
from rose_exec.live import LiveProgram, LiveReplay
from rose_exec.training import Training
from rose_exec.trial_log import TrialLog
from rose_exec.tuning_progress import progress_shown
from rose_exec.tuning_run import TuningRun
from rose_opt.measure import (
    GraphSearch,
    GraphSearchResult,
    GraphSearchSettings,
    IterationMeasurer,
    NoiseAware,
    QuotaLevel,
    QuotaMeasurer,
    QuotaSearchResult,
)
from rose_opt.plan import Plan
from rose_trace import hooks


class Offers(GraphSearch, Protocol):
    """What may be done to the recorded program.

    One that has a method `opened(plan)` gives the same plan with lanes, or ``None``; it is tried last.
    """

    def native(self) -> Plan:
        """The plan that keeps the native order: where the search begins."""
        ...


QuotaBackend = Callable[
    [Plan, IterationMeasurer], "tuple[QuotaMeasurer, Sequence[QuotaLevel]] | None"
]
"""Of a plan, the pair that a quota may help and its levels; ``None`` where there is none.

The measurer trains one iteration with a plan: that is how a backend runs complete ones.
"""


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """Budget of a tuning run.

    Attributes:
        search: Targets, validations and threshold of Algorithm 1; its rounds are `tune`'s.
        max_alternatives: Alternatives tried per target, L.
        traced: Native iterations that are recorded at the beginning, at least 1.
        probed: Whether one more is probed: rows, shards and thread counts beside the real inputs. Without
            it no split counts as exact.
        warm_up: Runs of a body, or iterations of a plan, before one is timed.
        repeats: Runs of a body that a median is taken over, at least 1.
        bits: ``exact`` for plans whose results are those of the native program bit for bit; ``any``
            accepts results that are equal up to floating-point reassociation.
        cores: CPU cores the program may use at once [cores]; ``None`` for those of this machine.
        activity: Source of activity for the recording.
        levels: Gives the sizes that a lane may be limited to; those of the GPU by default.
        noise: How Algorithm 2 compares levels on a machine whose speed drifts; by single runs by default.
        clock: What tells the time [ns].
    """

    search: GraphSearchSettings = field(default_factory=GraphSearchSettings)
    max_alternatives: int = 4  # ours: the paper gives no L
    traced: int = 2  # ours: states that a second iteration inherits show only there
    probed: bool = True
    warm_up: int = 1  # ours
    repeats: int = 3  # ours
    bits: Literal["exact", "any"] = "exact"
    cores: float | None = None
    activity: str = "auto"
    levels: Callable[[], Sequence[QuotaLevel]] = device_levels
    noise: NoiseAware | None = None
    clock: Callable[[], int] = time.perf_counter_ns

    def __post_init__(self) -> None:
        if self.traced < 1 or self.repeats < 1 or self.warm_up < 0 or self.max_alternatives < 1:
            raise ValueError(
                "TuneSettings: expected traced, repeats, max_alternatives >= 1 and warm_up >= 0, got "
                f"{self.traced}, {self.repeats}, {self.max_alternatives} and {self.warm_up}. "
                "Leave them at their defaults."
            )


@dataclass(slots=True)
class Tuning:
    """What a tuning run found, and where training is.

    Attributes:
        plan: The best plan that was measured, with its evidence; ``None`` before one was made.
        search: What Algorithm 1 tried; ``None`` if it did not come to its end.
        quota: What Algorithm 2 tried; ``None`` where nothing could be limited.
        opened: The plan with lanes that it limited, kept or not; ``None`` where none was tried.
        iterations: Iterations trained so far: the number of the next one.
        interrupted: Whether it was ended by Ctrl-C.
        total_ns: Wall-clock time of the whole [ns].
        retained_ns: Part of it that was training [ns].
        notes: What could not be done, and why.
        program: Its components, and what of them lives on between iterations.
    """

    plan: Plan | None = None
    search: GraphSearchResult | None = None
    quota: QuotaSearchResult | None = None
    opened: Plan | None = None
    iterations: int = 0
    interrupted: bool = False
    total_ns: int = 0
    retained_ns: int = 0
    notes: tuple[str, ...] = ()
    program: LiveProgram | None = None

    @property
    def net_ns(self) -> int:
        """What tuning cost beyond the training it did [ns]."""
        return self.total_ns - self.retained_ns

    def replay(self, *, guard: Guard | None = None) -> LiveReplay:
        """Go on training with the plan, in a with block; the components return at its end.

        Args:
            guard: Watches the session.

        Returns:
            The session.

        Raises:
            RuntimeError: If no plan was made.
        """
        if self.plan is None or self.program is None:
            raise RuntimeError(
                "Tuning.replay: expected a plan, got a run that was interrupted before one was made. Train "
                "natively, or tune again."
            )
        return LiveReplay(self.plan, self.program, guard=guard)

    def summary(self) -> str:
        """The whole in a few lines."""
        plan = "none" if self.plan is None else self.plan.reason
        lines = [
            f"plan      {plan}",
            f"tuning    {self.total_ns * 1e-9:.1f} s, {self.retained_ns * 1e-9:.1f} s of it training "
            f"({self.iterations} iterations), net {self.net_ns * 1e-9:.1f} s",
            *(f"note      {note}" for note in self.notes),
        ]
        return "\n".join(["interrupted", *lines] if self.interrupted else lines)


def tune(
    iteration: Callable[..., Any],
    build: Callable[[], Callable[..., Any]] | None = None,
    *,
    folder: str | Path = "out/tuning",
    rounds: int = 2,
    arguments: Callable[[int], tuple[Any, ...]] = lambda index: (),
    on_iteration: Callable[[int, Any], None] = lambda index, result: None,
    search: Callable[[Path], Offers] | None = None,
    quota: QuotaBackend | None = None,
    settings: TuneSettings | None = None,
) -> Tuning:
    """Train, and find out meanwhile how to train faster.

    Every complete iteration is training: as many native iterations give the same result, bit for bit.
    Ctrl-C ends the tuning, not the training: an iteration that it cuts short is taken back, and what is
    known so far is returned.

    Args:
        iteration: The training's iteration, a function decorated with ``rose.iteration`` or one that
            calls it; its components exist already.
        build: Builds the same program again, from the same configuration, and returns its iteration:
            local trials run on such copies. Without it complete iterations decide alone.
        folder: Where ``trace.parquet``, ``trials.jsonl`` and ``plan.json`` go.
        rounds: Rounds of Algorithm 1, R; 0 only records and plans.
        arguments: Arguments of an iteration, by its number counted from 0.
        on_iteration: Told the number and the result of every iteration of the training.
        search: Makes the search of a recorded trace; by default the planner's.
        quota: Finds another pair that a quota may help, for Algorithm 2; lanes are tried without it.
        settings: Budget.

    Returns:
        The plan with its evidence, and where training is.

    Raises:
        RuntimeError: If a recording or a replay is open.
        TraceError: If the trace cannot be written.
        FactsError: If the trace tells too little to plan from.

    Paper: §4.3.3, Alg. 1; §5.4.
    """
    if hooks.active is not None:
        raise RuntimeError(
            "rose_exec.tune: expected a program that is neither recorded nor replayed, got an open block. "
            "Call tune outside it."
        )
    settings = settings or TuneSettings()
    Path(folder).mkdir(parents=True, exist_ok=True)
    with progress_shown(_expected(settings, rounds)) as told:
        log = TrialLog(Path(folder) / "trials.jsonl", told, settings.clock)
        training = Training(iteration, arguments, on_iteration, log, clock=settings.clock)
        found = Tuning()
        run = TuningRun(training, build, Path(folder), rounds, search, quota, settings, found)
        run.whole()
        return found


def _expected(settings: TuneSettings, rounds: int) -> int:
    """Most steps that a progress bar counts."""
    search = settings.search
    local = search.max_targets * (settings.max_alternatives + 1)
    complete = search.max_validations * (settings.warm_up + 1)
    return settings.traced + int(settings.probed) + 1 + rounds * (local + complete)
