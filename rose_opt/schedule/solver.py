"""How CP-SAT is run: always under a limit, always reproducible.

One worker with a fixed seed explores the same tree on every machine. The deterministic limit
counts work, not time, so the answer is the same on a slow or a loaded machine, unless the wall
limit, which only guards against surprises, ends the search first. Several workers stay
reproducible because the search is then interleaved in fixed batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model


@dataclass(frozen=True, slots=True)
class SolverSettings:
    """Limits of one schedule search.

    Args:
        deterministic_s: Work over all solves of one search [CP-SAT's deterministic seconds;
            one takes roughly 3 to 10 s on one core].
        wall_s: Wall time over all solves of one search [s].
        gap: Distance to the lower bound at which the search may stop [fraction].
        workers: Search workers [>= 1].
        seed: Random seed.
    """

    deterministic_s: float = 4.0
    wall_s: float = 60.0
    gap: float = 0.01
    workers: int = 1
    seed: int = 0


@dataclass(slots=True)
class Budget:
    """What is left of the limits of one search.

    Args:
        settings: The limits.
        used_s: Deterministic work done so far [CP-SAT's deterministic seconds].
        wall_used_s: Wall time spent so far [s].
    """

    settings: SolverSettings
    used_s: float = 0.0
    wall_used_s: float = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left."""
        return (
            self.used_s >= self.settings.deterministic_s or self.wall_used_s >= self.settings.wall_s
        )

    def solve(
        self, model: cp_model.CpModel, share: float = 1.0, slack: float = 0.0
    ) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
        """Solve `model` with at most `share` of what is left of the work.

        Args:
            model: The model.
            share: Share of the remaining deterministic limit [fraction].
            slack: Distance to the optimum at which to stop [units of the objective].

        Returns:
            The solver, which holds the values, and its status.

        Raises:
            RuntimeError: If the model is invalid; that is never "unknown".
        """
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = self.settings.workers
        parameters.interleave_search = self.settings.workers > 1
        parameters.random_seed = self.settings.seed
        parameters.absolute_gap_limit = max(slack, 1e-6)
        parameters.max_deterministic_time = max(
            0.0, share * (self.settings.deterministic_s - self.used_s)
        )
        parameters.max_time_in_seconds = max(0.0, self.settings.wall_s - self.wall_used_s)
        status = solver.solve(model)
        self.used_s += solver.response_proto.deterministic_time
        self.wall_used_s += solver.wall_time
        if status == cp_model.MODEL_INVALID:
            raise RuntimeError(
                f"schedule model: expected a valid model, got MODEL_INVALID ({model.validate()}). "
                "Report the problem that led to it."
            )
        return solver, status


FOUND = (cp_model.OPTIMAL, cp_model.FEASIBLE)


def when(constraint: cp_model.Constraint, *literals: cp_model.BoolVarT) -> None:
    """Enforce `constraint` only where all `literals` hold."""
    constraint.only_enforce_if(*literals)  # pyright: ignore[reportUnknownMemberType]


def weighted(terms: Sequence[tuple[int, cp_model.IntVar]]) -> cp_model.LinearExpr:
    """Return the sum of weight * variable."""
    return cp_model.LinearExpr.weighted_sum(  # pyright: ignore[reportUnknownMemberType]
        [variable for _, variable in terms], [weight for weight, _ in terms]
    )
