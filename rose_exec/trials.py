"""Live measurements for the search: local trials on copies, complete iterations that are training.

Paper: §4.3.3, "Evaluating alternatives", Alg. 1.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rose_exec.device_errors import is_out_of_memory
from rose_exec.handover import NotCarried
from rose_exec.live import LiveReplay, Saved
from rose_exec.native import UnannouncedAccess
from rose_exec.readiness import OrderViolation
from rose_exec.revival import StateLost
from rose_exec.stopwatch import Laps, TrialDone, alone, synchronize
from rose_exec.tasks import StructureChanged
from rose_exec.training import OtherResults, Training
from rose_exec.trial_copies import TrialCopies
from rose_exec.trial_log import What
from rose_exec.workers import WorkerDied
from rose_opt.measure import IterationMeasurement, TrialFailed, plan_key
from rose_opt.plan import Plan, PlanRefused
from rose_trace import generators

OURS = (
    StateLost,
    StructureChanged,
    UnannouncedAccess,
    OrderViolation,
    PlanRefused,
    WorkerDied,
    NotCarried,
    OtherResults,
    MemoryError,
    pickle.PicklingError,
)
"""What a plan may fail with where the program does not."""


Percentages = frozenset[tuple[str, int]]
"""Workers that are limited by MPS, with their percentages."""


def percentages(plan: Plan) -> Percentages:
    """The MPS percentages of a plan's workers, below 100."""
    return frozenset((spec.name, spec.percent) for spec in plan.workers if 0 < spec.percent < 100)


