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
from typing import Any, Literal, Protocol

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


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way of filling the window of a target, phi in Phi_v.

    Attributes:
        target: The target, v.
        text: Its transforms in text form.
        plan: The graph with it, and with everything accepted before.
        memory_bytes: Memory it needs beyond the graph without it [bytes].
    """

    target: str
    text: str
    plan: Plan
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AlternativeTrial:
    """An alternative on the comparison graph.

    Attributes:
        alternative: The alternative.
        local_ns: Duration of the comparison graph with it [ns]; ``None`` if it could not be run.
        gain_ns: What it saves per iteration, against the baseline [ns]; 0 if it could not be run.
        failed: Why it could not be run; empty if it could.
    """

    alternative: Alternative
    local_ns: int | None
    gain_ns: int
    failed: str = ""


@dataclass(frozen=True, slots=True)
class TargetTrials:
    """Everything measured for one target.

    Attributes:
        target: The target, v.
        comparison_graph: Node whose body was run, A_v.
        baseline_ns: The body without an alternative, c_0 [ns].
        trials: The alternatives, in search order.
    """

    target: str
    comparison_graph: str
    baseline_ns: int
    trials: tuple[AlternativeTrial, ...]


@dataclass(frozen=True, slots=True)
class Composed:
    """A combination of alternatives, at most one per target.

    Attributes:
        plan: The graph with all of them.
        alternatives: Their texts.
        estimated_ns: What they are expected to save per iteration [ns].
        by: Who chose them.
    """

    plan: Plan
    alternatives: tuple[str, ...]
    estimated_ns: int
    by: Literal["greedy", "solver"]


@dataclass(frozen=True, slots=True)
class Validation:
    """A combination as a complete iteration.

    Attributes:
        composed: The combination.
        iteration_ns: Its duration [ns]; ``None`` if it could not be run.
        failed: Why it could not be run; empty if it could.
    """

    composed: Composed
    iteration_ns: int | None
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """One round.

    Attributes:
        number: From 1.
        reference_ns: The iteration to beat, m_ref [ns].
        reused: Whether an earlier run served as reference.
        targets: What was measured, by target.
        validations: Combinations that ran as complete iterations, in order.
        accepted: Index of the accepted one; ``None`` if the round changed nothing.
        reason: Why it was accepted or not.
    """

    number: int
    reference_ns: int
    reused: bool
    targets: tuple[TargetTrials, ...]
    validations: tuple[Validation, ...]
    accepted: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class GraphSearchResult:
    """What Algorithm 1 found.

    Attributes:
        plan: The plan to keep.
        native_ns: Iteration of the graph it began with [ns].
        iteration_ns: Iteration of the plan [ns].
        rounds: Every round, the rejected last one included.
        iterations: Complete iterations that were run.
        local_trials: Local trials that were run.
    """

    plan: Plan
    native_ns: int
    iteration_ns: int
    rounds: tuple[Round, ...]
    iterations: int
    local_trials: int

    @property
    def gain_shares(self) -> tuple[float, ...]:
        """Share of each accepted round in the time saved [fraction]; empty if nothing was saved."""
        steps: list[int] = []
        for item in self.rounds:
            taken = None if item.accepted is None else item.validations[item.accepted].iteration_ns
            if taken is not None:
                steps.append(item.reference_ns - taken)
        total = sum(steps)
        return tuple(step / total for step in steps) if total > 0 else ()

    def to_data(self) -> dict[str, Any]:
        """Every trial as plain data for a log; plans by their transforms."""
        return {
            "plan": _texts(self.plan),
            "native_ns": self.native_ns,
            "iteration_ns": self.iteration_ns,
            "iterations": self.iterations,
            "local_trials": self.local_trials,
            "gain_shares": list(self.gain_shares),
            "rounds": [_round_data(item) for item in self.rounds],
        }


def _round_data(item: Round) -> dict[str, Any]:
    return {
        "number": item.number,
        "reference_ns": item.reference_ns,
        "reused": item.reused,
        "accepted": item.accepted,
        "reason": item.reason,
        "targets": [
            {
                "target": target.target,
                "comparison_graph": target.comparison_graph,
                "baseline_ns": target.baseline_ns,
                "trials": [
                    {
                        "alternative": trial.alternative.text,
                        "local_ns": trial.local_ns,
                        "gain_ns": trial.gain_ns,
                        "failed": trial.failed,
                    }
                    for trial in target.trials
                ],
            }
            for target in item.targets
        ],
        "validations": [
            {
                "alternatives": list(validation.composed.alternatives),
                "by": validation.composed.by,
                "estimated_ns": validation.composed.estimated_ns,
                "iteration_ns": validation.iteration_ns,
                "failed": validation.failed,
            }
            for validation in item.validations
        ],
    }


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
            self._tell(f"iteration {self.iterations[key].duration_ns / 1e6:.1f} ms: {_texts(plan)}")
        return self.iterations[key]

    def _local(self, plan: Plan, graph: str) -> int:
        """A local trial, run once per graph and place."""
        key = (plan_key(plan), graph)
        if key not in self.locals:
            self.locals[key] = self.measurer.local_ns(plan, graph)
            self._tell(f"{graph} {self.locals[key] / 1e6:.1f} ms: {_texts(plan)}")
        return self.locals[key]

    def _tell(self, text: str) -> None:
        if self.progress is not None:
            self.progress(self.plan, text)


def _texts(plan: Plan) -> str:
    return ",".join(map(str, plan.transforms)) or "native order"
