"""`plan`: choose a composition, or keep the native order, and say why.

Every candidate is priced alone; what gains is combined as in the paper and by the solver, and each
combination is priced as a whole. Keeping the native order is always a candidate.

Paper: §4.3, "Graph optimization"; Alg. 1, Combine, on predictions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rose_opt.combine import Choice, Combination, Combinations, combine
from rose_opt.composing import joined
from rose_opt.contention import MeasuredContention
from rose_opt.facts import Facts
from rose_opt.notes import notes
from rose_opt.plan import AlternativeRecord, Plan, PlanRefused, Predicted, Refusal, verify
from rose_opt.pricing import Priced, Pricer
from rose_opt.reasons import gained, keeping, milliseconds
from rose_opt.search import Candidates, candidates, describe
from rose_opt.settings import PlanSettings
from rose_opt.transforms import Composition, apply_all, parse_composition


def plan(
    facts: Facts,
    settings: PlanSettings | None = None,
    contention: MeasuredContention | None = None,
) -> Plan:
    """Plan the overlap of a recorded program.

    Args:
        facts: What the trace says.
        settings: Settings of the search.
        contention: How much nodes slow each other down, where that was measured.

    Returns:
        The plan with the least predicted iteration, or with the native order where none gains
        enough; the same for the same facts, settings and contention.

    Raises:
        PlanRefused: If a composition that was asked for is illegal.
    """
    settings = (settings or PlanSettings()).measured(facts.memory)
    cores = settings.cores or float(os.cpu_count() or 1)
    planner = _Planner(Pricer(facts, settings, cores, contention or MeasuredContention()))
    if settings.transforms is not None:
        return planner.forced(parse_composition(settings.transforms))
    return planner.searched()


@dataclass(frozen=True, slots=True)
class _Combined:
    """A combination and who found it, in words."""

    combination: Combination
    finders: list[str]


@dataclass(slots=True)
class _Tried:
    """What a search has priced, by text of the composition, and what it had to refuse."""

    priced: dict[str, Priced] = field(default_factory=dict[str, Priced])
    combined: dict[str, _Combined] = field(default_factory=dict[str, _Combined])
    refusals: dict[Refusal, None] = field(default_factory=dict[Refusal, None])

    def ranked(self) -> list[Priced]:
        """Best first; of equals, what was tried first."""
        return sorted(self.priced.values(), key=lambda item: item.iteration_ns)


class _Planner:
    """One search.

    Args:
        pricer: Prices compositions.
    """

    def __init__(self, pricer: Pricer) -> None:
        self.pricer = pricer
        self.facts = pricer.facts
        self.settings = pricer.settings

    def forced(self, composition: Composition) -> Plan:
        """The plan of one composition that was asked for.

        Raises:
            PlanRefused: If it is illegal.
        """
        outcome = apply_all(composition, self.pricer.subject)
        if isinstance(outcome, Refusal):
            raise PlanRefused(str(outcome))
        priced = self.pricer.price(composition)
        if isinstance(priced, Refusal):
            raise PlanRefused(str(priced))
        priced = self.pricer.closely_bounded(priced)
        native = self.pricer.native()
        tried = _Tried({describe(c.composition): c for c in (priced, native)})
        return self._plan(
            priced, tried, f"asked for; {gained(native.iteration_ns, priced.iteration_ns)}"
        )

    def searched(self) -> Plan:
        """The plan of the best composition, or of the native order."""
        found = candidates(self.facts, self.settings)
        tried = _Tried(refusals=dict.fromkeys(found.refusals))
        native = self._try((), tried)
        for candidate in found.found:
            self._try(candidate.composition, tried)
        self._combine(found, tried)
        native_ns = native.iteration_ns if native is not None else 0
        enough = (1 - self.settings.min_gain) * native_ns
        while (best := tried.ranked()[0]).iteration_ns < enough:
            closely = self.pricer.closely_bounded(best)
            tried.priced[describe(best.composition)] = closely
            if closely.iteration_ns == best.iteration_ns:
                return self._plan(closely, tried, gained(native_ns, closely.iteration_ns))
        overlaps = [item for item in tried.ranked() if item.composition]
        return self._plan(self.pricer.native(), tried, self._why_native(overlaps, found))

    def _try(self, composition: Composition, tried: _Tried) -> Priced | None:
        """Price a composition once."""
        text = describe(composition)
        if text not in tried.priced:
            outcome = self.pricer.price(composition)
            if isinstance(outcome, Refusal):
                tried.refusals[outcome] = None
                return None
            tried.priced[text] = outcome
        return tried.priced[text]

    def _combine(self, found: Candidates, tried: _Tried) -> None:
        """Price what the paper's greedy choice and the solver put together, and remember who did."""
        by_text = {describe(item.composition): item.composition for item in found.found}
        native_ns = self.pricer.native_ns
        choices = [
            Choice(text, item.target, native_ns - tried.priced[text].iteration_ns)
            for item in found.found
            if (text := describe(item.composition)) in tried.priced
        ]

        def together(chosen: Sequence[Choice]) -> Composition | None:
            return joined([by_text[choice.name] for choice in chosen], self.pricer.subject)

        def compatible(chosen: Sequence[Choice]) -> bool:
            made = together(chosen)
            return made is not None and not isinstance(self.pricer.placed(made), Refusal)

        combinations = combine(choices, compatible)
        for finder, combination in _found(combinations):
            made = together(combination.choices)
            if made is not None and self._try(made, tried) is not None:
                entry = tried.combined.setdefault(describe(made), _Combined(combination, []))
                entry.finders.append(finder)

    def _why_native(self, overlaps: Sequence[Priced], found: Candidates) -> str:
        kernel = next((k for item in overlaps for k in item.kernels.values()), None)
        best = overlaps[0].iteration_ns if overlaps else None
        pricer = self.pricer
        return keeping(pricer.native_ns, best, kernel, found.refusals, self.settings, pricer.cores)

    def _plan(self, chosen: Priced, tried: _Tried, reason: str) -> Plan:
        contention = self.pricer.contention
        draft = self.pricer.draft(chosen)
        result = replace(
            draft,
            orders=tuple(o for kernel in chosen.kernels.values() for o in kernel.orders()),
            predicted=Predicted(
                native_ns=self.pricer.native_ns,
                iteration_ns=chosen.iteration_ns,
                lower_bound_ns=chosen.lower_bound_ns,
                gap=round(1 - chosen.lower_bound_ns / chosen.iteration_ns, 6),
                bound_by=chosen.bound_by,
            ),
            alternatives=tuple(_record(item, tried.combined) for item in tried.ranked()),
            refusals=tuple(tried.refusals),
            settings={**draft.settings, "contention": contention.to_data()},
            reason=reason,
            notes=tuple(notes(self.facts, chosen, contention, self.settings)),
        )
        verify(result)
        return result


def _found(found: Combinations) -> Iterable[tuple[str, Combination]]:
    """Combinations with the words for who found them."""
    if found.greedy.choices:
        yield "the greedy choice", found.greedy
    for number, combination in enumerate(found.solver, 1):
        yield f"the solver's no. {number}", combination


def _record(item: Priced, combined: Mapping[str, _Combined]) -> AlternativeRecord:
    told = [
        f"{kernel.groups} groups of {kernel.loop}: {kernel.duration_ns / kernel.steps / 1e6:.1f} ms per step, "
        f"native {kernel.native_step_ns / 1e6:.1f} ms"
        for kernel in item.kernels.values()
    ]
    told += [
        f"{chained.groups} chains of {chained.loop}: {milliseconds(chained.duration_ns)} per call"
        for chained in item.chains.values()
    ]
    entry = combined.get(describe(item.composition))
    if entry is not None:
        saved = milliseconds(entry.combination.estimated_ns)
        told.append(f"{' and '.join(entry.finders)}, estimated to save {saved}")
    return AlternativeRecord(
        tuple(str(transform.text) for transform in item.composition),
        item.iteration_ns,
        item.lower_bound_ns,
        "; ".join(told) if item.composition else "native order",
    )
