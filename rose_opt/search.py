"""The first L feasible candidates of each target, sorted as in the paper, and why others are not feasible.

`rose_opt.feasible` enumerates. What is left after applicability, legality and capacity is sorted by the
rank of the target's window, then by how badly the durations of target and partner match, then by the
enumeration.

Paper: §4.3.2, "Generating alternatives".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rose_opt.capacity import activity_refusal, lane_refusal, memory_refusal
from rose_opt.facts import Facts
from rose_opt.feasible import Candidate, Enumeration, feasible
from rose_opt.placement import Workers, place
from rose_opt.plan import (
    Preparations,
    Refusal,
    between,
    replicated_components,
    sharded_components,
)
from rose_opt.settings import PlanSettings
from rose_opt.transforms import (
    Composition,
    CopyOnBind,
    Interleave,
    Merge,
    Rewire,
    SpatialSplit,
    Subject,
    TemporalSplit,
    apply_all,
    essence,
    unlocked,
    unlocking,
)
from rose_opt.transforms.estimates import estimated_ns
from rose_trace.legality import first_conflict

__all__ = ["Candidate", "Candidates", "candidates", "describe", "targets"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be done and what may not.

    Attributes:
        found: Feasible candidates, at most L per target, in search order.
        refusals: Why others may not, one per subject and reason: what an annotation would unlock first,
            then what has no room, each in the order of the enumeration.
    """

    found: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...]

    def of(self, target: str) -> tuple[Candidate, ...]:
        """Candidates of one target, best first."""
        return tuple(item for item in self.found if item.target == target)

    @property
    def splits(self) -> tuple[Composition, ...]:
        """Different compositions that split a loop, in search order."""
        return self._different(split=True)

    @property
    def rewires(self) -> tuple[Composition, ...]:
        """Different compositions that only move nodes, in search order."""
        return self._different(split=False)

    def _different(self, *, split: bool) -> tuple[Composition, ...]:
        kinds = (SpatialSplit, TemporalSplit)
        return tuple(
            dict.fromkeys(
                item.composition
                for item in self.found
                if isinstance(essence(item.composition)[0], kinds) == split
            )
        )


_STATE = ("expected a free loop, got dependent", "expected every leaf to declare")
"""Reasons against chains that an annotation may unlock; a carry is what the program means."""


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
    """Check every candidate and keep the first of each target.

    Args:
        facts: What is known.
        settings: Settings of the search: K targets, L alternatives, memory M.

    Returns:
        Feasible candidates and refusals.
    """
    search = _Search(facts, settings)
    found: list[Candidate] = []
    for target in targets(facts)[: settings.max_targets]:
        works = [c for c in search.enumerated(target) if search.refusal(c) is None]
        ranked = sorted(works, key=lambda candidate: candidate.mismatch_ns)  # stable: ties stay
        best = {candidate.composition: candidate for candidate in reversed(ranked)}
        kept = [c for c in ranked if best[c.composition] is c]
        for extra in (False, True):
            found += [c for c in kept if c.extra is extra][: settings.max_alternatives]
        search.note_dependent(target)
    return Candidates(tuple(found), search.told)


def describe(composition: Composition) -> str:
    """Text form of a composition."""
    return ",".join(str(transform.text) for transform in composition)


