"""One iteration as tasks: the hierarchy unrolled in program order, as the executor submits it.

Every invocation becomes a task, every group of a split loop its own, and a call of a sharded component
outside the split one per shard. A task waits for the tasks that make its inputs and for earlier tasks
whose accesses conflict with its own; where it runs, with how many threads and cores, is the plan's.
Iterations of a loop in chains take turns on the instances of what they write, and tasks after the loop find
the instance of the last one.

Does not handle: glue that waits for a value (its time is added as recorded).

Paper: §4.2, "Execution"; App. A.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rose_opt.copying import copy_cost
from rose_opt.facts import Facts
from rose_opt.graph import GraphNode
from rose_opt.phases import calls_per_run, runs_whole, steps
from rose_opt.placement import INLINE
from rose_opt.plan import (
    KNOWN_TRANSFORMS,
    Plan,
    Preparations,
    PrivateCopy,
    copy_of,
    copy_path,
    live_out_instance,
    renamed_states,
    replicated_components,
)
from rose_opt.schedule import Mode
from rose_opt.settings import Memory
from rose_opt.simulator.engine import Task
from rose_opt.simulator.hazards import Hazards
from rose_opt.simulator.inputs import Inputs
from rose_opt.transforms.temporal_split import bound
from rose_opt.ways import grouped_ways, native_mode, shard_mode
from rose_trace.legality import AccessSet, RowRange, partition, union_all

SUPPORTED = frozenset(KNOWN_TRANSFORMS)
"""Transforms that the simulator knows."""

MOST_TASKS = 500_000
"""Invocations that one simulation may hold. # ours"""


class CannotSimulate(ValueError):
    """A plan that the simulator does not know how to run, or a program too long for it."""


@dataclass(frozen=True, slots=True)
class Group:
    """One group of a split loop.

    Attributes:
        loop: Path of the loop.
        number: Number of the group.
        rows: Its rows.
    """

    loop: str
    number: int
    rows: RowRange


@dataclass(frozen=True, slots=True)
class Solo:
    """How a machine differs from the one that the trace was recorded on.

    Attributes:
        scale: Solo duration there over the recorded one, by node path [fraction > 0]; 1 where absent.
        memory_bytes: Memory that an invocation holds, by node path [bytes]; 0 where absent.
    """

    scale: Mapping[str, float] = field(default_factory=dict[str, float])
    memory_bytes: Mapping[str, int] = field(default_factory=dict[str, int])


def unroll(
    facts: Facts, plan: Plan, body_of: str | None = None, solo: Solo | None = None
) -> tuple[Task, ...]:
    """Unroll a program under a plan.

    Args:
        facts: What the trace says.
        plan: The plan.
        body_of: Node whose body is run once; one whole iteration by default.
        solo: How the machine differs from the recorded one.

    Returns:
        Tasks in program order, named by their node's path.

    Raises:
        CannotSimulate: If the plan holds a transform that the simulator does not know, or the program
            is too long.
    """
    for transform in plan.transforms:
        if transform.name not in SUPPORTED:
            raise CannotSimulate(
                f"simulator: expected one of {', '.join(sorted(SUPPORTED))}, got {transform.name}. "
                "Measure this plan live."
            )
    unroller = _Unroller(facts, plan, solo or Solo())
    top = facts.graph.node(body_of or facts.graph.root.path)
    around = {str(loop.path): 0 for loop in facts.graph.enclosing_loops(top.path)}
    if top.is_loop:
        unroller.body(top, around | {str(top.path): 0}, None)
    else:
        unroller.children(top, around, ())
    return tuple(unroller.tasks)


@dataclass(frozen=True, slots=True)
class _Chains:
    """Chains of a loop: how many, the states of which each has an instance, the one that lives on."""

    groups: int
    states: tuple[str, ...]
    last: int


