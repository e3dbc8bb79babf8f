"""One tuning run: it traces a training, searches, and puts the evidence into the plan.

Paper: §4.3.3, Alg. 1; §4.4, Alg. 2; §5.4.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rose_exec.boundary import Boundary
from rose_exec.lane_trials import measure_opened
from rose_exec.live import LiveProgram
from rose_exec.probe import probe
from rose_exec.quota.quota import QuotaError
from rose_exec.training import Training
from rose_exec.trial_log import TrialLog
from rose_exec.trials import LiveMeasurer
from rose_opt.measure import (
    Alternative,
    AlternativeTrial,
    Composed,
    GraphSearchResult,
    IterationMeasurement,
    IterationMeasurer,
    QuotaLevel,
    QuotaSearchResult,
    TrialFailed,
    search_graph,
    search_quota,
)
from rose_opt.plan import Plan
from rose_trace import hooks
from rose_trace.record import record

if TYPE_CHECKING:
    from rose_exec.tune import Offers, QuotaBackend, TuneSettings, Tuning

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TuningRun:
    """One run of `rose_exec.tune`.

    Attributes:
        training: The training.
        build: Builds the program again; ``None`` for no trial copies.
        folder: Where trace and plan go.
        rounds: Rounds of Algorithm 1, R.
        make_search: Makes the search of a recorded trace; ``None`` for the planner's.
        quota: Finds another pair that a quota may help.
        settings: Budget.
        found: What is found, filled in as it is.
        measured: Duration of complete iterations by plan [ns].
    """

    training: Training
    build: Callable[[], Callable[..., Any]] | None
    folder: Path
    rounds: int
    make_search: Callable[[Path], Offers] | None
    quota: QuotaBackend | None
    settings: TuneSettings
    found: Tuning
    measured: dict[str, int] = field(default_factory=dict[str, int])

    def whole(self) -> None:
        """Run it to its end, or to Ctrl-C."""
        found, log = self.found, self.training.log
        try:
            self._search(self._trace())
        except KeyboardInterrupt:
            found.interrupted = True
            logger.warning("rose_exec.tune: interrupted; training goes on from the last iteration.")
        finally:
            log.close()
            found.iterations = self.training.next_index
            found.total_ns, found.retained_ns = log.total_ns, log.retained_ns
            found.notes = tuple(dict.fromkeys(self.training.notes))
        if found.plan is not None:
            found.plan = self._with_evidence(found.plan)
            found.plan.save(self.folder / "plan.json")
        log.write(
            "result",
            "" if found.plan is None else found.plan.label,
            None,
            "interrupted" if found.interrupted else "done",
            total_s=found.total_ns * 1e-9,
            retained_s=found.retained_ns * 1e-9,
            net_s=found.net_ns * 1e-9,
            iterations=found.iterations,
            notes=list(found.notes),
        )

    def _trace(self) -> Path:
        """Record native iterations, and probe one more; all are training.

        Raises:
            RuntimeError: If there is no iteration in it.
        """
        trace, training = self.folder / "trace.parquet", self.training
        boundary = Boundary()
        hooks.install_executor(boundary)
        try:
            with record(trace, activity=self.settings.activity):
                for _ in range(self.settings.traced):
                    taken = training.advance()
                    training.log.iteration("traced", "native order", taken, "recorded")
                    # The next one can be taken back.
                    training.program = LiveProgram(boundary, training.program)
        finally:
            hooks.install_executor(None)
        if not boundary.iterations:
            raise RuntimeError(
                "rose_exec.tune: expected an iteration decorated with rose.iteration, got none. Decorate the body "
                "of the training loop."
            )
        self.found.program = training.program
        if self.settings.probed and self.make_search is None:
            taken = training.advance(lambda call: probe(trace, call))
            training.log.iteration("probed", "native order", taken, "probed")
        return trace

    def _search(self, trace: Path) -> None:
        offers = self._offers(trace)
        self.found.plan = offers.native()
        measurer = LiveMeasurer(
            self.training,
            self.build,
            offers.runs_per_iteration,
            self.settings.warm_up,
            self.settings.repeats,
            exact=self.settings.bits == "exact",
        )
        if self.rounds < 1:
            return
        watched = _Rounds(offers, measurer, self.training.log, self.settings.search.min_gain)
        measurer.judge = watched.judge
        wanted = dataclasses.replace(self.settings.search, max_rounds=self.rounds)

        def progress(plan: Plan, _: str) -> None:
            self.found.plan = plan

        try:
            result = search_graph(offers.native(), watched, measurer, wanted, progress)
        finally:
            self.measured = watched.measured
        self.found.search, self.found.plan = result, result.plan
        for item in result.rounds:
            self.training.log.write(
                "round", result.plan.label, None, item.reason, number=item.number
            )
        self._search_lanes(offers, result, measurer)
        self._search_quota(result, measurer)

    def _search_lanes(
        self, offers: Offers, result: GraphSearchResult, measurer: LiveMeasurer
    ) -> None:
        """Open composites whose phases may overlap on a device; kept where it is measured faster."""
        offer: Callable[[Plan], Plan | None] | None = getattr(offers, "opened", None)
        opened = None if offer is None else offer(result.plan)
        if opened is None:
            return
        try:
            found = measure_opened(
                measurer,
                opened,
                self.settings.levels(),
                result.iteration_ns,
                self.settings.noise,
            )
        except (TrialFailed, QuotaError) as error:
            self.training.notes.append(f"Lanes: not opened: {error}")
            return
        self.found.quota, self.found.opened = found.search, found.plan
        self._log_quota(opened, found.search)
        if found.iteration_ns < (1 - self.settings.search.min_gain) * result.iteration_ns:
            self.found.plan = found.plan
            self.measured[found.plan.label] = found.iteration_ns

    def _search_quota(self, result: GraphSearchResult, iterations: IterationMeasurer) -> None:
        """Search what the caller's backend limits; where it says how, the level becomes part of the plan."""
        plan = self.found.plan or result.plan
        pair = None if self.quota is None else self.quota(plan, iterations)
        if pair is None:
            return
        measurer, levels = pair
        reference_ns = self.measured.get(plan.label, result.iteration_ns)
        found = self.found.quota = search_quota(
            measurer, levels, reference_ns, noise=self.settings.noise
        )
        self._log_quota(plan, found)
        limited: Callable[[QuotaLevel], Plan] | None = getattr(measurer, "limited", None)
        if limited is not None and found.changed and found.iteration_ns is not None:
            self.found.plan = limited(found.level)
            self.measured[self.found.plan.label] = found.iteration_ns

    def _log_quota(self, plan: Plan, found: QuotaSearchResult) -> None:
        for trial in found.trials:
            self.training.log.write(
                "quota",
                plan.label,
                trial.completion_ns,
                trial.failed or ("slower" if trial.slower else "not slower"),
                level=str(trial.level),
                step=trial.step,
            )
        self.training.log.write(
            "quota",
            plan.label,
            found.iteration_ns,
            found.reason,
            level=str(found.level),
        )

    def _offers(self, trace: Path) -> Offers:
        if self.make_search is not None:
            return self.make_search(trace)
        # Found by name: training needs neither solver nor database, tuning does.
        facts: Any = importlib.import_module("rose_opt.facts")
        settings: Any = importlib.import_module("rose_opt.settings")
        alternatives: Any = importlib.import_module("rose_opt.alternatives")
        chosen = settings.PlanSettings(cores=self.settings.cores, bits=self.settings.bits)
        return alternatives.PlanSearch(
            facts.build_facts(trace), chosen, self.settings.max_alternatives
        )

    def _with_evidence(self, plan: Plan) -> Plan:
        """The plan and what was measured about it."""
        text = plan.label
        native, taken = self.measured.get("native order"), self.measured.get(text)
        notes = [f"Tuning: {note}" for note in self.training.notes]
        if native is None or taken is None:
            return dataclasses.replace(plan, notes=(*plan.notes, *notes))
        told = f"measured {taken / 1e6:.1f} ms per iteration, native {native / 1e6:.1f}"
        tried = len([key for key in self.measured if key != "native order"])
        reason = f"native order kept: {told}" if plan.kept_native else told
        if plan.kept_native:
            reason = f"native order kept: {native / 1e6:.1f} ms per iteration measured; nothing was faster"
        notes.insert(
            0,
            f"Tuning: {self.training.log.trials} local trials, {tried} plans as complete iterations; {told}.",
        )
        return dataclasses.replace(plan, reason=reason, notes=(*plan.notes, *notes))


