"""What may be done next to a plan: the candidates of the search, as plans that can be tried.

This is the side of Algorithm 1 that knows facts and transforms. Every alternative is the present
composition with one candidate more, checked for legality and priced like any other plan.

Does not handle: taking back what an earlier round accepted.

Paper: §4.3.2, §4.3.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rose_opt.combine import Choice, CombineLimits, combine
from rose_opt.composing import joined
from rose_opt.contention import MeasuredContention
from rose_opt.facts import Facts
from rose_opt.facts.windows import ELIGIBLE_BELOW, FIRST_TIER_BELOW, window_score
from rose_opt.graph import within
from rose_opt.lanes import opened_plan
from rose_opt.measure import Alternative, AlternativeTrial, Composed, IterationMeasurement
from rose_opt.optimize import plan as make_plan
from rose_opt.phases import steps
from rose_opt.plan import Plan, PlanRefused
from rose_opt.search import Candidates, candidates, describe
from rose_opt.search import targets as ranked_targets
from rose_opt.settings import PlanSettings
from rose_opt.transforms import Composition, Subject, parse_composition


class PlanSearch:
    """Implements `rose_opt.measure.GraphSearch` over the facts of a trace.

    Args:
        facts: What the trace says.
        settings: Settings of the search.
        max_alternatives: Alternatives tried per target, L.
        limits: Memory and interactions of combinations.
        contention: How much nodes slow each other down, where that was measured.
    """

    def __init__(
        self,
        facts: Facts,
        settings: PlanSettings | None = None,
        max_alternatives: int = 4,  # ours: the paper gives no L
        limits: CombineLimits | None = None,
        contention: MeasuredContention | None = None,
    ) -> None:
        self.facts = facts
        self.settings = (settings or PlanSettings()).measured(facts.memory)
        self.max_alternatives = max_alternatives
        self.limits = limits or CombineLimits()
        self.contention = contention or MeasuredContention()
        self._subject = Subject.of(facts)
        self._candidates: Candidates | None = None
        self._plans: dict[str, Plan | None] = {}

    def native(self) -> Plan:
        """The plan that keeps the native order: where the search begins."""
        made = self._plan(())
        assert made is not None, "the native order is always legal"
        return made

    def opened(self, plan: Plan) -> Plan | None:
        """The plan with composites opened whose phases could overlap on a device, if there are any."""
        opened = opened_plan(plan, self.facts)
        if opened is not None:
            return opened
        # Alone, a split of one device's phases gains nothing in a model, and is no part of the plan.
        splits = (
            opened_plan(item.plan, self.facts)
            for target in sorted(self.facts.on_device)
            for item in self.alternatives(plan, target)
        )
        return next((made for made in splits if made is not None), None)

    # GraphSearch --------------------------------------------------------------------------------

    def targets(self, plan: Plan, reference: IterationMeasurement, limit: int) -> Sequence[str]:
        """Leaf nodes by rank, re-ranked where the reference iteration sampled activity."""
        del plan
        activity = reference.sm_activity
        ranked = ranked_targets(self.facts)
        if not activity:
            return ranked[:limit]

        def order(path: str) -> tuple[bool, float]:
            score = window_score(self.facts.timings[path].total_ns, activity[path])
            return activity[path] >= FIRST_TIER_BELOW, -score

        eligible = [path for path in ranked if activity.get(path, 1.0) < ELIGIBLE_BELOW]
        return sorted(eligible, key=order)[:limit]

    def alternatives(self, plan: Plan, target: str) -> Sequence[Alternative]:
        """The first valid candidates that change something around the target."""
        found = (
            Alternative(target, describe(candidate), made)
            for candidate in self._around(target)
            if (made := self._with(plan, candidate)) is not None
        )
        return tuple(itertools.islice(found, self.max_alternatives))

    def comparison_graph(self, plan: Plan, alternatives: Sequence[Alternative]) -> str:
        """The lowest common ancestor whose body holds all nodes that the alternatives change."""
        del plan
        paths = [
            path for item in alternatives for path in self._changed(parse_composition(item.text))
        ]
        around = [list(self._above(path)) for path in paths]
        return next(path for path in around[0] if all(path in other for other in around))

    def runs_per_iteration(self, comparison_graph: str) -> float:
        """Runs of the body of a node in one iteration."""
        timings, root = self.facts.timings, self.facts.graph.root.path
        if comparison_graph == root:
            return 1.0
        per_iteration = timings[comparison_graph].count / timings[root].count
        return per_iteration * steps(self.facts, comparison_graph)

    def combine(self, plan: Plan, trials: Sequence[AlternativeTrial]) -> Sequence[Composed]:
        """The greedy combination, then the solver's better ones."""
        choices = [
            Choice(
                trial.alternative.text,
                trial.alternative.target,
                trial.gain_ns,
                trial.alternative.memory_bytes,
            )
            for trial in trials
        ]

        def together(chosen: Sequence[Choice]) -> Composition:
            return tuple(t for choice in chosen for t in parse_composition(choice.name))

        found = combine(
            choices,
            lambda chosen: self._legal(plan, together(chosen)) is not None,
            self.limits,
        )
        return tuple(
            Composed(made, item.names, item.estimated_ns, item.by)
            for item in found.in_order
            if (made := self._with(plan, together(item.choices))) is not None
        )

    # Compositions -------------------------------------------------------------------------------

    def _around(self, target: str) -> Iterator[Composition]:
        if self._candidates is None:
            self._candidates = candidates(self.facts, self.settings)
        # Its own candidates first; then what was found about others and moves something around it.
        own = [candidate.composition for candidate in self._candidates.of(target)]
        every = dict.fromkeys((*own, *self._candidates.splits, *self._candidates.rewires))
        for candidate in every:
            if any(within(target, path) for path in self._changed(candidate)):
                yield candidate

    def _changed(self, composition: Composition) -> Iterator[str]:
        """Recorded nodes that a composition names."""
        for transform in composition:
            for _, value in transform.text.arguments:
                if value in self.facts.graph:
                    yield value

    def _above(self, path: str) -> Iterator[str]:
        """Nodes whose body holds `path`, nearest first; the root holds itself."""
        above = [node.path for node in self.facts.graph.ancestors(path)]
        yield from above or [self.facts.graph.root.path]

    def _with(self, plan: Plan, candidate: Composition) -> Plan | None:
        """The plan with a candidate more, or nothing where that is no valid plan or no change."""
        composition = self._legal(plan, candidate)
        return None if composition is None else self._plan(composition)

    def _legal(self, plan: Plan, candidate: Composition) -> Composition | None:
        """The plan's composition and the candidate, in an order in which both are legal."""
        return joined((parse_composition(plan.transforms), candidate), self._subject)

    def _plan(self, composition: Composition) -> Plan | None:
        text = describe(composition)
        if text not in self._plans:
            try:
                forced = replace(self.settings, transforms=text)
                self._plans[text] = make_plan(self.facts, forced, self.contention)
            except PlanRefused:
                self._plans[text] = None
        return self._plans[text]
