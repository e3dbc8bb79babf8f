"""What Algorithm 1 tried, and what came of it: one record per alternative, target, round and search.

Paper: §4.3.3, Alg. 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rose_opt.plan import Plan


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
            "plan": transforms_of(self.plan),
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


def transforms_of(plan: Plan) -> str:
    """Transforms of a plan in text form, for messages and logs."""
    return ",".join(map(str, plan.transforms)) or "native order"