class _Unroller:
    """Tasks so far, and what later ones may have to wait for."""

    def __init__(self, facts: Facts, plan: Plan, solo: Solo) -> None:
        self.facts, self.plan, self.solo = facts, plan, solo
        self.tasks: list[Task] = []
        self._splits = plan.splits()
        self._preparations = Preparations.of(plan.transforms)
        self._prepared = self._preparations.hierarchy(plan.hierarchy)
        self._copies = self._preparations.copies(plan.hierarchy)
        self._loaded: dict[PrivateCopy, int] = {}
        self._shards = {c.name: c.shards for c in plan.components if c.shards > 1}
        self._chains = {
            loop: _Chains(
                groups,
                renamed_states(plan.hierarchy, loop, self._preparations.accesses_of()),
                live_out_instance(plan.node(loop).count or 1, groups),
            )
            for loop, groups in plan.chains().items()
        }
        self._chained: tuple[str, int] | None = None
        self._live_out = {
            name: chains.last
            for loop, chains in self._chains.items()
            for name in replicated_components(
                plan.hierarchy, loop, self._preparations.accesses_of()
            )
        }
        self._homes = {
            (resident.component, resident.shard, resident.replica, resident.private): worker
            for worker in plan.workers
            for resident in worker.residents
        }
        self._threads = {t.path: t.threads for t in plan.threads if t.grouped}
        self._dispatch_ns = int(plan.settings.get("dispatch_ns", 0))
        self._cores = plan.cores or float(plan.settings.get("cores") or 1e9)
        self._modes: dict[tuple[str, int, bool], Mode] = {}
        self._access: dict[tuple[str, int | None], AccessSet] = {}
        self._inputs = Inputs(facts, self.is_unit)
        self._hazards = Hazards()

    # Program order ------------------------------------------------------------------------------

    def is_unit(self, node: GraphNode) -> bool:
        """Whether one task runs all of a node."""
        return node.kind == "exec" and (not node.composite or runs_whole(self.facts, node))

    def body(self, loop: GraphNode, at: dict[str, int], group: Group | None) -> None:
        """One run of a loop's body, by every group if the loop is split."""
        groups: Sequence[Group | None] = (group,)
        if group is None and loop.path in self._splits:
            parts = partition(self.plan.rows[loop.path], self._splits[loop.path])
            groups = [Group(loop.path, number, rows) for number, rows in enumerate(parts)]
        self.children(loop, at, groups)

    def children(
        self, parent: GraphNode, at: dict[str, int], groups: Sequence[Group | None]
    ) -> None:
        """Everything that a body calls; the groups of one call follow each other."""
        for child in self._called(parent):
            for copy in self._copies:
                if copy.readers == child.path:
                    self._copy(copy)
            for group in groups or (None,):
                if not child.is_loop:
                    self._emit(child, at, group)
                    continue
                chains = self._chains.get(child.path)
                for index in range(max(round(steps(self.facts, child.path)), 0)):
                    if chains is not None:
                        self._chained = child.path, index % chains.groups
                    self.body(child, at | {child.path: index}, group)
                if chains is not None:
                    self._chained = None

    def _copy(self, copy: PrivateCopy) -> None:
        """Save a component where it lives and load it where its copy does."""
        memory = Memory(**self.plan.settings.get("memory", {}))
        cost = copy_cost(self.facts, memory, self._dispatch_ns, copy)
        nodes = [self._prepared.node(copy_path(s, copy.readers)) for s in copy.states]
        found = union_all(node.access_set for node in nodes)
        saved = len(self.tasks)
        for private, duration_ns in (("", cost.save_ns), (copy.readers, cost.load_ns)):
            mine = tuple(a for a in found.accesses if a.mode.writes == bool(private))
            waits = {*self._hazards.before(AccessSet(mine)), *([saved] if private else [])}
            home = self._homes.get((copy.component, 0, 0, private))
            worker = INLINE if home is None else home.name
            name = f"{copy.label}#{'load' if private else 'save'}"
            self._hazards.add([(len(self.tasks), AccessSet(mine))])
            self.tasks.append(Task(name, (worker,), duration_ns, tuple(sorted(waits)), 1.0))

    def _called(self, parent: GraphNode) -> Iterator[GraphNode]:
        """What one run of a body calls, as often as it is called; once what only some runs call."""
        for child in self._flat(parent):
            calls = calls_per_run(self.facts, child.path, parent.path)
            yield from itertools.repeat(child, max(int(calls + 1e-9), 1))

    def _flat(self, parent: GraphNode) -> Iterator[GraphNode]:
        """Children in program order; composites that are opened give their own."""
        for child in self.facts.graph.children(parent.path):
            if child.is_loop or self.is_unit(child):
                yield child
            else:
                yield from self._flat(child)

    # One invocation -----------------------------------------------------------------------------

    def _emit(self, node: GraphNode, at: dict[str, int], group: Group | None) -> None:
        component = node.component or ""
        shards = self._shards.get(component, 1)
        fragments: list[tuple[int, RowRange | None, int]]
        if group is not None:
            fragments = [(group.number if shards > 1 else 0, group.rows, group.number)]
        elif shards > 1:
            rows = self.facts.rows.get(node.path) or self._rows_of_shards(shards)
            parts = partition(rows, shards) if rows and rows >= shards else (None,) * shards
            fragments = [(shard, part, shard) for shard, part in enumerate(parts)]
        else:
            fragments = [(0, None, 0)]
        waits = self._inputs.of(
            node.path, at, None if group is None else (group.loop, group.number)
        )
        waits = set(waits)
        first = len(self.tasks)
        touched = [
            (first + position, replace(self._accesses(node.path), rows=rows))
            for position, (_, rows, _) in enumerate(fragments)
        ]
        waits_of = [waits.union(self._hazards.before(access)) for _, access in touched]
        self._hazards.add(touched)
        for (shard, _, _), after in zip(fragments, waits_of, strict=True):
            self.tasks.append(self._task(node, component, shard, group, tuple(sorted(after))))
        made = [(number, first + place) for place, (_, _, number) in enumerate(fragments)]
        self._inputs.made(node.path, at, made, None if group is None else group.loop)
        if len(self.tasks) > MOST_TASKS:
            raise CannotSimulate(
                f"simulator: expected at most {MOST_TASKS} invocations, got more in one iteration. "
                "Simulate the body of the loop that matters."
            )

    def _rows_of_shards(self, shards: int) -> int | None:
        """Batch of a split with as many groups: the rows that the shards were built for."""
        loops = (loop for loop, groups in self._splits.items() if groups == shards)
        return next((self.plan.rows[loop] for loop in loops), None)

    def _task(
        self,
        node: GraphNode,
        component: str,
        shard: int,
        group: Group | None,
        after: tuple[int, ...],
    ) -> Task:
        replica = self._live_out.get(component, 0)
        if self._chained is not None and component in self._live_out:
            replica = self._chained[1]
        copy = copy_of(self._copies, component, node.path)
        private = "" if copy is None else copy.readers
        home = self._homes.get((component, shard, replica, private))
        mode = self._mode(node.path, 1 if group is None else self._splits[group.loop], component)
        duration = mode.duration_ns * self.solo.scale.get(node.path, 1.0)
        if home is not None and home.kind != "inline":
            duration += self._dispatch_ns
        return Task(
            node.path,
            (INLINE if home is None else home.name,),
            duration,
            after,
            self.plan.core_demand.get(node.path, 1.0),
            self.solo.memory_bytes.get(node.path, 0),
        )

    def _mode(self, path: str, groups: int, component: str) -> Mode:
        sharded = component in self._shards
        key = (path, groups, sharded)
        if key not in self._modes:
            self._modes[key] = self._chosen(path, groups, component)
        return self._modes[key]

    def _chosen(self, path: str, groups: int, component: str) -> Mode:
        if groups == 1 and component in self._shards:
            return shard_mode(self.facts, path, self._shards[component], self._cores)
        if groups == 1:
            return native_mode(self.facts, path, self._cores)
        sharded = component in self._shards
        modes = grouped_ways(self.facts, path, groups, sharded, self._cores, "any").modes
        threads = self._threads.get(path)
        planned = [mode for mode in modes if threads is not None and mode.threads == threads]
        return planned[0] if planned else modes[0]

    def _accesses(self, path: str) -> AccessSet:
        """What a task touches, each state on the instance that is its own."""
        chain = None if self._chained is None else self._chained[1]
        if (path, chain) not in self._access:
            found = self._preparations.bound(path, self.facts.graph.effective(path))
            for loop, chains in self._chains.items():
                mine = self._chained is not None and self._chained[0] == loop
                instance = chain if mine and chain is not None else chains.last
                found = bound(found, chains.states, instance, chains.groups)
            self._access[path, chain] = found
        return self._access[path, chain]


def solo_ns(tasks: Sequence[Task]) -> float:
    """Time that tasks take one after the other [ns]."""
    return sum(task.solo_ns for task in tasks)
