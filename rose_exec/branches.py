"""Branches: loops of the program that the plan moves into threads of their own.

A branch is a strand of control flow beside the program's: one group of rows or one chain of iterations of
a split loop, or a loop that runs beside what comes before it. It announces what it may touch before it
begins.

Paper: §4.2 "Execution", §4.3.1.
"""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rose_exec.calls import Calls
from rose_exec.chains import require_nothing
from rose_exec.loop_call import LoopCall
from rose_exec.readiness import MAIN, StrandId
from rose_exec.refs import Cancelled
from rose_exec.scope import Outputs, Scope, scope
from rose_exec.split import merge_trees, slice_tree
from rose_exec.tasks import Tasks
from rose_exec.workers import ambient
from rose_opt.plan import live_out_instance
from rose_trace import pytree
from rose_trace.legality import RowRange

Bodies = Callable[[Scope, LoopCall], Iterator[tuple[Any, Any]]]
"""Runs a loop's body once per item; yields carry and output of each."""


@dataclass(slots=True)
class _Branch:
    """A strand of control flow in a thread of its own."""

    thread: threading.Thread
    strand: StrandId = MAIN
    outputs: list[Any] = field(default_factory=list[Any])
    carry: Any = None
    finished: bool = False


class Branches:
    """The branches of a session.

    Args:
        tasks: Tasks in flight.
        calls: Calls of the session.
        bodies: Runs what a branch is made of.
    """

    def __init__(self, tasks: Tasks, calls: Calls, bodies: Bodies) -> None:
        self._tasks = tasks
        self._calls = calls
        self._bodies = bodies
        self._strands = itertools.count(MAIN + 1)
        self._open: list[_Branch] = []

    def by_rows(self, here: Scope, call: LoopCall, groups: Sequence[RowRange]) -> tuple[Any, Any]:
        """Run the loop once per group of rows, side by side, and merge in row order.

        Args:
            here: The body that calls the loop.
            call: The call.
            groups: Global rows of each group, all rows together.

        Returns:
            Last carry and outputs, as the loop returns them natively.

        Raises:
            Cancelled: If something failed meanwhile.
        """
        wait = self._tasks.wait
        total = groups[-1].stop
        counted = isinstance(call.items, range)
        everything = call.items if counted else list(call.items)
        branches: list[_Branch] = []
        for group, rows in enumerate(groups):
            calls = dict(here.frame.calls)
            frame = replace(here.frame, calls=calls, group=group, groups=len(groups), rows=rows)
            part = everything if counted else slice_tree(everything, total, rows, wait)
            start = slice_tree(call.carry, total, rows, wait)
            child = replace(here, frame=frame)
            branches.append(self._start(child, replace(call, carry=start, items=part)))
        here.frame.next_ordinal(call.name)
        self._tasks.advance(here.strand, here.frontier)
        self._ended(*branches)
        subject = f"split-spatial({call.path})"
        last = merge_trees(subject, [branch.carry for branch in branches], groups, wait)
        rounds = zip(*(branch.outputs for branch in branches), strict=True)
        return last, [merge_trees(subject, parts, groups, wait) for parts in rounds]

    def by_turns(
        self, here: Scope, call: LoopCall, items: Sequence[Any], groups: int
    ) -> tuple[Any, Any]:
        """Run the iterations of a free loop in chains, turn and turn about.

        Args:
            here: The body that calls the loop.
            call: The call.
            items: Its items.
            groups: Number of chains.

        Returns:
            Last carry and outputs, as the loop returns them natively.

        Raises:
            Cancelled: If something failed meanwhile.
        """
        nothing = pytree.unflatten(self._calls.structures[call.path], iter(()))
        branches: list[_Branch] = []
        for group in range(groups):
            calls = dict(here.frame.calls)
            frame = replace(here.frame, calls=calls, group=group, groups=groups)
            child = replace(here, frame=frame)
            start, part = nothing if group else call.carry, items[group::groups]
            mine = replace(call, carry=start, items=part, turns=(group, groups))
            branches.append(self._start(child, mine))
        here.frame.next_ordinal(call.name)
        self._tasks.advance(here.strand, here.frontier)
        self._ended(*branches)
        outputs = [branches[k % groups].outputs[k // groups] for k in range(len(items))]
        return branches[live_out_instance(len(items), groups)].carry, outputs

    def beside(self, here: Scope, call: LoopCall) -> tuple[Any, Any]:
        """Run the loop in a branch of its own while the program goes on.

        Args:
            here: The body that calls the loop.
            call: The call.

        Returns:
            Last carry and outputs; where it is known to carry nothing the loop may still run.

        Raises:
            Cancelled: If something failed meanwhile.
        """
        items = call.items
        everything = items if isinstance(items, range | Outputs) else list(items)
        recorded_carry = self._calls.structures.get(call.path)
        child = replace(here, frame=replace(here.frame, calls=dict(here.frame.calls)))
        here.frame.next_ordinal(call.name)
        branch = self._start(child, replace(call, items=everything))
        self._tasks.advance(here.strand, here.frontier)
        outputs = Outputs(len(everything), lambda index: self._output(branch, index))
        if call.carry is None and recorded_carry is not None and recorded_carry.kind == "none":
            return None, outputs
        self._ended(branch)
        return branch.carry, outputs

    def join(self) -> None:
        """Wait for the end of every branch."""
        for branch in self._open:
            self._join(branch)
        self._open.clear()

    def _ended(self, *branches: _Branch) -> None:
        """Wait for the end of some branches.

        Raises:
            Cancelled: If something failed meanwhile.
        """
        for branch in branches:
            self._join(branch)
        if self._tasks.stopped:
            raise Cancelled

    def _join(self, branch: _Branch) -> None:
        """Wait for the end of a branch."""
        conductor = self._tasks.conductor
        if conductor is not None:
            self._tasks.until(lambda: branch.finished)
            here = scope.get()
            conductor.joined(MAIN if here is None else here.strand, branch.strand)
        branch.thread.join()

    def _start(self, here: Scope, call: LoopCall) -> _Branch:
        """Start a thread that runs a loop, or a part of it, on a strand of its own."""
        parent, here.strand = here.strand, StrandId(next(self._strands))
        conductor = self._tasks.conductor
        if conductor is not None:
            conductor.opened(here.strand, parent)
        announced = self._calls.announced(call.path, self._calls.chains.chain(here))
        self._tasks.open(here.strand, call.position, replace(announced, rows=here.rows))
        branch = _Branch(threading.Thread(), here.strand)
        branch.thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._run, branch, here, call, ambient.capture()),
            name=f"rose-branch-{here.strand}",
            daemon=True,
        )
        self._open.append(branch)
        branch.thread.start()
        return branch

    def _run(
        self, branch: _Branch, here: Scope, call: LoopCall, settings: ambient.Ambient | None
    ) -> None:
        try:
            with ambient.applied(settings):
                branch.carry = call.carry
                for branch.carry, output in self._bodies(here, call):
                    if call.turns[1] > 1:
                        require_nothing(call.path, branch.carry)
                    with self._tasks.changed:
                        branch.outputs.append(output)
                        self._tasks.changed.notify_all()
        except Cancelled:
            pass
        except BaseException as error:
            self._tasks.fail(self._tasks.frontier(here.strand), here.frame.group, error)
        finally:
            branch.finished = True
            self._calls.chains.end(here.strand)
            self._tasks.close(here.strand)

    def _output(self, branch: _Branch, index: int) -> Any:
        self._tasks.until(lambda: len(branch.outputs) > index or branch.finished)
        with self._tasks.changed:
            if len(branch.outputs) > index:
                return branch.outputs[index]
        raise Cancelled