class _Search:
    """Answers the enumeration's questions, and remembers what was refused."""

    def __init__(self, facts: Facts, settings: PlanSettings) -> None:
        self.facts = facts
        self.settings = settings
        self.subject = Subject.of(facts)
        self.hierarchy = self.subject.hierarchy
        self._illegal_found: dict[tuple[str, str, str], Refusal] = {}
        self._no_room: dict[tuple[str, str, str], Refusal] = {}
        self._known: dict[tuple[str, str, str], Refusal | None] = {}
        self._legal: dict[str, Refusal | None] = {}
        self._forms: dict[str, Composition] = {}
        self._copied, self._storages = _with_copies(self.subject)

    @property
    def told(self) -> tuple[Refusal, ...]:
        """What was refused and is worth telling."""
        return (*self._illegal_found.values(), *self._no_room.values())

    def enumerated(self, target: str) -> Iterator[Candidate]:
        """Candidates of a target with their mismatch."""
        ask = Enumeration(
            self.subject,
            self.settings.max_groups,
            fits=lambda split: memory_refusal(self.hierarchy, split, self.settings.memory) is None,
            works=lambda candidate: self.refusal(self._prepared(candidate)) is None,
            apart=self._apart,
            free=self._seen_free,
            copied=self._copied,
        )
        for candidate in feasible(ask, target):
            made = self._prepared(candidate)
            yield replace(made, mismatch_ns=self._mismatch_ns(made))

    def _prepared(self, candidate: Candidate) -> Candidate:
        """The candidate with copies that make it legal, where it is not and some do."""
        text = describe(candidate.composition)
        if text not in self._forms:
            legal = None
            if isinstance(apply_all(candidate.composition, self.subject), Refusal):
                legal = unlocked(candidate.composition, self.subject)
            self._forms[text] = candidate.composition if legal is None else legal
        return replace(candidate, composition=self._forms[text])

    def refusal(self, candidate: Candidate) -> Refusal | None:
        """Why a candidate is not feasible; nothing if it is."""
        key = candidate.target, candidate.partner, describe(candidate.composition)
        if key not in self._known:
            illegal = self._illegal(candidate.composition)
            found = illegal or self._held_back(candidate) or self._without_room(candidate)
            self._known[key] = found
            if found is not None and self._worth_telling(candidate):
                told = found.transform, found.subject, _without_numbers(found.reason)
                (self._no_room if illegal is None else self._illegal_found).setdefault(told, found)
        return self._known[key]

    def _worth_telling(self, candidate: Candidate) -> bool:
        """Single nodes that need each other's values are in order for good; nobody asks why."""
        rewire = candidate.composition[-1]
        split = essence(candidate.composition)[0]
        if not isinstance(rewire, Rewire) or isinstance(split, SpatialSplit):
            return True
        nodes = [self.facts.graph.node(path) for path in (rewire.node, rewire.beside)]
        opaque = any(
            leaf.accesses.opaque for n in nodes for leaf in self.facts.graph.touching(n.path)
        )
        return opaque or all(node.kind == "loop" for node in nodes)

    def _held_back(self, candidate: Candidate) -> Refusal | None:
        """Why moving a single node gains nothing: what it follows on the way holds it back anyway."""
        rewire = candidate.composition[-1]
        if not isinstance(rewire, Rewire):
            return None
        node, graph = self.facts.graph.node(rewire.node), self.facts.graph
        if node.kind == "loop":
            return None
        copies = Preparations.of([item.text for item in candidate.composition])
        touched = copies.bound(node.path, graph.effective(node.path))
        for passed in between(self.hierarchy, rewire.node, rewire.beside)[:-1]:
            before = copies.bound(passed.path, graph.effective(passed.path))
            conflict = first_conflict(before, touched)
            if conflict is not None or graph.data_edges(passed.path, node.path):
                return Refusal(
                    rewire.name,
                    str(rewire.text),
                    f"expected a node that nothing on the way holds back, got {passed.path} before {node.path}",
                    f"Move {passed.path} instead.",
                    (passed.path, node.path),
                )
        return None

    def _without_room(self, candidate: Candidate) -> Refusal | None:
        """Memory, lanes, SM activity."""
        split = essence(candidate.composition)[0]
        if isinstance(split, TemporalSplit):
            found = memory_refusal(self.hierarchy, split, self.settings.memory)
            if found is not None:
                return found
        if isinstance(split, SpatialSplit | TemporalSplit):
            workers = self._place(split)
            found = lane_refusal(
                self.facts, workers, split.text, candidate.target, candidate.partner
            )
            if found is not None:
                return found
        return activity_refusal(
            self.facts,
            split.text,
            candidate.target,
            candidate.partner,
            self.settings.activity_slack,
        )

    def _illegal(self, composition: Composition) -> Refusal | None:
        text = describe(composition)
        if text not in self._legal:
            outcome = apply_all(composition, self.subject)
            found = outcome if isinstance(outcome, Refusal) else None
            if found is not None:
                found = self._with_evidence(found)
                advice = unlocking(composition, self.subject)
                if advice is not None:
                    found = replace(found, unlock=f"{found.unlock} {advice}")
            self._legal[text] = found
        return self._legal[text]

    def note_dependent(self, target: str) -> None:
        """Remember which loops around a target are kept in order by a state, and by which invocation."""
        for loop in self.facts.graph.ancestors(target):
            if loop.kind != "loop":
                continue
            split = TemporalSplit(loop.path, 2)
            whole = (split, Interleave(loop.path), Merge(loop.path))
            found = self._illegal(self._prepared(Candidate(target, "", whole)).composition)
            if (
                found is not None
                and found.transform == split.name
                and found.reason.startswith(_STATE)
            ):
                told = found.transform, found.subject, _without_numbers(found.reason)
                self._illegal_found.setdefault(told, found)

    def _seen_free(self, loop: str) -> bool:
        """Whether the trace showed no dependence that the declarations alone do not tell."""
        fact = self.facts.loops.get(loop)
        if fact is None or fact.free:
            return True
        return bool(fact.evidence) and all(e.state in self._storages for e in fact.evidence)

    def _with_evidence(self, refusal: Refusal) -> Refusal:
        """A dependent loop with what the trace showed: node, state, iteration and invocation."""
        fact = self.facts.loops.get(refusal.subject)
        if refusal.transform != TemporalSplit.name or fact is None:
            return refusal
        shown = next((item for item in fact.evidence if item.reader in refusal.nodes), None)
        return refusal if shown is None else replace(refusal, witness=shown.text)

    def _place(self, split: SpatialSplit | TemporalSplit) -> Workers:
        groups = {split.loop: split.groups}
        if isinstance(split, TemporalSplit):
            return place(self.hierarchy, {}, (), groups)
        return place(self.hierarchy, groups, ())

    def _apart(self, split: SpatialSplit | TemporalSplit, path: str) -> bool:
        """Whether the groups of a split have different engines for a node."""
        of = replicated_components if isinstance(split, TemporalSplit) else sharded_components
        own = set(of(self.hierarchy, split.loop))
        return all(leaf.component in own for leaf in self.facts.graph.leaves(path))

    def _mismatch_ns(self, candidate: Candidate) -> int:
        """|T(v) - T̂(w)|, delta: the partner as the composition leaves it [ns]."""
        partner_ns = self.facts.timings[candidate.partner].mean_ns
        split = essence(candidate.composition)[0]
        if isinstance(split, SpatialSplit):
            partner_ns = estimated_ns(self.facts, candidate.partner, split.groups)
        return abs(self.facts.timings[candidate.target].mean_ns - partner_ns)


def _with_copies(subject: Subject) -> tuple[Subject, frozenset[str]]:
    """The program with every storage copied that may be, and those storages."""
    copied: set[str] = set()
    leaf = next((node.path for node in subject.graph.leaves(subject.graph.root.path)), "")
    for copy in CopyOnBind.candidates(subject, leaf, 2):
        if copy.check(subject) is None:
            subject = copy.apply(subject).subject
            copied.add(copy.state)
    return subject, frozenset(copied)


def _without_numbers(reason: str) -> str:
    """The reason without group counts, so that the same refusal of 2 and 3 groups is told once."""
    return "".join(letter for letter in reason if not letter.isdigit())
