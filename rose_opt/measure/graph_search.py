"""Algorithm 1: graph optimization by measurement.

Each round takes the most promising targets, measures their alternatives on the part of the graph that
they change, combines the winners, and keeps the combination only if a complete iteration is faster.
What can be measured is asked of a `Measurer`, what can be done of a `GraphSearch`; this file only
decides.

Paper: §4.3.3, Alg. 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rose_opt.measure.graph_trials import (
    Alternative,
    AlternativeTrial,
    Composed,
    GraphSearchResult,
    Round,
    TargetTrials,
    Validation,
    transforms_of,
)
from rose_opt.measure.plan_key import plan_key
from rose_opt.measure.protocols import IterationMeasurement, Measurer, TrialFailed
from rose_opt.plan import Plan


@dataclass(frozen=True, slots=True)
class GraphSearchSettings:
    """Budget and threshold of the search.

    Attributes:
        max_targets: Targets per round, K.
        max_rounds: Rounds, R.
        min_gain: Gain of a complete iteration below which a round is rejected, epsilon [fraction].
        max_validations: Complete iterations per round: the greedy combination first, then what the
            solver expects to be better.
    """

    max_targets: int = 3  # §5: K
    max_rounds: int = 2  # §5: R
    min_gain: float = 0.01  # ours; the paper gives no value for ε
    max_validations: int = 2  # ours; the paper validates one

    def __post_init__(self) -> None:
        for name in ("max_targets", "max_rounds", "max_validations"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"GraphSearchSettings: expected {name} >= 1, got {getattr(self, name)}. Use at least 1."
                )
        if not 0 <= self.min_gain < 1:
            raise ValueError(
                f"GraphSearchSettings: expected min_gain in 0..1, got {self.min_gain}. Use e.g. 0.01."
            )


class GraphSearch(Protocol):
    """What may be done to a graph; implemented over facts and transforms by `rose_opt.alternatives`."""

    def targets(self, plan: Plan, reference: IterationMeasurement, limit: int) -> Sequence[str]:
        """At most `limit` targets by rank pi, as the reference iteration shows them."""
        ...

    def alternatives(self, plan: Plan, target: str) -> Sequence[Alternative]:
        """The first L valid alternatives (legal, live, within the memory) in search order, Phi_v."""
        ...

    def comparison_graph(self, plan: Plan, alternatives: Sequence[Alternative]) -> str:
        """The innermost node whose body holds everything that the alternatives change, A_v."""
        ...

    def runs_per_iteration(self, comparison_graph: str) -> float:
        """How often that body runs in one iteration."""
        ...

    def combine(self, plan: Plan, trials: Sequence[AlternativeTrial]) -> Sequence[Composed]:
        """Valid combinations of gaining alternatives: the greedy one first, then better estimates."""
        ...


Progress = Callable[[Plan, str], None]
"""Told after every measurement: the best plan so far, and what was measured."""


def search_graph(
    plan: Plan,
    search: GraphSearch,
    measurer: Measurer,
    settings: GraphSearchSettings | None = None,
    progress: Progress | None = None,
) -> GraphSearchResult:
    """Improve a plan round by round.

    Args:
        plan: The graph to begin with, usually the native order.
        search: What may be done.
        measurer: Runs trials and iterations.
        settings: Budget and threshold.
        progress: Told after every measurement.

    Returns:
        The best plan found, with every trial. `TrialFailed` passes through if the graph to begin
        with cannot be run.
    """
    rounds = _Rounds(search, measurer, settings or GraphSearchSettings(), progress, plan)
    return rounds.run()


@dataclass(slots=True)
class _Rounds:
    """The search in progress.

    Attributes:
        plan: The best plan so far, G.
    """

    search: GraphSearch
    measurer: Measurer
    settings: GraphSearchSettings
    progress: Progress | None
    plan: Plan
    iterations: dict[str, IterationMeasurement] = field(
        default_factory=dict[str, IterationMeasurement]
    )
    locals: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def run(self) -> GraphSearchResult:
        native = self._run_or_reuse(self.plan).duration_ns
        rounds: list[Round] = []
        for number in range(1, self.settings.max_rounds + 1):  # Alg. 1: r <= R
            done = self._round(number)
            rounds.append(done)
            if done.accepted is None:
                break
            self.plan = done.validations[done.accepted].composed.plan
        return GraphSearchResult(
            self.plan,
            native,
            self._run_or_reuse(self.plan).duration_ns,
            tuple(rounds),
            len(self.iterations),
            len(self.locals),
        )

    def _round(self, number: int) -> Round:
        reused = number > 1
        reference = self._run_or_reuse(self.plan)  # Alg. 1: m_ref
        chosen = self.search.targets(self.plan, reference, self.settings.max_targets)
        targets = tuple(self._targets(chosen))
        gaining = [t for target in targets for t in target.trials if t.gain_ns > 0]

        def close(validations: Sequence[Validation], accepted: int | None, reason: str) -> Round:
            return Round(
                number,
                reference.duration_ns,
                reused,
                targets,
                tuple(validations),
                accepted,
                reason,
            )

        if not gaining:
            return close((), None, "no alternative is faster on its comparison graph")
        composed = self.search.combine(self.plan, gaining)  # Alg. 1: Combine
        validations = [self._validate(c) for c in composed[: self.settings.max_validations]]
        ran = [
            (v.iteration_ns, at) for at, v in enumerate(validations) if v.iteration_ns is not None
        ]
        if not ran:
            return close(validations, None, "no combination could be run")
        fastest, at = min(ran)
        enough = (1 - self.settings.min_gain) * reference.duration_ns
        told = f"{fastest / 1e6:.1f} ms per iteration against {reference.duration_ns / 1e6:.1f}"
        if fastest < enough:  # Alg. 1: accept iff t < (1 - epsilon) * m_ref, else stop
            return close(validations, at, f"accepted: {told}")
        return close(validations, None, f"rejected: {told}")

    def _targets(self, chosen: Sequence[str]) -> Iterator[TargetTrials]:
        """Measure baseline and alternatives of each target on its comparison graph."""
        for target in chosen:
            alternatives = self.search.alternatives(self.plan, target)
            if not alternatives:
                continue
            graph = self.search.comparison_graph(self.plan, alternatives)
            try:
                baseline = self._local(self.plan, graph)
            except TrialFailed as error:
                failed = tuple(AlternativeTrial(a, None, 0, str(error)) for a in alternatives)
                yield TargetTrials(target, graph, 0, failed)
                continue
            runs = self.search.runs_per_iteration(graph)
            trials = tuple(self._trial(a, graph, baseline, runs) for a in alternatives)
            yield TargetTrials(target, graph, baseline, trials)

    def _trial(
        self, alternative: Alternative, graph: str, baseline: int, runs: float
    ) -> AlternativeTrial:
        try:
            taken = self._local(alternative.plan, graph)
        except TrialFailed as error:
            return AlternativeTrial(alternative, None, 0, str(error))
        return AlternativeTrial(alternative, taken, round((baseline - taken) * runs))

    def _validate(self, composed: Composed) -> Validation:
        try:
            taken = self._run_or_reuse(composed.plan).duration_ns
        except TrialFailed as error:
            return Validation(composed, None, str(error))
        return Validation(composed, taken)

    def _run_or_reuse(self, plan: Plan) -> IterationMeasurement:
        """A complete iteration, run once per graph."""
        key = plan_key(plan)
        if key not in self.iterations:
            self.iterations[key] = self.measurer.iteration(plan)
            self._tell(
                f"iteration {self.iterations[key].duration_ns / 1e6:.1f} ms: {transforms_of(plan)}"
            )
        return self.iterations[key]

    def _local(self, plan: Plan, graph: str) -> int:
        """A local trial, run once per graph and place."""
        key = (plan_key(plan), graph)
        if key not in self.locals:
            self.locals[key] = self.measurer.local_ns(plan, graph)
            self._tell(f"{graph} {self.locals[key] / 1e6:.1f} ms: {transforms_of(plan)}")
        return self.locals[key]

    def _tell(self, text: str) -> None:
        if self.progress is not None:
            self.progress(self.plan, text)
