"""Runs the program in program order and turns its invocations into tasks.

The driver is the resolver of a replay. Glue code runs where the program runs it (in the caller's thread,
or in one of the `branches.py` where the plan splits or moves a loop); invocations become tasks whose results
are deferred. `readiness.py` decides when a task may start, `tasks.py` performs its commands.

Paper: §4.2 "Execution", App. A.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any

from rose_exec.branches import Branches
from rose_exec.calls import Call, Calls, plain
from rose_exec.glue import handles_errors, waits_for_errors
from rose_exec.loop_call import AnyLoop, LoopCall
from rose_exec.native import Native, Running, running
from rose_exec.placement import Placement
from rose_exec.readiness import MAIN, Position
from rose_exec.recording import recorded
from rose_exec.refs import Cancelled, concrete
from rose_exec.scope import Outputs, Scope, inside, scope
from rose_exec.tasks import Tasks
from rose_opt.plan import Lane, PlanRefused
from rose_trace import pytree
from rose_trace.component import Instance
from rose_trace.frames import Frame
from rose_trace.legality import AccessSet, partition
from rose_trace.node import ExecutionNode


class Driver:
    """The resolver of a replay session.

    Args:
        placement: Workers and homes of a verified plan.
        native_threads: Intra-op threads of the program, ``None`` where torch is not loaded.
    """

    def __init__(self, placement: Placement, native_threads: int | None) -> None:
        self._plan = plan = placement.plan
        self._placement = placement
        self._native = Native()
        self._nodes = {node.path: node for node in plan.nodes}
        self._splits = plan.splits()
        self._chained = plan.chains()
        self._branched = {beside for _, beside in plan.rewires()}
        self._conductor = placement.conductor
        self._tasks = Tasks(placement, plan.cores, self._conductor)
        self._calls = Calls(placement, self._tasks, native_threads)
        self._branches = Branches(self._tasks, self._calls, self._bodies)
        self._sequence = itertools.count()
        self._iterations = itertools.count()
        self.before_iteration: Callable[[], None] = lambda: None
        """Called before each RL iteration, outside any task."""
        self.serial = False
        """Whether everything runs in program order, on the same components: the fallback."""

    @property
    def lost(self) -> Mapping[str, tuple[str, str]]:
        """Component and worker of each state that ended with a worker, by state."""
        return self._calls.revival.lost

    def set_lanes(self, lanes: Iterable[Lane]) -> None:
        """Use these lanes for what is submitted from now on."""
        self._calls.lanes = {lane.path: lane for lane in lanes}

    def reread(self) -> None:
        """Take accesses from the code that is loaded by now, between two iterations."""
        self._calls.reread()

    # Resolver -----------------------------------------------------------------------------------

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of a node: a task, or native where it is part of one."""
        here = scope.get()
        if running.get() is not None:
            return self._native.invoke(node, args, kwargs)
        if here is None:
            return self._root(None, True, lambda: self.invoke(node, args, kwargs))
        instance = node.instance_of(args)
        name = node.full_name(instance)
        path = here.frame.child_path(name)
        planned = self._nodes.get(path)
        self._calls.copy(here, path)
        position, ordinal = here.next_position(), here.frame.next_ordinal(name)
        call = Call(here, node, instance, path, name, position, ordinal)
        if node.is_async or node.is_generator:
            return self._calls.in_caller(call, args, kwargs)
        if planned is not None and planned.composite and not self._calls.whole(path):
            return self._open(call, args, kwargs)
        return self._calls.dispatch(call, args, kwargs)

    def run_loop(self, loop: AnyLoop, carry: Any, items: Iterable[Any]) -> tuple[Any, Any]:
        """One call of a loop: in place, split into groups, or in a branch of its own."""
        here = scope.get()
        if running.get() is not None:
            return self._native.run_loop(loop, carry, items)
        if here is None:
            return self._root(None, True, lambda: self.run_loop(loop, carry, items))
        path = here.frame.child_path(loop.full_name(loop.instance))
        self._calls.copy(here, path)
        position = here.next_position()
        if not self.serial and not here.handles:
            items, alone = self._fetched(here, position, items)
            call = LoopCall(position, path, loop, carry, items)
            if alone and path in self._splits and here.rows is None:
                groups = partition(self._plan.rows[path], self._splits[path])
                return self._branches.by_rows(here, call, groups)
            if alone and path in self._chained and self._calls.chains.chain(here) is None:
                items = items if isinstance(items, range) else list(items)
                if len(items) == self._nodes[path].count:
                    return self._branches.by_turns(here, call, items, self._chained[path])
            if alone and path in self._branched and not here.waits:
                return self._branches.beside(here, call)
        outputs: list[Any] = []
        bodies = self._bodies(here, LoopCall(position, path, loop, carry, items))
        for carry, output in bodies:  # noqa: B007  (the last carry is the result)
            outputs.append(output)
        self._tasks.advance(here.strand, here.frontier)
        return carry, outputs

    def run_iteration(
        self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One RL iteration; returns when everything it started has finished."""
        if running.get() is not None or scope.get() is not None:
            return self._native.run_iteration(node, args, kwargs)
        self.before_iteration()
        self._calls.revive()
        waits = waits_for_errors(node.entry)
        return self._root(node, waits, lambda: node.entry(*args, **kwargs))

    def iterate(self, name: str, items: Iterable[Any]) -> Iterator[Any]:
        """A traced loop that cannot be rewritten: its body runs in place."""
        here = scope.get()
        if running.get() is not None or here is None:
            yield from self._native.iterate(name, items)
            return
        position = here.next_position()
        frame = replace(here.frame, path=here.frame.child_path(name), calls={})
        child = Scope(here.strand, position, frame, here.waits, handles=here.handles)
        for item in self._numbered(here, child, items):
            mark = scope.set(child)
            try:
                yield item
            finally:
                scope.reset(mark)
        self._tasks.advance(here.strand, here.frontier)

    def construct(
        self, instance: Instance, component: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Build a component where the plan wants it."""
        mark = running.set(Running(instance.name, AccessSet(opaque=True)))
        try:
            self._placement.construct(instance, component)
        finally:
            running.reset(mark)

    def attribute(self, instance: Instance, component: Any, name: str) -> Any:
        """Read a plain attribute of a component that lives in a worker, in program order.

        Raises:
            AttributeError: If it has none, or none that can be copied.
        """
        home = self._placement.home_of(instance)
        if home is None or not home.remote:
            raise AttributeError(f"{type(component).__name__!r} object has no attribute {name!r}")
        task = running.get()
        if task is not None:
            raise AttributeError(
                f"{instance.name}.{name}: expected a component that lives with {task.path}, got one in worker "
                f"{home.residents[0][0]}. Pass what the node needs as an argument."
            )
        if home.shards > 1:
            raise AttributeError(
                f"{instance.name}.{name}: expected a component in one piece, got {home.shards} shards, whose "
                "attributes need not be those of the whole. Decorate the method that uses it with @rose.node."
            )
        return self._calls.attribute(scope.get(), instance, home, name)

    # Glue ---------------------------------------------------------------------------------------

    def _root(self, node: ExecutionNode | None, waits: bool, body: Callable[[], Any]) -> Any:
        """Run glue code that nothing encloses, to its very end.

        Raises:
            BaseException: What was raised first in program order.
        """
        with contextlib.ExitStack() as stack:
            frame = Frame() if node is None else stack.enter_context(recorded(node, None, None))
            if node is not None and not frame.iteration:
                frame.iteration = (next(self._iterations),)
            handles = node is None or handles_errors(node.entry)
            waits = waits or self.serial
            here = Scope(MAIN, (next(self._sequence),), frame, waits, handles=handles)
            stack.enter_context(inside(here))
            self._glue(None if node is None else node.entry, frame.path)
            if self._conductor is not None:
                self._conductor.begun()
            result: Any = None
            try:
                result = plain(body())
            except Cancelled:
                pass
            except BaseException as error:
                # An interrupt has no place in the program: nothing more starts at all.
                place = here.frontier if isinstance(error, Exception) else ()
                self._tasks.fail(place, -1, error)
            self._branches.join()
            self._tasks.wait_all()
            if self._conductor is not None:
                self._conductor.ended(result)
            self._calls.storages.forget()
            error = self._tasks.first_error()
            if error is not None:
                self.serial = True
                raise error
            return pytree.map_leaves(concrete, result)

    def _glue(self, entry: Callable[..., Any] | None, path: str) -> None:
        if self._conductor is not None and entry is not None:
            self._conductor.glue(entry, path)

    def _open(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a composite's body as glue, so that its children are scheduled one by one."""
        here = call.here
        here.frame.calls[call.name] -= 1  # the recorder counts this call itself
        with recorded(call.node, call.instance, here.frame) as frame:
            waits = here.waits or waits_for_errors(call.node.entry)
            handles = here.handles or handles_errors(call.node.entry)
            self._glue(call.node.entry, frame.path)
            with inside(Scope(here.strand, call.position, frame, waits, handles=handles)):
                result = call.node.entry(*args, **kwargs)
        self._tasks.advance(here.strand, here.frontier)
        return result

    def _fetched(
        self, here: Scope, position: Position, items: Iterable[Any]
    ) -> tuple[Iterable[Any], bool]:
        """Items of a loop that is to be moved, and whether fetching them calls no node.

        Raises:
            PlanRefused: If only fetching a later item calls one: it would come before the earlier bodies.
        """
        if isinstance(items, range | list | tuple | Outputs):
            return items, True
        iterator = iter(items)
        fetched: list[Any] = []
        fetching = replace(here, prefix=(*position, -1), calls=0)
        with inside(fetching):
            for item in iterator:
                fetched.append(item)
                if fetching.calls and len(fetched) == 1:
                    break
        if fetching.calls and len(fetched) > 1:
            raise PlanRefused(
                f"{here.frame.path}: expected items that are fetched without calling a node, got a call for item "
                f"{len(fetched) - 1} of a loop that the plan moves. Make a list of them first, or drop the transform."
            )
        return itertools.chain(fetched, iterator), not fetching.calls

    def _numbered(
        self, here: Scope, child: Scope, items: Iterable[Any], turns: tuple[int, int] = (0, 1)
    ) -> Iterator[Any]:
        """Items of a loop; `child` is placed at each iteration in turn.

        What fetching an item calls comes before the body that takes it.
        """
        position, iteration = child.prefix, child.frame.iteration
        iterator = iter(items)
        for index in itertools.count(*turns):
            if turns[1] > 1:
                self._calls.chains.begin(child.strand)
            child.prefix, child.calls = (*position, index), 0
            child.frame.iteration = (*iteration, index)
            child.frame.calls.clear()
            self._tasks.advance(child.strand, child.frontier)
            fetching = replace(here, prefix=child.prefix, calls=0)
            with inside(fetching):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            child.calls = fetching.calls
            yield item

    def _bodies(self, here: Scope, call: LoopCall) -> Iterator[tuple[Any, Any]]:
        """Run a loop's body once per item; yields carry and output of each."""
        loop, carry = call.loop, call.carry
        count = len(call.items) if isinstance(call.items, Sized) else None
        with recorded(loop, loop.instance, here.frame, count) as frame:
            waits = here.waits or waits_for_errors(loop.entry)
            handles = here.handles or handles_errors(loop.entry)
            self._glue(loop.entry, frame.path)
            child = Scope(here.strand, call.position, frame, waits, handles=handles)
            for item in self._numbered(here, child, call.items, call.turns):
                try:
                    with inside(child):
                        carry, output = loop.body(carry, item)
                except Exception as error:
                    if not child.waits:
                        self._tasks.fail(child.frontier, frame.group, error)
                    raise
                yield carry, output
