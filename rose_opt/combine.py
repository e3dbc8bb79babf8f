"""Combine: which measured alternatives to apply together.

The paper takes them greedily, by decreasing gain, at most one per target, each if it is compatible with
what was taken and fits the memory. That is the reference; CP-SAT finds the k best selections under the
same rules and must match or beat it on estimated benefit. Both are kept: a complete iteration decides.

Does not handle: gains that only show together (a pair's interaction has to be given).

Paper: §4.3.3, Alg. 1, Combine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rose_opt.schedule.selection import SelectionProblem, best_selections

MIN_MEMORY_BYTES = 1 << 20
"""Memory is counted in whole mebibytes, rounded up. # ours"""

_MOST_SELECTIONS = 5  # ours: k


@dataclass(frozen=True, slots=True)
class Choice:
    """A measured alternative of one target.

    Attributes:
        name: Its transforms in text form; the same alternative may be measured for several targets.
        target: The target.
        gain_ns: What it saves per iteration alone [ns].
        memory_bytes: Memory that it needs beyond the graph without it [bytes].
    """

    name: str
    target: str
    gain_ns: int
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Combination:
    """Choices to apply together.

    Attributes:
        choices: The choices, by decreasing gain.
        estimated_ns: What they are expected to save per iteration [ns].
        by: Who found them.
    """

    choices: tuple[Choice, ...]
    estimated_ns: int
    by: Literal["greedy", "solver"]

    @property
    def names(self) -> tuple[str, ...]:
        """Texts of the choices."""
        return tuple(choice.name for choice in self.choices)


@dataclass(frozen=True, slots=True)
class Combinations:
    """What may be tried.

    Attributes:
        greedy: The paper's combination; empty where nothing gains.
        solver: The k best selections, by decreasing estimate; the first is never worse than
            `greedy`.
    """

    greedy: Combination
    solver: tuple[Combination, ...]

    @property
    def in_order(self) -> tuple[Combination, ...]:
        """What to validate: the greedy one first, then those of the solver that differ."""
        first = (self.greedy,) if self.greedy.choices else ()
        taken = {frozenset(self.greedy.names)}
        return first + tuple(c for c in self.solver if frozenset(c.names) not in taken)


Compatible = Callable[[Sequence[Choice]], bool]
"""Whether choices may be applied together: legal, live, placeable."""


@dataclass(frozen=True, slots=True)
class CombineLimits:
    """What combinations must keep.

    Attributes:
        memory_bytes: Memory beyond the present graph, M; ``None`` without limit [bytes].
        interactions_ns: What a pair of choices, by name, saves beyond both alone [ns].
        selections: Selections asked of the solver, k [>= 1].
    """

    memory_bytes: int | None = None
    interactions_ns: Mapping[tuple[str, str], int] = field(
        default_factory=dict[tuple[str, str], int]
    )
    selections: int = _MOST_SELECTIONS


def combine(
    choices: Sequence[Choice], compatible: Compatible, limits: CombineLimits | None = None
) -> Combinations:
    """Combine measured alternatives.

    Args:
        choices: The alternatives; those that gain nothing are left out.
        compatible: Whether several may be applied together.
        limits: Memory, interactions and the number of selections.

    Returns:
        The greedy combination and the solver's.
    """
    limits = limits or CombineLimits()
    memory: dict[str, int] = {}
    for choice in choices:
        memory[choice.name] = max(memory.get(choice.name, 0), choice.memory_bytes)
    gaining = [replace(c, memory_bytes=memory[c.name]) for c in choices if c.gain_ns > 0]
    ranked = sorted(gaining, key=lambda choice: -choice.gain_ns)
    items: list[Choice] = []
    for choice in ranked:
        if all(choice.name != item.name for item in items):
            items.append(choice)
    problem = _problem(items, ranked, compatible, limits)
    position = {choice.name: index for index, choice in enumerate(items)}
    greedy = [position[c.name] for c in _greedy(ranked, compatible, problem.memory_limit)]

    def valid(selection: Sequence[int]) -> bool:
        return compatible([items[index] for index in selection])

    solved = [
        _combination(items, problem, selection, "solver")
        for selection in best_selections(problem, limits.selections, valid, tuple(greedy))
    ]
    reference = _combination(items, problem, greedy, "greedy")
    if greedy and (not solved or solved[0].estimated_ns < reference.estimated_ns):
        # A limit ended the search early: the best selection known is the greedy one.
        solved.insert(0, _combination(items, problem, greedy, "solver"))
    return Combinations(reference, tuple(solved))


def _greedy(
    ranked: Sequence[Choice], compatible: Compatible, memory_limit: int | None
) -> list[Choice]:
    """The paper's choice: by decreasing gain, at most one per target, compatible, within M."""
    taken: list[Choice] = []
    for choice in ranked:
        known = {other.name for other in taken} | {other.target for other in taken}
        if choice.name in known or choice.target in known:
            continue
        grown = [*taken, choice]
        memory = sum(_mebibytes(other) for other in grown)
        if (memory_limit is None or memory <= memory_limit) and compatible(grown):
            taken = grown
    return taken


def _mebibytes(choice: Choice) -> int:
    return -(-choice.memory_bytes // MIN_MEMORY_BYTES)


def _problem(
    items: Sequence[Choice],
    ranked: Sequence[Choice],
    compatible: Compatible,
    limits: CombineLimits,
) -> SelectionProblem:
    position = {choice.name: index for index, choice in enumerate(items)}
    pairs = itertools.combinations(range(len(items)), 2)
    limit = limits.memory_bytes
    return SelectionProblem(
        targets=tuple(frozenset(c.target for c in ranked if c.name == i.name) for i in items),
        benefit=tuple(choice.gain_ns for choice in items),
        memory=tuple(_mebibytes(choice) for choice in items),
        memory_limit=None if limit is None else limit // MIN_MEMORY_BYTES,
        conflicts=frozenset((a, b) for a, b in pairs if not compatible([items[a], items[b]])),
        interactions={
            (position[a], position[b]): value
            for (a, b), value in limits.interactions_ns.items()
            if a in position and b in position
        },
    )


def _combination(
    items: Sequence[Choice],
    problem: SelectionProblem,
    selection: Sequence[int],
    by: Literal["greedy", "solver"],
) -> Combination:
    chosen = tuple(items[index] for index in sorted(selection))
    return Combination(chosen, problem.value(selection), by)