@dataclass(slots=True)
class _Rounds:
    """The search, with an eye on which round it is in."""

    offers: Offers
    measurer: LiveMeasurer
    log: TrialLog
    min_gain: float
    measured: dict[str, int] = field(default_factory=dict[str, int])
    reference_ns: int | None = None

    def targets(self, plan: Plan, reference: IterationMeasurement, limit: int) -> Sequence[str]:
        """A round begins."""
        self.reference_ns = reference.duration_ns
        self.measurer.begin_round()
        chosen = self.offers.targets(plan, reference, limit)
        self.log.write(
            "round",
            plan.label,
            reference.duration_ns,
            f"reference; targets {', '.join(chosen) or 'none'}",
        )
        return chosen

    def alternatives(self, plan: Plan, target: str) -> Sequence[Alternative]:
        return self.offers.alternatives(plan, target)

    def comparison_graph(self, plan: Plan, alternatives: Sequence[Alternative]) -> str:
        graph = self.offers.comparison_graph(plan, alternatives)
        self.measurer.compare(graph, [plan, *(item.plan for item in alternatives)])
        return graph

    def runs_per_iteration(self, comparison_graph: str) -> float:
        return self.offers.runs_per_iteration(comparison_graph)

    def combine(self, plan: Plan, trials: Sequence[AlternativeTrial]) -> Sequence[Composed]:
        return self.offers.combine(plan, trials)

    def judge(self, plan: Plan, duration_ns: int) -> str:
        """What a complete iteration means for the round."""
        self.measured[plan.label] = duration_ns
        if self.reference_ns is None:
            return "reference"
        enough = duration_ns < (1 - self.min_gain) * self.reference_ns  # Alg. 1: t < (1 - ε) m_ref
        return "fast enough" if enough else "not faster than the reference"
