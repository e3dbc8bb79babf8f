"""Candidate alternatives in the order of the paper: targets by rank, then what may be done about each.

Paper: §4.3.2, "Generating alternatives".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rose_opt.facts import Facts
from rose_opt.plan import Refusal
from rose_opt.settings import PlanSettings
from rose_opt.transforms import (
    Composition,
    Interleave,
    Merge,
    Rewire,
    SpatialSplit,
    Subject,
    apply_all,
)


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be done and what may not.

    Attributes:
        splits: Legal compositions that split one loop, in search order.
        rewires: Legal rewires, in search order.
        refusals: Why others may not, in search order; one per subject and reason.
    """

    splits: tuple[Composition, ...]
    rewires: tuple[Composition, ...]
    refusals: tuple[Refusal, ...]


def targets(facts: Facts) -> tuple[str, ...]:
    """Leaf nodes, most worth a partner first.

    Returns:
        Paths by the rank of their low-activity window; those without one by total duration.
    """
    rank = {w.target: w.rank for w in facts.windows if w.rank is not None}
    leaves = [leaf.path for leaf in facts.graph.leaves(facts.graph.root.path)]
    last = len(rank)

    def order(path: str) -> tuple[int, int]:
        ranked = next((r for target, r in rank.items() if target == path), None)
        timing = facts.timings[path]
        return (last + 1 if ranked is None else ranked, -timing.total_ns)

    return tuple(sorted(leaves, key=order))


def candidates(facts: Facts, settings: PlanSettings) -> Candidates:
    """Check every candidate.

    Args:
        facts: What is known.
        settings: Settings of the search.

    Returns:
        Legal alternatives and refusals.
    """
    subject = Subject.of(facts)
    splits: dict[str, Composition] = {}
    rewires: dict[str, Composition] = {}
    refusals: dict[tuple[str, str, str], Refusal] = {}
    for target in targets(facts):
        for composition in _of_target(subject, target, settings):
            text = describe(composition)
            if text in splits or text in rewires:
                continue
            outcome = apply_all(composition, subject)
            if isinstance(outcome, Refusal):
                key = (outcome.transform, outcome.subject, _without_numbers(outcome.reason))
                refusals.setdefault(key, outcome)
            elif isinstance(composition[0], SpatialSplit):
                splits[text] = composition
            else:
                rewires[text] = composition
    return Candidates(tuple(splits.values()), tuple(rewires.values()), tuple(refusals.values()))


def combinations(found: Candidates) -> Iterator[Composition]:
    """Compositions to price: native, each split, each rewire, all rewires, and both.

    Yields:
        Compositions, the native order first. Of splits of several loops, one per loop with equal
        numbers of groups.
    """
    split_options: list[Composition] = [(), *found.splits]
    by_groups: dict[int, list[Composition]] = {}
    for composition in found.splits:
        split = composition[0]
        if isinstance(split, SpatialSplit):
            by_groups.setdefault(split.groups, []).append(composition)
    for alike in by_groups.values():
        if len(alike) > 1:
            split_options.append(tuple(t for composition in alike for t in composition))
    rewire_options: list[Composition] = [(), *found.rewires]
    if len(found.rewires) > 1:
        rewire_options.append(tuple(t for composition in found.rewires for t in composition))
    for rewires in rewire_options:
        for splits in split_options:
            yield (*splits, *rewires)


def describe(composition: Composition) -> str:
    """Text form of a composition."""
    return ",".join(str(transform.text) for transform in composition)


def _of_target(subject: Subject, target: str, settings: PlanSettings) -> Iterator[Composition]:
    for split in SpatialSplit.candidates(subject, target, settings.max_groups):
        yield split, Interleave(split.loop), Merge(split.loop)
    for rewire in Rewire.candidates(subject, target, settings.max_groups):
        yield (rewire,)


def _without_numbers(reason: str) -> str:
    """The reason without group counts, so that the same refusal of 2 and 3 groups is told once."""
    return "".join(letter for letter in reason if not letter.isdigit())
