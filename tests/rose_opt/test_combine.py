"""Combine: the paper's greedy choice, and the solver that must match or beat it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rose_opt.combine import Choice, Combinations, CombineLimits, Compatible, combine
from rose_opt.schedule.selection import SelectionProblem, best_selections
from tests.properties import examples

GIB = 1 << 30


def always(_: Sequence[Choice]) -> bool:
    return True


def apart(*pairs: tuple[str, str]) -> Compatible:
    """Compatible unless both of a pair are there."""

    def compatible(chosen: Sequence[Choice]) -> bool:
        return not any(set(pair) <= {choice.name for choice in chosen} for pair in pairs)

    return compatible


def names(found: Combinations) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return found.greedy.names, found.solver[0].names if found.solver else ()


def test_greedy_takes_at_most_one_per_target_by_decreasing_gain() -> None:
    found = combine(
        [Choice("a", "v", 5), Choice("b", "v", 9), Choice("c", "w", 3), Choice("d", "w", 0)], always
    )
    assert found.greedy.names == ("b", "c")
    assert found.greedy.estimated_ns == 12
    assert found.solver[0].names == ("b", "c")


def test_an_alternative_measured_for_two_targets_is_taken_once_and_leaves_the_other_target() -> (
    None
):
    choices = [Choice("split", "v", 9), Choice("split", "w", 9), Choice("rewire", "w", 4)]
    found = combine(choices, always)
    assert names(found) == (("split", "rewire"), ("split", "rewire"))
    assert found.greedy.estimated_ns == 13


def test_the_solver_gives_an_item_the_target_that_leaves_room() -> None:
    # Greedy serves v with a; then b, which has only v, has no target left.
    choices = [Choice("a", "v", 9), Choice("a", "w", 9), Choice("b", "v", 4)]
    found = combine(choices, always)
    assert names(found) == (("a",), ("a", "b"))


def test_the_solver_beats_greedy_where_the_best_stands_in_the_way() -> None:
    choices = [Choice("a", "u", 10), Choice("b", "v", 7), Choice("c", "w", 7)]
    found = combine(choices, apart(("a", "b"), ("a", "c")))
    assert names(found) == (("a",), ("b", "c"))
    assert found.solver[0].estimated_ns == 14
    assert [c.by for c in found.in_order] == ["greedy", "solver", "solver", "solver"]
    assert [c.names for c in found.in_order[:2]] == [("a",), ("b", "c")]


def test_memory_is_a_limit_for_both() -> None:
    choices = [
        Choice("a", "u", 10, 3 * GIB),
        Choice("b", "v", 7, 2 * GIB),
        Choice("c", "w", 6, 2 * GIB),
    ]
    found = combine(choices, always, CombineLimits(memory_bytes=4 * GIB))
    assert names(found) == (("a",), ("b", "c"))
    assert combine(choices, always, CombineLimits(memory_bytes=GIB)).in_order == ()


def test_what_a_pair_loses_together_counts() -> None:
    choices = [Choice("a", "u", 10), Choice("b", "v", 8), Choice("c", "w", 5)]
    limits = CombineLimits(interactions_ns={("b", "a"): -9})
    found = combine(choices, always, limits)
    assert found.greedy.names == ("a", "b", "c")
    assert found.greedy.estimated_ns == 14
    assert found.solver[0].names == ("a", "c")
    assert found.solver[0].estimated_ns == 15


def test_three_that_only_clash_together_are_found_out_by_the_whole_check() -> None:
    choices = [Choice("a", "u", 3), Choice("b", "v", 2), Choice("c", "w", 1)]
    found = combine(choices, lambda chosen: len(chosen) < 3)
    assert names(found) == (("a", "b"), ("a", "b"))


def test_nothing_to_combine() -> None:
    found = combine([Choice("a", "v", 0), Choice("b", "w", -5)], always)
    assert found.greedy.names == ()
    assert found.solver == found.in_order == ()


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Choice], list[set[str]], CombineLimits]:
    count = draw(st.integers(1, 9))
    choices = [
        Choice(
            f"c{draw(st.integers(0, count))}",
            f"v{draw(st.integers(0, 4))}",
            draw(st.integers(-20, 900)),
            draw(st.integers(0, 20)) << 20,
        )
        for _ in range(count)
    ]
    known = sorted({choice.name for choice in choices})
    pairs = list(itertools.combinations(known, 2))
    clashes = draw(st.lists(st.sampled_from(pairs), max_size=6)) if pairs else []
    triples = list(itertools.combinations(known, 3))
    clashes += draw(st.lists(st.sampled_from(triples), max_size=3)) if triples else []
    lost = draw(st.lists(st.sampled_from(pairs), max_size=6, unique=True)) if pairs else []
    limits = CombineLimits(
        memory_bytes=draw(st.none() | st.integers(0, 40).map(lambda m: m << 20)),
        interactions_ns={pair: draw(st.integers(-500, 100)) for pair in lost},
        selections=3,
    )
    return choices, [set(clash) for clash in clashes], limits


@examples(60, 25)
@given(problems())
def test_the_solver_is_never_worse_than_greedy_and_never_better_than_all(
    given: tuple[list[Choice], list[set[str]], CombineLimits],
) -> None:
    choices, clashes, limits = given

    def compatible(chosen: Sequence[Choice]) -> bool:
        taken = {choice.name for choice in chosen}
        return not any(clash <= taken for clash in clashes)

    found = combine(choices, compatible, limits)
    values = [c.estimated_ns for c in found.solver]
    assert values == sorted(values, reverse=True)
    assert len({frozenset(c.names) for c in found.solver}) == len(found.solver)
    for combination in (found.greedy, *found.solver):
        assert compatible(combination.choices)
        memory = sum(c.memory_bytes for c in combination.choices)
        assert limits.memory_bytes is None or memory <= limits.memory_bytes
    best = exhaustive(choices, compatible, limits)
    if found.solver:
        assert values[0] == best
        assert values[0] >= found.greedy.estimated_ns
    else:
        assert best == 0
        assert found.greedy.estimated_ns <= 0


def exhaustive(choices: Sequence[Choice], compatible: Compatible, limits: CombineLimits) -> int:
    """Best value over all assignments of names to targets, by enumeration."""
    gain: dict[str, int] = {}
    memory: dict[str, int] = {}
    targets: dict[str, set[str]] = {}
    for choice in choices:
        if choice.gain_ns > 0:
            targets.setdefault(choice.name, set()).add(choice.target)
            gain[choice.name] = max(choice.gain_ns, gain.get(choice.name, 0))
        memory[choice.name] = max(choice.memory_bytes, memory.get(choice.name, 0))
    best = 0
    for count in range(1, len(gain) + 1):
        for chosen in itertools.combinations(sorted(gain), count):
            if not any(
                len(set(assigned)) == count
                for assigned in itertools.product(*(targets[name] for name in chosen))
            ):
                continue
            used = sum(memory[name] for name in chosen)
            if limits.memory_bytes is not None and used > limits.memory_bytes:
                continue
            if not compatible([Choice(name, "", 0) for name in chosen]):
                continue
            value = sum(gain[name] for name in chosen) + sum(
                lost for pair, lost in limits.interactions_ns.items() if set(pair) <= set(chosen)
            )
            best = max(best, value)
    return best


def test_selections_come_best_first_and_differ() -> None:
    problem = SelectionProblem(
        targets=(frozenset("u"), frozenset("v"), frozenset("w")),
        benefit=(5, 3, 1),
        memory=(0, 0, 0),
    )
    assert list(best_selections(problem, 4)) == [(0, 1, 2), (0, 1), (0, 2), (0,)]
    assert list(best_selections(problem, 2, lambda chosen: 0 not in chosen)) == [(1, 2), (1,)]
