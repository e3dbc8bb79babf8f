"""What compositions cost: where they put components, how their loops run, and the least they can take.

Paper: §4.3.3, "Evaluating alternatives" (predicted here, measured later).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rose_opt.chains import ChainSchedule, schedule_chains
from rose_opt.contention import MeasuredContention
from rose_opt.copying import CopyCost, copy_cost
from rose_opt.facts import Facts
from rose_opt.iteration import Pricing
from rose_opt.kernel import GLUE, Kernel, solve_kernel
from rose_opt.lower_bound import Bound, LowerBound
from rose_opt.phases import runs_whole
from rose_opt.placement import INLINE, Workers, place
from rose_opt.plan import PhaseThreads, Plan, PlanComponent, Preparations, PrivateCopy, Refusal
from rose_opt.search import describe
from rose_opt.settings import PlanSettings
from rose_opt.transforms import Composition, Rewire, SpatialSplit, Subject, TemporalSplit
from rose_opt.ways import native_iteration_ns, native_mode, shard_mode


@dataclass(frozen=True, slots=True)
class Priced:
    """A legal composition with its prediction.

    Attributes:
        composition: The transforms; none for the native order.
        workers: Where components live.
        kernels: Schedules of the loops that are split by rows, by path.
        chains: Schedules of the loops that are in chains, by path.
        iteration_ns: Predicted iteration [ns].
        lower_bound_ns: No legal execution with these workers takes less [ns].
        bound_by: What makes that bound.
    """

    composition: Composition
    workers: Workers
    kernels: Mapping[str, Kernel] = field(default_factory=dict[str, Kernel])
    chains: Mapping[str, ChainSchedule] = field(default_factory=dict[str, ChainSchedule])
    iteration_ns: int = 0
    lower_bound_ns: int = 0
    bound_by: str = ""

    @property
    def splits(self) -> dict[str, int]:
        """Groups by loop that is split by rows."""
        return {t.loop: t.groups for t in self.composition if isinstance(t, SpatialSplit)}

    def bounded(self, bound: Bound) -> Priced:
        """The same with a bound; a prediction below it would be wrong."""
        if bound.ns <= self.lower_bound_ns:
            return self
        return replace(
            self,
            iteration_ns=max(self.iteration_ns, bound.ns),
            lower_bound_ns=bound.ns,
            bound_by=bound.by,
        )


class Pricer:
    """Prices compositions of one program and remembers the kernels it has solved.

    Args:
        facts: What the trace says.
        settings: Settings of the search.
        cores: Cores of the machine.
        contention: How much nodes slow each other down, where that was measured.
    """

    def __init__(
        self, facts: Facts, settings: PlanSettings, cores: float, contention: MeasuredContention
    ) -> None:
        self.facts = facts
        self.settings = settings
        self.cores = cores
        self.contention = contention
        self.subject = Subject.of(facts)
        self.native_ns = native_iteration_ns(facts, cores)
        self._bound = LowerBound(facts, settings, cores, contention.kappa)
        self._solved: dict[tuple[str, int, tuple[str, ...]], Kernel | Refusal] = {}

    def native(self) -> Priced:
        """The program as it is."""
        names = tuple(component.name for component in self.subject.hierarchy.components)
        workers = Workers(components=names)
        return Priced(
            (),
            workers,
            iteration_ns=self.native_ns,
            lower_bound_ns=self.native_ns,
            bound_by="the native order (one node after the other)",
        )

    def price(self, composition: Composition) -> Priced | Refusal:
        """What a legal composition is expected to cost, or why it cannot be placed or keep its bits."""
        if not composition:
            return self.native()
        workers = self.placed(composition)
        if isinstance(workers, Refusal):
            return workers
        kernels: dict[str, Kernel] = {}
        chains: dict[str, ChainSchedule] = {}
        for transform in composition:
            if isinstance(transform, SpatialSplit):
                kernel = self._kernel(transform.loop, transform.groups, workers)
                if isinstance(kernel, Refusal):
                    return kernel
                kernels[transform.loop] = kernel
            elif isinstance(transform, TemporalSplit):
                chains[transform.loop] = schedule_chains(
                    self.facts,
                    transform.loop,
                    transform.groups,
                    workers,
                    self.cores,
                    self.settings,
                    self.contention.kappa,
                )
        rewires = tuple((t.node, t.beside) for t in composition if isinstance(t, Rewire))
        pricing = Pricing(
            self.facts,
            workers,
            kernels,
            rewires,
            self.cores,
            self.settings,
            chains=chains,
            kappa=self.contention.kappa,
        )
        made = Priced(composition, workers, kernels, chains, pricing.iteration_ns())
        return made.bounded(self._bound.of(self.draft(made)))

    def closely_bounded(self, priced: Priced) -> Priced:
        """The same with the best bound there is, which takes a while for large programs."""
        if not priced.composition:
            return priced
        return priced.bounded(self._bound.of(self.draft(priced), closely=True))

    def placed(self, composition: Composition) -> Workers | Refusal:
        """Where a composition puts components, or why they cannot all have what they need."""
        splits = {t.loop: t.groups for t in composition if isinstance(t, SpatialSplit)}
        chained = {t.loop: t.groups for t in composition if isinstance(t, TemporalSplit)}
        rewires = tuple((t.node, t.beside) for t in composition if isinstance(t, Rewire))
        try:
            preparations = Preparations.of([transform.text for transform in composition])
            workers = place(self.subject.hierarchy, splits, rewires, chained, preparations)
        except ValueError as error:
            return Refusal(composition[0].name, describe(composition), str(error))
        most = self.settings.memory.max_instances
        if workers.copies and most is not None and most < 2:
            name = workers.copies[0].component
            return Refusal(
                composition[0].name,
                describe(composition),
                f"expected at most {most} whole instance of {name}, got 2 (its readers work on a copy)",
                "Allow them with --max-instances 2 if a copy fits in memory.",
            )
        sizes = [self._copy_cost(copy) for copy in workers.copies]
        gpu, host = (sum(getattr(s, n) for s in sizes) for n in ("gpu_bytes", "host_bytes"))
        shortage = self.settings.memory.shortage(workers.replicas, gpu, host)
        if shortage is not None:
            return Refusal(
                composition[0].name,
                describe(composition),
                shortage,
                "Split into fewer chains, or only one of the loops."
                if workers.replicas
                else "Keep the native order, or make what is copied smaller.",
            )
        return workers

    def _copy_cost(self, copy: PrivateCopy) -> CopyCost:
        return copy_cost(self.facts, self.settings.memory, self.settings.dispatch_ns, copy)

    def draft(self, priced: Priced) -> Plan:
        """The plan of a composition: all that runs, and nothing about what it costs."""
        hierarchy = self.subject.hierarchy
        return Plan(
            rose_version=_version(),
            graph_fingerprint=self.facts.graph.fingerprint(),
            nodes=hierarchy.nodes,
            components=tuple(_component(c, priced.workers) for c in hierarchy.components),
            edges=hierarchy.edges,
            transforms=tuple(transform.text for transform in priced.composition),
            rows={loop: self.subject.rows[loop] for loop in priced.splits},
            workers=priced.workers.specs(),
            threads=_threads(priced.kernels.values()),
            cores=self.cores,
            core_demand=self._core_demand(priced),
            settings={**self.settings.to_data(), "cores": self.cores},
            kept_native=not priced.composition,
            equivalence=_equivalence(priced.kernels.values()),
        )

    def _kernel(self, loop: str, groups: int, workers: Workers) -> Kernel | Refusal:
        leaves = self.facts.graph.leaves(loop)
        homes = {workers.worker(leaf.component or "", 0, leaf.path) for leaf in leaves}
        key = (loop, groups, tuple(sorted(homes - {INLINE})))
        if key not in self._solved:
            self._solved[key] = solve_kernel(
                self.facts, loop, groups, workers, self.cores, self.settings, self.contention.kappa
            )
        return self._solved[key]

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


def _component(component: PlanComponent, workers: Workers) -> PlanComponent:
    return replace(
        component,
        shards=workers.shards.get(component.name, 1),
        replicas=workers.replicas.get(component.name, 1),
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
