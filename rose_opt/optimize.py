"""`plan`: choose a composition, or keep the native order, and say why.

Paper: §4.3, "Graph optimization"; keeping the native order is always a candidate.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rose_opt.chains import ChainSchedule, schedule_chains
from rose_opt.facts import Facts
from rose_opt.iteration import Price, Pricing
from rose_opt.kernel import GLUE, Kernel, solve_kernel
from rose_opt.phases import (
    native_iteration_ns,
    native_mode,
    recorded_ns,
    runs_whole,
    shard_mode,
    whole_probe,
)
from rose_opt.placement import Workers, place
from rose_opt.plan import (
    AlternativeRecord,
    PhaseThreads,
    Plan,
    PlanComponent,
    PlanRefused,
    Predicted,
    Refusal,
    verify,
)
from rose_opt.reasons import gained, keeping, milliseconds
from rose_opt.search import Candidates, candidates, combinations, describe
from rose_opt.settings import PlanSettings
from rose_opt.transforms import (
    Composition,
    Rewire,
    SpatialSplit,
    Subject,
    TemporalSplit,
    apply_all,
    parse_composition,
)

_UNSTEADY = 1.5  # ours: ratio of two measurements of one node that cannot both be right


@dataclass(frozen=True, slots=True)
class Priced:
    """A legal composition with its prediction.

    Attributes:
        composition: The transforms; none for the native order.
        workers: Where components live.
        kernels: Schedules of the loops that are split by rows, by path.
        price: What it is expected to cost.
        chains: Schedules of the loops that are in chains, by path.
    """

    composition: Composition
    workers: Workers
    kernels: Mapping[str, Kernel]
    price: Price
    chains: Mapping[str, ChainSchedule] = field(default_factory=dict[str, ChainSchedule])

    @property
    def splits(self) -> dict[str, int]:
        """Groups by split loop."""
        return {t.loop: t.groups for t in self.composition if isinstance(t, SpatialSplit)}


def plan(facts: Facts, settings: PlanSettings | None = None) -> Plan:
    """Plan the overlap of a recorded program.

    Args:
        facts: What the trace says.
        settings: Settings of the search.

    Returns:
        The plan with the least predicted iteration, or with the native order where none gains
        enough; the same for the same facts and settings.

    Raises:
        PlanRefused: If a composition that was asked for is illegal.
    """
    settings = settings or PlanSettings()
    cores = settings.cores or float(os.cpu_count() or 1)
    planner = _Planner(facts, settings, cores)
    if settings.transforms is not None:
        return planner.forced(parse_composition(settings.transforms))
    return planner.searched()


class _Planner:
    """One search: prices compositions and remembers the kernels it has solved.

    Args:
        facts: What the trace says.
        settings: Settings of the search.
        cores: Cores of the machine.
    """

    def __init__(self, facts: Facts, settings: PlanSettings, cores: float) -> None:
        self.facts = facts
        self.settings = settings
        self.cores = cores
        self.subject = Subject.of(facts)
        self._solved: dict[tuple[str, int, tuple[str, ...]], Kernel | Refusal] = {}

    def forced(self, composition: Composition) -> Plan:
        """The plan of one composition that was asked for.

        Raises:
            PlanRefused: If it is illegal.
        """
        outcome = apply_all(composition, self.subject)
        if isinstance(outcome, Refusal):
            raise PlanRefused(str(outcome))
        priced = self.price(composition)
        if isinstance(priced, Refusal):
            raise PlanRefused(str(priced))
        native = self.native()
        reason = f"asked for; {gained(native.price, priced.price)}"
        return self._plan(priced, (priced, native), (), reason)

    def searched(self) -> Plan:
        """The plan of the best composition, or of the native order."""
        found = candidates(self.facts, self.settings)
        priced: list[Priced] = []
        refusals = dict.fromkeys(found.refusals)
        for composition in combinations(found):
            outcome = self.price(composition)
            if isinstance(outcome, Refusal):
                refusals[outcome] = None
            else:
                priced.append(outcome)
        ranked = sorted(priced, key=lambda item: item.price.iteration_ns)
        native = next(item for item in priced if not item.composition)
        best = ranked[0]
        enough = (1 - self.settings.min_gain) * native.price.iteration_ns
        if best.price.iteration_ns < enough:
            return self._plan(best, ranked, tuple(refusals), gained(native.price, best.price))
        overlaps = [item for item in ranked if item.composition]
        return self._plan(native, ranked, tuple(refusals), self._why_native(overlaps, found))

    def native(self) -> Priced:
        """The program as it is."""
        recorded = native_iteration_ns(self.facts, self.cores)
        return Priced((), Workers(components=self._components()), {}, Price(recorded, recorded))

    def price(self, composition: Composition) -> Priced | Refusal:
        """What a legal composition is expected to cost, or why its bits do not allow it."""
        if not composition:
            return self.native()
        splits = {t.loop: t.groups for t in composition if isinstance(t, SpatialSplit)}
        chained = {t.loop: t.groups for t in composition if isinstance(t, TemporalSplit)}
        rewires = tuple((t.node, t.beside) for t in composition if isinstance(t, Rewire))
        try:
            workers = place(self.subject.hierarchy, splits, rewires, chained)
        except ValueError as error:
            return Refusal(composition[0].name, describe(composition), str(error))
        kernels: dict[str, Kernel] = {}
        for loop, groups in splits.items():
            kernel = self._kernel(loop, groups, workers)
            if isinstance(kernel, Refusal):
                return kernel
            kernels[loop] = kernel
        chains = {
            loop: schedule_chains(self.facts, loop, groups, workers, self.cores, self.settings)
            for loop, groups in chained.items()
        }
        pricing = Pricing(
            self.facts, workers, kernels, rewires, self.cores, self.settings, chains=chains
        )
        return Priced(composition, workers, kernels, pricing.iteration(), chains)

    def _kernel(self, loop: str, groups: int, workers: Workers) -> Kernel | Refusal:
        used = {leaf.component or "" for leaf in self.facts.graph.leaves(loop)}
        key = (loop, groups, tuple(sorted(name for name in used if workers.remote(name))))
        if key not in self._solved:
            self._solved[key] = solve_kernel(
                self.facts, loop, groups, workers, self.cores, self.settings
            )
        return self._solved[key]

    def _components(self) -> tuple[str, ...]:
        return tuple(component.name for component in self.subject.hierarchy.components)

    def _why_native(self, overlaps: list[Priced], found: Candidates) -> str:
        kernel = next((k for item in overlaps for k in item.kernels.values()), None)
        native = native_iteration_ns(self.facts, self.cores)
        best = overlaps[0].price if overlaps else None
        return keeping(native, best, kernel, found.refusals, self.settings, self.cores)

    # The plan -----------------------------------------------------------------------------------

    def _plan(
        self,
        chosen: Priced,
        ranked: Iterable[Priced],
        refusals: tuple[Refusal, ...],
        reason: str,
    ) -> Plan:
        hierarchy = self.subject.hierarchy
        price = chosen.price
        result = Plan(
            rose_version=_version(),
            graph_fingerprint=self.facts.graph.fingerprint(),
            nodes=hierarchy.nodes,
            components=tuple(self._component(c, chosen.workers) for c in hierarchy.components),
            edges=hierarchy.edges,
            transforms=tuple(transform.text for transform in chosen.composition),
            rows={loop: self.subject.rows[loop] for loop in chosen.splits},
            workers=chosen.workers.specs(),
            threads=_threads(chosen.kernels.values()),
            cores=self.cores,
            core_demand=self._core_demand(chosen),
            orders=tuple(o for kernel in chosen.kernels.values() for o in kernel.orders()),
            predicted=Predicted(
                native_ns=native_iteration_ns(self.facts, self.cores),
                iteration_ns=price.iteration_ns,
                lower_bound_ns=price.lower_bound_ns,
                gap=round(1 - price.lower_bound_ns / price.iteration_ns, 6),
            ),
            alternatives=tuple(_record(item) for item in ranked),
            refusals=refusals,
            settings={**self.settings.to_data(), "cores": self.cores},
            kept_native=not chosen.composition,
            reason=reason,
            equivalence=_equivalence(chosen.kernels.values()),
            notes=self._notes(chosen.kernels.values()),
        )
        verify(result)
        return result

    def _component(self, component: PlanComponent, workers: Workers) -> PlanComponent:
        return replace(
            component,
            shards=workers.shards.get(component.name, 1),
            replicas=workers.replicas.get(component.name, 1),
        )

    def _core_demand(self, chosen: Priced) -> dict[str, float]:
        """Cores of every task: in a split or on a shard, of one group; elsewhere, natively."""
        demand: dict[str, float] = {}
        for node in self.facts.graph.nodes:
            if node.kind != "exec" or (node.composite and not runs_whole(self.facts, node)):
                continue
            shards = chosen.workers.shards.get(node.component or "")
            mode = native_mode(self.facts, node.path, self.cores)
            if shards is not None:
                mode = shard_mode(self.facts, node.path, shards, self.cores)
            demand[node.path] = mode.cores
        for kernel in chosen.kernels.values():
            demand.update(
                {path: mode.cores for path, mode in kernel.chosen.items() if path != GLUE}
            )
        return demand

    def _unsteady(self) -> Iterator[str]:
        """Nodes that took much longer in the trace than when probed, or the other way round."""
        for node in self.facts.graph.nodes:
            probed = whole_probe(self.facts, node.path)
            above = node.parent is not None and whole_probe(self.facts, node.parent) is not None
            if probed is None or above:
                continue
            recorded = recorded_ns(self.facts, node.path)
            if not 1 / _UNSTEADY < recorded / probed.duration_ns < _UNSTEADY:
                yield (
                    f"{node.path} took {milliseconds(recorded)} in the trace and "
                    f"{milliseconds(probed.duration_ns)} when probed: the machine was busy with something "
                    "else during one of them. The probe is used; record again on a quiet machine."
                )

    def _notes(self, kernels: Iterable[Kernel]) -> tuple[str, ...]:
        notes = [*self._unsteady()]
        if self.facts.sampling is not None:
            notes.append(
                f"Durations, loop kinds and data edges are {self.facts.sampling}. Record without steps "
                "to see what happens in the others."
            )
        for kernel in kernels:
            if kernel.estimated:
                notes.append(
                    f"No probes of {', '.join(kernel.estimated)}: a part of the rows is taken to cost the "
                    f"midpoint between 1/{kernel.groups} and all of the recorded duration, and its "
                    "rows were not compared with the whole batch. Run rose_exec.probe for measured "
                    "durations."
                )
        return tuple(notes)


def _record(item: Priced) -> AlternativeRecord:
    note = "; ".join(
        f"{kernel.groups} groups of {kernel.loop}: {kernel.duration_ns / kernel.steps / 1e6:.1f} ms per step, "
        f"native {kernel.native_step_ns / 1e6:.1f} ms"
        for kernel in item.kernels.values()
    )
    note += "; ".join(
        f"{chained.groups} chains of {chained.loop}: {milliseconds(chained.duration_ns)} per call"
        for chained in item.chains.values()
    )
    return AlternativeRecord(
        tuple(str(transform.text) for transform in item.composition),
        item.price.iteration_ns,
        item.price.lower_bound_ns,
        note if item.composition else "native order",
    )


def _threads(kernels: Iterable[Kernel]) -> tuple[PhaseThreads, ...]:
    return tuple(
        PhaseThreads(path, mode.threads, grouped=True)
        for kernel in kernels
        for path, mode in kernel.chosen.items()
        if mode.threads is not None
    )


def _equivalence(kernels: Iterable[Kernel]) -> str:
    seen = [kernel.identical for kernel in kernels]
    return "reassociated" if False in seen else "unverified" if None in seen else "exact"


def _version() -> str:
    try:
        return importlib.metadata.version("rose-rl")
    except importlib.metadata.PackageNotFoundError:
        return "0"
