"""Turns one call of a node into tasks: which worker, which rows, which threads, and its deferred result."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rose_exec import code, wire
from rose_exec.chains import Chains
from rose_exec.native import Native
from rose_exec.placement import INLINE, Home, Placement
from rose_exec.private_copies import PrivateCopies
from rose_exec.readiness import MAIN, Position
from rose_exec.refs import Output, Result, concrete, defer, describe, value_of
from rose_exec.revival import Revival
from rose_exec.scope import Outputs, Scope
from rose_exec.split import merge_trees, slice_arguments
from rose_exec.storages import Storages
from rose_exec.suspended import resumed_after
from rose_exec.tasks import Task, Tasks, with_rows
from rose_exec.workers import Job, ambient
from rose_opt.plan import (
    Lane,
    PlanRefused,
    opened,
    runs_whole,
    subtree_accesses,
    touching,
)
from rose_trace import pytree
from rose_trace.component import Instance
from rose_trace.frames import Frame
from rose_trace.legality import AccessSet, RowRange
from rose_trace.node import ExecutionNode
from rose_trace.pytree import Structure
from rose_trace.records import Access, StateAccess

logger = logging.getLogger(__name__)


class _Target(NamedTuple):
    """Where one fragment of a call runs."""

    worker: str
    resident: str
    rows: RowRange | None
    group: int


@dataclass(slots=True)
class Call:
    """One call of a node from glue code.

    Attributes:
        here: The body that makes the call.
        node: The node.
        instance: Its component, if it is a method.
        path: Node path.
        name: Name with the component.
        position: Place in the native program order.
        ordinal: Number of this call among the body's calls of the node.
    """

    here: Scope
    node: ExecutionNode
    instance: Instance | None
    path: str
    name: str
    position: Position
    ordinal: int


class Calls:
    """The calls of a session.

    Args:
        placement: Workers and homes of a verified plan.
        tasks: Tasks in flight.
        native_threads: Intra-op threads of the program, ``None`` where torch is not loaded.
    """

    def __init__(self, placement: Placement, tasks: Tasks, native_threads: int | None) -> None:
        self._plan = plan = placement.plan
        self._placement = placement
        self._tasks = tasks
        self._native_threads = native_threads
        self.revival = Revival()
        """States that ended with their workers."""
        self._nodes = {node.path: node for node in plan.nodes}
        self._threads = {(item.path, item.grouped): item.threads for item in plan.threads}
        self.lanes: Mapping[str, Lane] = {lane.path: lane for lane in plan.lanes}
        """Lane of each node that has one, by path; may be replaced between two iterations."""
        self._batches = frozenset(plan.rows.values())
        self.structures = {
            n.path: Structure.from_json(n.structure) for n in plan.nodes if n.structure
        }
        """Recorded structure of each node's result, by path; absent where it varied."""
        self.reread()

    def reread(self) -> None:
        """Take accesses from the code that is loaded by now, and what follows from them."""
        self._accesses_of = functools.cache(functools.partial(code.accesses, self._plan))
        self.private = PrivateCopies(self._placement, self._accesses_of)
        """Copies of components for their readers."""
        self.chains = Chains(self._plan, self.private.accesses_of)
        """Instances of states that a temporal split replicates."""
        storages = self.private.preparations.storages
        self.storages = Storages(self._plan, storages, self._accesses_of)
        """Storages that are copied when a value is handed out."""
        self.reserved = functools.cache(self._reserved)
        """What anything below a path may touch."""
        self._reservation = functools.cache(self._reserved_with_copies)
        self.whole = functools.cache(self._whole)
        """Whether a composite, by path, is one task."""
        self._state_of = functools.cache(self._read_of)

    def announced(self, path: str, chain: int | None) -> AccessSet:
        """What a branch may touch, each state on its instance."""
        return self.chains.bound(self._reservation(path), chain)

    def copy(self, here: Scope, path: str) -> None:
        """Copy what the node at `path` reads privately, before `here` calls it."""
        if path in self.private.readers:
            self.private.tasks(self._tasks, here, path)

    def _reserved_with_copies(self, path: str) -> AccessSet:
        private = self.private
        return subtree_accesses(private.hierarchy, path, private.accesses_of)

    def _reserved(self, path: str) -> AccessSet:
        return subtree_accesses(self._plan, path, self._accesses_of)

    def _whole(self, path: str) -> bool:
        return not opened(self._plan.lanes, path) and runs_whole(
            self._plan, self._nodes[path], self._accesses_of
        )

    def _access(self, call: Call) -> AccessSet:
        planned = self._nodes.get(call.path)
        if planned is None:
            return call.node.accesses(call.instance)
        return self.reserved(planned.path) if planned.composite else self._accesses_of(planned)

    def dispatch(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Turn a call into one task, or into one per shard of its component."""
        component = "" if call.instance is None else call.instance.name
        self.revival.admit(call.path, component, self._access(call))
        targets = self._targets(call, args)
        self.chains.touch(call.here.strand, call.path, self._access(call))
        whole = RowRange(0, sum(len(t.rows) for t in targets if t.rows is not None))
        results: list[Result] = []
        trees: list[Any] = []
        for target in targets:
            part_args, part_kwargs = args, kwargs
            if len(targets) > 1 and target.rows is not None:
                part_args, part_kwargs = slice_arguments(
                    call.node, args, kwargs, whole.stop, target.rows, self._tasks.wait
                )
            task = self._task(call, target, len(targets), part_args, part_kwargs)
            result = self._tasks.submit(task, target.worker)
            results.append(result)
            if task.expected is not None:
                trees.append(self._outputs(task.expected, result))
        if call.here.waits or len(trees) < len(results):
            trees = [self._tasks.concrete(result) for result in results]
        if len(trees) == 1:
            return trees[0]
        ranges = [target.rows for target in targets if target.rows is not None]
        return merge_trees(call.path, trees, ranges, self._tasks.wait)

    def _task(
        self,
        call: Call,
        target: _Target,
        fragments: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Task:
        here, path = call.here, call.path
        given = args if call.instance is None else args[1:]
        leaves, arguments = pytree.flatten((plain(given), plain(kwargs)), describe)
        frame = replace(
            here.frame,
            calls={call.name: call.ordinal},
            group=target.group,
            groups=max(fragments, here.frame.groups),
            rows=target.rows,
        )
        job = Job(
            path,
            call.node.entry.__name__,
            target.resident,
            arguments,
            (),
            frame,
            replace(self._access(call), rows=target.rows),
            self._threads.get((path, here.rows is not None), self._native_threads),
            function=None if target.resident else call.node.entry,
            ambient=ambient.capture(),
            stream=ambient.stream(),
        )
        lane = self.lanes.get(path)
        if lane is not None:
            job.lane, job.sms = lane.name, lane.sms if frame.groups > 1 else 0
        expected = self.structures.get(path)
        if expected is not None and target.rows is not None:
            expected = with_rows(expected, self._batches, len(target.rows))
        cores = self._plan.core_demand.get(path, 1.0)
        values = [value_of(leaf) for leaf in leaves]
        self.storages.touch(path, call.position, values)
        touched = self.private.preparations.bound(path, job.allowed)
        access = self.chains.bound(touched, self.chains.chain(here))
        return Task(
            job,
            values,
            call.position,
            here.strand,
            cores,
            expected,
            here.waits,
            access=access,
            node=call.node,
            first=lane is not None and lane is next(iter(self.lanes.values())),
        )

    def _targets(self, call: Call, args: tuple[Any, ...]) -> list[_Target]:
        here = call.here
        if call.instance is None:
            return [_Target(INLINE, "", here.rows, here.frame.group)]
        home = self._home(call.instance, args[0])
        private = self.private.place(call.instance.name, call.path)
        if private is not None:
            return [_Target(*private, here.rows, here.frame.group)]
        if home.shards > 1 and here.rows is None:
            ranges = home.ranges(self._batch(call.path))
            pairs = zip(home.residents, ranges, strict=True)
            return [_Target(w, r, rows, k) for k, ((w, r), rows) in enumerate(pairs)]
        at = here.frame.group if home.shards > 1 else 0
        if home.replicas > 1:
            at = self.chains.instance(call.instance.name, here)
        worker, resident = home.residents[at]
        return [_Target(worker, resident, here.rows, here.frame.group)]

    def _home(self, instance: Instance, component: Any) -> Home:
        return self._placement.home_of(instance) or self._placement.adopt(instance, component)

    def _batch(self, path: str) -> int:
        if len(self._batches) != 1:
            raise PlanRefused(
                f"{path}: expected one batch size for a sharded component, got "
                f"{sorted(self._batches)}. Plan again."
            )
        return next(iter(self._batches))

    def _outputs(self, expected: Structure, result: Result) -> Any:
        """The deferred result, in the recorded structure."""
        leaves: Sequence[Any] = [
            defer(Output(result, index), leaf, self._tasks.wait)
            for index, leaf in enumerate(expected.leaves())
        ]
        return pytree.unflatten(expected, iter(leaves))

    def in_caller(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Coroutines and generators run in the caller's thread, after everything earlier.

        Raises:
            PlanRefused: If the plan moves them.
        """
        if call.here.strand != MAIN:
            raise PlanRefused(
                f"{call.path}: expected only plain functions inside a loop that the plan moves, got a "
                "coroutine or generator. Make it a plain function, or drop the transform."
            )
        if call.instance is not None and self._home(call.instance, args[0]).remote:
            raise PlanRefused(
                f"{call.path}: expected a plain method on a component that lives in a worker, got a "
                "coroutine or generator. Make it plain, or keep the component in the program's process."
            )
        wait = self._tasks.wait_all
        wait()
        if self._tasks.conductor is not None:
            self._tasks.conductor.let_be(call.path)
        plain_args, plain_kwargs = (pytree.map_leaves(concrete, plain(x)) for x in (args, kwargs))
        made = Native().invoke(call.node, plain_args, plain_kwargs)
        return resumed_after(wait, made, call.node.is_async)

    def revive(self) -> None:
        """Replace worker processes that have ended."""
        for component, worker in self._placement.revive():
            logger.warning(
                "Worker %s ended: %s is built again, and what only it knew is lost.",
                worker,
                component,
            )
            self.revival.built_again(component, worker, self._state_of(component))

    def _read_of(self, component: str) -> AccessSet:
        """Reading everything that belongs to a component."""
        found: list[Access] = []
        opaque = False
        for node, access in touching(self._plan.nodes, self._accesses_of):
            opaque = opaque or (access.opaque and node.component == component)
            for item in access.accesses:
                if node.component == component or item.state.startswith(f"{component}."):
                    found.append(replace(item, mode=StateAccess.READ))
        return AccessSet(tuple(dict.fromkeys(found)), opaque)

    def attribute(self, here: Scope | None, instance: Instance, home: Home, name: str) -> Any:
        """Read a plain attribute of a whole component in a worker, in program order; waits for it."""
        at = self.chains.instance(instance.name, here) if home.replicas > 1 else 0
        worker, resident = home.residents[at]
        frame = Frame() if here is None else here.frame
        access = self._state_of(instance.name)
        self.revival.admit(f"{instance.name}.{name}", instance.name, access)
        nothing = pytree.flatten(((), {}))[1]
        path = f"{instance.name}.{name}"
        job = Job(path, "", resident, nothing, (), frame, access, attribute=name)
        if here is None:
            answer = self._placement.workers[worker].run(job).result()
            leaves = iter([wire.decode(leaf) for leaf in answer.leaves])
            return pytree.unflatten(answer.structure, leaves)
        bound = self.chains.bound(access, self.chains.chain(here))
        position = here.next_position()
        task = Task(job, [], position, here.strand, 0.0, None, guarded=True, access=bound)
        return self._tasks.concrete(self._tasks.submit(task, worker))


def plain(tree: Any) -> Any:
    """The same value with the lazy outputs of loops as lists."""
    return pytree.map_leaves(
        lambda leaf: [plain(item) for item in leaf] if type(leaf) is Outputs else leaf, tree
    )
