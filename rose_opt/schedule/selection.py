"""Which alternatives to take together: the k best selections, by CP-SAT.

Every chosen item stands for one of the targets that it serves, each target for at most one item; no two
conflict, and memory stays within a limit. The objective is the sum of benefits and of pairwise
interactions. After each answer a cut forbids exactly that selection, so the
next one is the best of the rest.

Paper: §4.3.3 (Combine), which takes items greedily.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from rose_opt.schedule.solver import FOUND, Budget, SolverSettings, weighted

Selection = tuple[int, ...]
"""Indices of the chosen items, increasing."""

_LIMITS = SolverSettings(deterministic_s=4.0, wall_s=20.0, gap=0.0)
_REJECTED = 64  # ours: selections that turn out invalid before the search gives up


@dataclass(frozen=True, slots=True)
class SelectionProblem:
    """Items to choose from.

    Attributes:
        targets: Per item, the targets that it may stand for, at least one.
        benefit: Per item, what it saves alone [any unit].
        memory: Per item, memory that it needs [any unit, >= 0].
        memory_limit: Memory of all chosen items together; ``None`` without limit.
        conflicts: Pairs that must not be chosen together.
        interactions: What a pair saves beyond the sum of both, usually negative [unit of benefit].
    """

    targets: tuple[frozenset[str], ...]
    benefit: tuple[int, ...]
    memory: tuple[int, ...]
    memory_limit: int | None = None
    conflicts: frozenset[tuple[int, int]] = frozenset()
    interactions: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def value(self, chosen: Iterable[int]) -> int:
        """Objective of a selection [unit of benefit]."""
        taken = set(chosen)
        pairs = sum(value for (a, b), value in self.interactions.items() if {a, b} <= taken)
        return sum(self.benefit[item] for item in taken) + pairs

    def allows(self, chosen: Sequence[int]) -> bool:
        """Whether a selection keeps every rule."""
        if not self._assignable(chosen):
            return False
        if any(
            (a, b) in self.conflicts or (b, a) in self.conflicts
            for a, b in itertools.combinations(chosen, 2)
        ):
            return False
        limit = self.memory_limit
        return limit is None or sum(self.memory[item] for item in chosen) <= limit

    def _assignable(self, chosen: Sequence[int]) -> bool:
        """Whether every item can have a target of its own (bipartite matching)."""
        owner: dict[str, int] = {}

        def place(item: int, seen: set[str]) -> bool:
            for target in sorted(self.targets[item] - seen):
                seen.add(target)
                if target not in owner or place(owner[target], seen):
                    owner[target] = item
                    return True
            return False

        return all(place(item, set()) for item in chosen)


def best_selections(
    problem: SelectionProblem,
    count: int,
    valid: Callable[[Selection], bool] = lambda _: True,
    hint: Selection = (),
    settings: SolverSettings = _LIMITS,
) -> Iterator[Selection]:
    """Yield selections of at least one item, best first.

    Args:
        problem: The items.
        count: Most selections.
        valid: Whether a whole selection is valid, beyond its pairs.
        hint: A selection to start from.
        settings: Limits of all solves together; the same problem gives the same answer.

    Yields:
        At most `count` valid selections of positive value, by decreasing value; fewer where there
        are no more, or where the limits end the search.
    """
    if not problem.targets:
        return
    model, chosen = _model(problem)
    for item, literal in enumerate(chosen):
        model.add_hint(literal, item in hint)
    budget = Budget(settings)
    found = rejected = 0
    while found < count and rejected < _REJECTED and not budget.exhausted:
        solver, status = budget.solve(model)
        if status not in FOUND:
            return
        selection = tuple(i for i, literal in enumerate(chosen) if solver.boolean_value(literal))
        if problem.value(selection) <= 0:
            return
        if valid(selection):
            found += 1
            yield selection
        else:
            rejected += 1
        # The next one differs in at least one item.
        model.add_bool_or(~x if i in selection else x for i, x in enumerate(chosen))


def _model(problem: SelectionProblem) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    model = cp_model.CpModel()
    chosen = [model.new_bool_var(f"item {item}") for item in range(len(problem.targets))]
    served: dict[str, list[cp_model.IntVar]] = {}
    for x, targets in zip(chosen, problem.targets, strict=True):
        stands = {target: model.new_bool_var("") for target in sorted(targets)}
        model.add(sum(stands.values()) == x)
        for target, literal in stands.items():
            served.setdefault(target, []).append(literal)
    for literals in served.values():
        model.add_at_most_one(literals)
    for a, b in sorted(problem.conflicts):
        model.add_bool_or(~chosen[a], ~chosen[b])
    if problem.memory_limit is not None:
        model.add(weighted(list(zip(problem.memory, chosen, strict=True))) <= problem.memory_limit)
    terms = list(zip(problem.benefit, chosen, strict=True))
    for (a, b), value in sorted(problem.interactions.items()):
        both = model.new_bool_var(f"items {a} and {b}")
        model.add_bool_or(~chosen[a], ~chosen[b], both)
        model.add_implication(both, chosen[a])
        model.add_implication(both, chosen[b])
        terms.append((value, both))
    model.maximize(weighted(terms))
    return model, chosen
