"""The iteration under a composition: kernels where loops are split, a flat model where loops overlap.

Everything that a composition leaves alone costs what it was recorded to cost, glue included; the
prediction changes only by what the composition changes.

Paper: §4.3.3, "Evaluating alternatives" (predicted here, measured later).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rose_opt.chains import ChainSchedule
from rose_opt.contention import contention_between
from rose_opt.copying import CopyCost, copy_cost
from rose_opt.dispatch import activities_ns
from rose_opt.facts import Facts
from rose_opt.graph import within
from rose_opt.kernel import Kernel
from rose_opt.phases import calls_per_run, recorded_ns, runs_whole, steps
from rose_opt.placement import INLINE, Workers
from rose_opt.plan import PrivateCopy, between
from rose_opt.schedule import Capacity, Mode
from rose_opt.schedule.activities import Activity, FlatProblem, Predecessor
from rose_opt.schedule.flat import solve_flat
from rose_opt.schedule.model import LEAST_RATE, Kappa
from rose_opt.schedule.solver import SolverSettings
from rose_opt.settings import PlanSettings
from rose_opt.simulator.rates import Contention
from rose_opt.transforms import Subject
from rose_opt.ways import native_iteration_ns, native_mode, shard_mode

_LIMITS = SolverSettings(deterministic_s=4.0, wall_s=60.0, gap=0.005)
"""Work per region: counted, not timed, so that the same trace gives the same plan. # ours"""

_BLOCKS = 64  # ours: a loop of more iterations is scheduled in that many blocks of iterations