@dataclass(slots=True)
class LiveMeasurer:
    """Runs what the search asks for, beside and as part of training.

    Attributes:
        training: The training.
        build: Builds the program again and returns its iteration; ``None`` for no trial copies.
        runs_per_iteration: How often the body of a node runs in one iteration.
        warm_up: Runs of a body, or iterations of a plan, before one is timed.
        repeats: Runs of a body that a median is taken over.
        judge: What follows from a complete iteration of a plan, in words.
        exact: Whether plans must give the bits of the native program.
    """

    training: Training
    build: Callable[[], Callable[..., Any]] | None
    runs_per_iteration: Callable[[str], float]
    warm_up: int = 1
    repeats: int = 3
    judge: Callable[[Plan, int], str] = lambda plan, duration_ns: ""
    exact: bool = True
    _beside: set[str] = field(default_factory=set[str])
    _baseline: dict[str, int] = field(default_factory=dict[str, int])
    _whole: dict[str, int] = field(default_factory=dict[str, int])
    _repeated: set[Percentages] = field(default_factory=set[Percentages])

    def __post_init__(self) -> None:
        if self.build is None:
            self._no_copies("no build= was given")
        elif not self.training.restorable:
            self._no_copies(self.training.blocked("no iteration was watched"))

    # Complete iterations ------------------------------------------------------------------------

    def iteration(self, plan: Plan) -> IterationMeasurement:
        """Train with a plan: some iterations to warm up, one that counts; all are kept.

        Raises:
            TrialFailed: If the plan cannot be run; training is where it was before.
            Exception: What the program itself raises.
        """
        if plan.kept_native:
            return IterationMeasurement(self.timed(plan, "iteration", None))
        with self.session(plan) as session:
            return IterationMeasurement(self.timed(plan, "iteration", session))

    @contextlib.contextmanager
    def session(self, plan: Plan) -> Generator[LiveReplay]:
        """Train with a plan within a block, after some iterations to warm up.

        Percentages that no plan had before are not trained with before an iteration has shown that they
        change no result.

        Raises:
            TrialFailed: If the plan cannot be run; training is where it was before.
            Exception: What the program itself raises.
        """
        live = self.training.program
        assert live is not None
        try:
            live.check(plan)
            limits = percentages(plan)
            new = bool(limits) and limits not in self._repeated
            try:
                if new:
                    taken = self.training.advance_to_repeat()
                    self.training.log.iteration("warm-up", "native order", taken, "to be repeated")
                with LiveReplay(plan, live, strict=True) as session:
                    assert isinstance(session, LiveReplay)
                    if new:
                        taken = self.training.repeat(session, self.exact)
                        self.training.log.write("repeated", plan.label, taken, "same results")
                        self._repeated.add(limits)
                    for _ in range(self.warm_up - new):
                        self.timed(plan, "warm-up", session)
                    yield session
            except BaseException:
                self.training.recover()
                raise
        except Exception as error:
            if not isinstance(error, OURS) and not is_out_of_memory(error):
                raise
            self.training.log.write("iteration", plan.label, None, f"failed: {error}")
            raise TrialFailed(str(error)) from error

    def timed(self, plan: Plan, what: What, session: LiveReplay | None) -> int:
        """One iteration of training, told to the log [ns]."""
        training = self.training
        taken = training.advance(session=session)
        if what == "iteration":
            self._whole[plan_key(plan)] = taken
        decision = self.judge(plan, taken) if what == "iteration" else "not counted"
        training.log.iteration(what, plan.label, taken, decision)
        return taken

    # Local trials -------------------------------------------------------------------------------

    def local_ns(self, plan: Plan, comparison_graph: str) -> int:
        """Run the body of a node on trial copies; where there are none, by complete iterations.

        Raises:
            TrialFailed: If the plan cannot be run.
        """
        runs = self.runs_per_iteration(comparison_graph)
        if self.build is None:
            key = plan_key(plan)
            if key not in self._whole:  # the reference is the baseline
                self.iteration(plan)
            return round(self._whole[key] / runs)
        drawn = generators.capture()
        try:
            taken = self._local(plan, comparison_graph, runs)
        except Exception as error:
            self.training.log.write(
                "local", plan.label, None, f"failed: {error}", graph=comparison_graph
            )
            raise TrialFailed(str(error)) from error
        finally:
            generators.restore(drawn)
        self.training.log.write(
            "local",
            plan.label,
            taken,
            self._compared(comparison_graph, taken),
            graph=comparison_graph,
        )
        return taken

    def begin_round(self) -> None:
        """What was a baseline is none any more."""
        self._baseline.clear()
        self._beside.clear()

    def compare(self, graph: str, plans: Sequence[Plan]) -> None:
        """These plans will be compared on one body: all of them on it alone, or all by the iteration."""
        if "/" not in graph or not all(alone(plan, graph) for plan in plans):
            self._beside.add(graph)

    def _compared(self, graph: str, taken: int) -> str:
        if graph not in self._baseline:
            self._baseline[graph] = taken
            return "baseline"
        saved = self._baseline[graph] - taken
        return f"{'gains' if saved > 0 else 'does not gain'}: {saved / 1e6:+.3f} ms per run"

    def _local(self, plan: Plan, graph: str, runs: float) -> int:
        apart = graph not in self._beside
        laps = Laps(graph if apart else "", self.repeats, self.warm_up, self.training.clock)
        with TrialCopies(plan, laps, self._build, self._states()) as iteration:
            if apart:
                with contextlib.suppress(TrialDone):
                    iteration(*self.training.arguments(self.training.next_index))
                taken = laps.median_ns
                if taken is None:
                    raise PlanRefused(
                        f"{graph}: expected a node that runs in every iteration, got none in a trial."
                    )
                return taken
            # Something runs beside the body, or it is the iteration itself.
            taken = 0
            for k in range(self.warm_up + 1):
                synchronize()
                start = self.training.clock()
                iteration(*self.training.arguments(self.training.next_index + k))
                synchronize()
                taken = self.training.clock() - start
            return round(taken / runs)

    def _build(self) -> Callable[..., Any]:
        assert self.build is not None
        return self.build()

    def _states(self) -> Saved:
        """The present states of training, for copies."""
        saved = self.training.state()
        live = self.training.program
        assert saved is not None, "there are copies only where states can be saved"
        assert live is not None
        return {**live.constants, **saved}

    def _no_copies(self, why: str) -> None:
        self.build = None
        self.training.notes.append(
            f"Local trials: expected trial copies, got none: {why.rstrip('.')}. Alternatives are measured by complete "
            "iterations only."
        )
