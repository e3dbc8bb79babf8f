"""The time that no legal execution of a plan beats, if invocations take what was measured.

The plan is unrolled into tasks that wait for what legality makes them wait for and nothing else, and each
takes its best measured mode; what cores and workers then allow is a bound on every order that the
executor, or anything else, could choose. The program's own code may run ahead of its tasks, so it counts
for itself. Where there are too many tasks, or the loop is in chains, waiting is left out and only
amounts of work count.

Paper: §4.3.3; the bounds are ours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rose_opt.facts import Facts
from rose_opt.graph import GraphNode, within
from rose_opt.phases import steps, tasks_of
from rose_opt.placement import INLINE
from rose_opt.plan import Plan, Preparations, copy_of
from rose_opt.schedule import Capacity, Mode
from rose_opt.schedule.bounds import PhaseClass, corun_ns
from rose_opt.schedule.model import Kappa
from rose_opt.schedule.task_bounds import Demand, TaskBounds, task_bounds
from rose_opt.settings import PlanSettings
from rose_opt.simulator.engine import Task
from rose_opt.simulator.program import SUPPORTED, unroll
from rose_opt.ways import grouped_ways, native_iteration_ns, native_mode, shard_mode

_FEW_TASKS = 4_000  # ours: a fraction of a second of unrolling
_MOST_TASKS = 30_000  # ours: some seconds


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on one iteration.

    Attributes:
        ns: The bound [ns].
        by: What limits, in a few words.
    """

    ns: int
    by: str


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Bounds plans of one program.

    Attributes:
        facts: What the trace says.
        settings: Settings of the search.
        cores: Cores of the machine.
        kappa: Contention by node path.
    """

    facts: Facts
    settings: PlanSettings
    cores: float
    kappa: Kappa = field(default_factory=dict[tuple[str, str], float])

    def of(self, plan: Plan, *, closely: bool = False) -> Bound:
        """The bound on one iteration of a plan [ns].

        Args:
            plan: The plan; its predictions are not read.
            closely: Whether to spend seconds on it.

        Returns:
            The bound, and what limits.
        """
        most = _MOST_TASKS if closely else _FEW_TASKS
        glue = native_iteration_ns(self.facts, self.cores) - self._covered_ns()
        known = all(t.name in SUPPORTED for t in plan.transforms) and not plan.chains()
        if not known or self._invocations(plan) > most:
            bound = self._by_amounts(plan)
        else:
            tasks = self._demands(plan)
            found = task_bounds(tasks, Capacity(cores=self.cores), self.kappa)
            bound = Bound(found.best_ns, found.told)
        if glue > bound.ns:
            bound = Bound(int(glue), "glue (the program's own code)")
        return replace(bound, ns=max(bound.ns, 1))

    def _demands(self, plan: Plan) -> list[Demand]:
        known: dict[tuple[str, tuple[str, ...], float, float], tuple[Mode, ...]] = {}
        demands: list[Demand] = []
        tasks = unroll(self.facts, plan)
        unrolled = Counter(task.name for task in tasks)
        for task in tasks:
            key = task.name, task.workers, task.solo_ns, task.cores
            if key not in known:
                # What the plan chose is among the ways, whatever the bits that are asked for now.
                planned = Mode(max(int(task.solo_ns), 1), cores=min(task.cores, self.cores))
                known[key] = (planned,)
                if task.name in self.facts.graph:  # else it makes a copy
                    known[key] = self._demanded(plan, task, planned, unrolled[task.name])
            demands.append(Demand(task.name, task.workers, known[key], task.after))
        return demands

    def _demanded(self, plan: Plan, task: Task, planned: Mode, times: int) -> tuple[Mode, ...]:
        """Ways of running a task; a node that not every run of its caller calls counts with its mean."""
        handed = self._handed_ns(plan, task.workers[0])
        homes = self._homes(plan, self.facts.graph.node(task.name))
        often = min(sum(share for _, share in homes) / times, 1.0)
        return tuple(
            replace(mode, duration_ns=max(int(mode.duration_ns * often), 1))
            for mode in (planned, *self._ways(plan, task.name, handed))
        )

    def _by_amounts(self, plan: Plan) -> Bound:
        """Work by worker and cores, shared out as well as can be."""
        counts: defaultdict[PhaseClass, float] = defaultdict(float)
        for node in tasks_of(self.facts):
            for worker, share in self._homes(plan, node):
                modes = self._modes(plan, node, self._handed_ns(plan, worker))
                counts[PhaseClass(node.path, worker, modes, ())] += share
        load: Counter[str] = Counter()
        for kind, count in counts.items():
            load[kind.engine] += int(kind.best_ns * count)
        capacity = Capacity(cores=self.cores)
        area = sum(
            count * min(mode.duration_ns * mode.cores for mode in kind.modes)
            for kind, count in counts.items()
        )
        shared = corun_ns(list(counts), list(counts.values()), capacity.units(), self.kappa)
        engine = max(load, key=lambda worker: load[worker], default="")
        found = TaskBounds(0, load[engine], 0, int(area / self.cores), shared, engine, "cores")
        return Bound(found.best_ns, found.told)

    # Nodes --------------------------------------------------------------------------------------

    def _calls(self, path: str) -> float:
        """Calls of a node in one iteration, on average."""
        root = self.facts.graph.root.path
        return self.facts.timings[path].count / self.facts.timings[root].count

    def _covered_ns(self) -> float:
        return sum(
            self._calls(node.path) * native_mode(self.facts, node.path, self.cores).duration_ns
            for node in tasks_of(self.facts)
        )

    def _invocations(self, plan: Plan) -> float:
        groups = plan.splits()
        return sum(
            self._calls(node.path)
            * max([groups[loop] for loop in groups if within(node.path, loop)], default=1)
            for node in tasks_of(self.facts)
        )

    def _homes(self, plan: Plan, node: GraphNode) -> Iterator[tuple[str, float]]:
        """Workers that run a node, and how many of its fragments each runs in one iteration."""
        calls = self._calls(node.path)
        loops = [*plan.splits().items(), *plan.chains().items()]
        groups = next((k for loop, k in loops if within(node.path, loop)), 1)
        copies = Preparations.of(plan.transforms).copies(plan.hierarchy)
        copy = copy_of(copies, node.component or "", node.path)
        private = "" if copy is None else copy.readers
        workers = [
            worker.name
            for worker in plan.workers
            for resident in worker.residents
            if resident.component == node.component and resident.private == private
        ] or [INLINE]
        chained = next((loop for loop in plan.chains() if within(node.path, loop)), None)
        if len(workers) == 1:
            yield workers[0], calls * (1 if chained else groups)
            return
        count = 1
        if chained is not None:
            count = max(round(steps(self.facts, chained)), 1)
        for number, worker in enumerate(workers):
            share = 1.0
            if chained is not None:  # iterations take turns, so the first chains may have one more
                share = len(range(number, count, len(workers))) / count
            yield worker, calls * share

    def _modes(self, plan: Plan, node: GraphNode, handed_ns: int) -> tuple[Mode, ...]:
        found = self._ways(plan, node.path, handed_ns)
        if found:
            return found
        component = plan.component(node.component or "")
        mode = native_mode(self.facts, node.path, self.cores)
        if component is not None and component.shards > 1:
            mode = shard_mode(self.facts, node.path, component.shards, self.cores)
        return (replace(mode, duration_ns=mode.duration_ns + handed_ns),)

    def _ways(self, plan: Plan, path: str, handed_ns: int) -> tuple[Mode, ...]:
        """Ways of running a node on the rows of one group; none outside loops that are split by rows."""
        node = self.facts.graph.node(path)
        groups = next((k for loop, k in plan.splits().items() if within(path, loop)), None)
        if groups is None:
            return ()
        component = plan.component(node.component or "")
        sharded = component is not None and component.shards > 1
        found = grouped_ways(self.facts, path, groups, sharded, self.cores, self.settings.bits)
        return tuple(
            replace(mode, duration_ns=mode.duration_ns + handed_ns) for mode in found.modes
        )

    def _handed_ns(self, plan: Plan, worker: str) -> int:
        kind = next((spec.kind for spec in plan.workers if spec.name == worker), "inline")
        return 0 if kind == "inline" else self.settings.dispatch_ns