@dataclass(frozen=True, slots=True)
class Pricing:
    """Prices nodes under one composition.

    Attributes:
        facts: What is known.
        workers: Where components live.
        kernels: Schedules of the loops that are split by rows, by path.
        rewires: Pairs ``(node, beside)``.
        cores: Cores of the machine.
        settings: Settings of the search.
        chains: Schedules of the loops that are in chains, by path.
        kappa: Contention by node path; empty for none.
    """

    facts: Facts
    workers: Workers
    kernels: Mapping[str, Kernel]
    rewires: tuple[tuple[str, str], ...]
    cores: float
    settings: PlanSettings
    chains: Mapping[str, ChainSchedule] = field(default_factory=dict[str, ChainSchedule])
    kappa: Kappa = field(default_factory=dict[tuple[str, str], float])

    def iteration_ns(self) -> int:
        """One iteration [ns]."""
        root = self.facts.graph.root.path
        recorded = native_iteration_ns(self.facts, self.cores)
        base = native_mode(self.facts, root, self.cores).duration_ns
        planned = self.duration_ns(root) - base
        return max(round(recorded + planned), 1)

    def duration_ns(self, path: str) -> float:
        """One invocation of a node, with everything below it that the composition changes [ns]."""
        facts, node = self.facts, self.facts.graph.node(path)
        if path in self.kernels:
            return self.kernels[path].duration_ns
        if path in self.chains:
            return self.chains[path].duration_ns
        native = native_mode(facts, path, self.cores).duration_ns
        if node.kind == "exec" and (not node.composite or runs_whole(facts, node)):
            return self._unit_ns(path, node.component or "", native)
        per_call = steps(facts, path)
        change = 0.0
        passed: set[str] = set()
        for region in self._regions_of(path):
            passed.update(region)
            recorded = sum(native_mode(facts, child, self.cores).duration_ns for child in region)
            change += self._region_ns(region) - recorded
        for child in facts.graph.children(path):
            if child.path not in passed:
                calls = calls_per_run(facts, child.path, path)
                recorded = native_mode(facts, child.path, self.cores).duration_ns
                copied = sum(cost.save_ns + cost.load_ns for _, cost in self._copies(child.path))
                change += calls * (copied + self.duration_ns(child.path) - recorded)
        return native + per_call * change

    def _unit_ns(self, path: str, component: str, native_ns: int) -> float:
        """A task outside any split: as recorded, or on all shards side by side."""
        if component not in self.workers.shards:
            remote = self.workers.remote(component, path)
            return native_ns + (self.settings.dispatch_ns if remote else 0)
        shards = self.workers.shards[component]
        best = shard_mode(self.facts, path, shards, self.cores)
        crowded = shards * best.duration_ns * best.cores / self.cores
        rate = max(1 - (shards - 1) * self.kappa.get((path, path), 0.0), LEAST_RATE)
        return max(best.duration_ns / rate, crowded) + self.settings.dispatch_ns

    def _regions_of(self, parent: str) -> Iterator[tuple[str, ...]]:
        """Runs of siblings below `parent` within which a rewire lets something overlap."""
        children = [child.path for child in self.facts.graph.children(parent)]
        spans = sorted(
            (
                children.index(self.facts.graph.node(beside).path),
                children.index(self.facts.graph.node(node).path),
            )
            for node, beside in self.rewires
            if self.facts.graph.node(node).parent == parent
        )
        while spans:
            first, last = spans.pop(0)
            while spans and spans[0][0] <= last:
                last = max(last, spans.pop(0)[1])
            yield tuple(children[first : last + 1])

    def _region_ns(self, region: tuple[str, ...]) -> int:
        """Duration of siblings that may overlap: at best, or as dispatched where they slow each other."""
        problem = FlatProblem(
            tuple(self._activities(region)), Capacity(cores=self.cores), shared_modes=False
        )
        if not self.kappa:
            return solve_flat(problem, _LIMITS).makespan_ns
        paths = {activity.label for activity in problem.activities}
        between = contention_between(self.facts, self.kappa, paths)
        return activities_ns(problem, Contention(between))

    # The flat model of a region -----------------------------------------------------------------

    def _activities(self, region: tuple[str, ...]) -> Iterator[Activity]:
        """Activities of the region in native order; each branch and the main strand is a chain."""
        beside = self._beside(region)
        branches = {branch for group in beside.values() for branch in group}
        main_last: list[str] = []
        ends: dict[str, list[str]] = {}
        for path in region:
            before = list(main_last)
            before += [ends[b][-1] for b in ends if b in branches and b not in beside[path]]
            names: list[str] = []
            for copy, cost in self._copies(path):
                saved, loaded = f"{copy.label}#save", f"{copy.label}#load"
                home = self.workers.worker(copy.component)
                waits = tuple(map(Predecessor, before))
                yield Activity(saved, (home,), (Mode(cost.save_ns, cores=1.0),), waits)
                waits = (Predecessor(saved),)
                yield Activity(loaded, (copy.label,), (Mode(cost.load_ns, cores=1.0),), waits)
                main_last = [saved]  # what writes the state waits for that
                before = [*before, loaded]
            for name, index, mode, workers in self._pieces(path):
                waits = [names[-1]] if names else before
                waits = [*waits, *self._needed(path, index, ends)]
                unique = tuple(Predecessor(item) for item in dict.fromkeys(waits))
                yield Activity(name, tuple(sorted(workers)), (mode,), unique, kind=mode.label)
                names.append(name)
            ends[path] = self._iteration_ends(path, names)
            if path not in branches:
                main_last = [names[-1]]

    def _copies(self, path: str) -> Iterator[tuple[PrivateCopy, CopyCost]]:
        """What is copied right before a node starts, and what that costs."""
        for copy in self.workers.copies:
            if copy.readers == path:
                yield (
                    copy,
                    copy_cost(self.facts, self.settings.memory, self.settings.dispatch_ns, copy),
                )

    def _beside(self, region: tuple[str, ...]) -> dict[str, frozenset[str]]:
        """Branches that each sibling need not wait for."""
        hierarchy = Subject.of(self.facts).hierarchy
        result: dict[str, set[str]] = {path: set() for path in region}
        for node, branch in self.rewires:
            if node in result:
                for passed in between(hierarchy, node, branch):
                    result[passed.path].add(branch)
        return {path: frozenset(branches) for path, branches in result.items()}

    def _pieces(self, path: str) -> Iterator[tuple[str, int, Mode, frozenset[str]]]:
        """Name, iteration, mode and workers of each activity of one sibling, in order."""
        node = self.facts.graph.node(path)
        children = self.facts.graph.children(path)
        if node.kind != "loop" or path in self.kernels or path in self.chains or not children:
            yield f"{path}@0", 0, self._mode(path, 1.0, 0.0), self._workers(path)
            return
        count = max(round(steps(self.facts, path)), 1)
        inner = [(child.path, calls_per_run(self.facts, child.path, path)) for child in children]
        covered = sum(recorded_ns(self.facts, child) * calls for child, calls in inner)
        glue = max(recorded_ns(self.facts, path) / count - covered, 0.0)
        size = self._block(path)
        for index in range(-(-count // size)):
            runs = min(size, count - index * size)
            for position, (child, calls) in enumerate(inner):
                mode = self._mode(child, calls * runs, 0.0 if position else glue * runs)
                yield f"{child}@{index}", index, mode, self._workers(child)

    def _block(self, path: str) -> int:
        """Iterations of a loop that one block of activities stands for."""
        return -(-max(round(steps(self.facts, path)), 1) // _BLOCKS)

    def _mode(self, path: str, calls: float, extra_ns: float) -> Mode:
        duration = max(round(self.duration_ns(path) * calls + extra_ns), 1)
        return Mode(duration, cores=self._cores(path), label=path)

    def _cores(self, path: str) -> float:
        """Cores that must be free while a node runs: the most of any of its tasks."""
        inside = [
            k for loop, k in self.kernels.items() if loop == path or loop.startswith(f"{path}/")
        ]
        alike = [c for loop, c in self.chains.items() if within(loop, path)]
        used = [kernel.peak_cores for kernel in (*inside, *alike)]
        used += [
            native_mode(self.facts, leaf.path, self.cores).cores
            for leaf in self.facts.graph.leaves(path)
            if not any(leaf.path.startswith(f"{item.loop}/") for item in (*inside, *alike))
        ]
        return max(used, default=1.0)

    def _workers(self, path: str) -> frozenset[str]:
        result: set[str] = set()
        for leaf in self.facts.graph.leaves(path):
            component = leaf.component or ""
            shards = self.workers.shards.get(component, 1)
            if any(within(leaf.path, loop) for loop in self.chains):
                shards = self.workers.replicas.get(component, 1)
            result.update(
                self.workers.worker(component, shard, leaf.path) for shard in range(shards)
            )
        return frozenset(result or {INLINE})

    def _iteration_ends(self, path: str, names: list[str]) -> list[str]:
        """Name of the last activity of each iteration of a sibling."""
        last: dict[str, str] = {}
        for name in names:
            last[name.rpartition("@")[2]] = name
        return list(last.values())

    def _needed(self, path: str, index: int, ends: Mapping[str, list[str]]) -> Iterator[str]:
        """Activities of earlier siblings whose values iteration `index` of `path` takes."""
        for earlier, finished in ends.items():
            edges = [
                edge
                for edge in self.facts.graph.data_edges(earlier, path)
                if edge.distance == 0 and not self.facts.graph.node(edge.consumer).is_loop
            ]
            for edge in edges:
                last = len(finished) - 1
                if edge.alignment is not None and not edge.all_iterations:
                    used = (index + 1) * self._block(path) - 1 + edge.alignment
                    last = min(max(used // self._block(earlier), 0), last)
                yield finished[last]
