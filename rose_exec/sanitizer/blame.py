"""Blame: what changed between two looks was changed by the innermost open body, or else by glue."""

from __future__ import annotations

from typing import Any

from rose_exec.readiness import TaskId
from rose_exec.sanitizer import messages
from rose_exec.sanitizer.body import Body, invocation_of
from rose_exec.sanitizer.kept import Kept
from rose_exec.sanitizer.touches import Touch, Touches
from rose_exec.sanitizer.verdicts import Verdicts
from rose_exec.tasks import Task
from rose_trace.node import ExecutionNode
from rose_trace.records import GENERATOR


class Blame:
    """Who changed what.

    Args:
        kept: What the program keeps.
        verdicts: Told of changes that no declaration covers.

    Attributes:
        bodies: Open bodies, innermost last.
        touches: Who touched what in this iteration.
        unwatched: Whether glue is not to blame for what changed since the last look.
    """

    def __init__(self, kept: Kept, verdicts: Verdicts) -> None:
        self._kept = kept
        self._verdicts = verdicts
        self.bodies: list[Body] = []
        self.touches = Touches()
        self.unwatched = False

    def next_iteration(self) -> Touches:
        """An iteration has ended; returns who touched what in it."""
        ended, self.touches = self.touches, Touches()
        return ended

    def enter(self, task: Task, node: ExecutionNode, args: tuple[Any, ...], id: TaskId) -> Body:
        """A body begins; what changed before is its caller's, or glue's.

        Args:
            task: The task that it belongs to.
            node: Its definition.
            args: Arguments, the component first.
            id: The task's id.

        Returns:
            The body.
        """
        instance = node.instance_of(args)
        name = node.full_name(instance)
        self._kept.watch.add_code(node.entry, name)
        if self.bodies:
            outer = self.bodies[-1]
            outer.children += 1
            path = f"{outer.path}/{name}"
            invocation = outer.invocation.replace(outer.path, path, 1)
            self._changes(outer)
        else:
            path, invocation = task.job.path, invocation_of(task)
            self.glue(invocation)
        seen = tuple(a for a in task.job.allowed.accesses if a.state.startswith(GENERATOR))
        body = Body(id, node, instance, path, invocation, node.accesses(instance).accesses + seen)
        self.bodies.append(body)
        return body

    def leave(self, body: Body) -> None:
        """A body has ended."""
        try:
            self._changes(body)
            if body.silent and body.children:
                for path in body.pending:
                    self._verdicts.add(messages.glue_writes(path, body.path, body.invocation))
        finally:
            self.bodies.pop()
        if self.bodies:
            self.bodies[-1].wrote |= body.wrote

    def glue(self, until: str) -> None:
        """No body is open: what changed since the last look was changed by glue.

        Args:
            until: What begins now, for messages.
        """
        changed, drawn = self._kept.look()
        if self.unwatched:
            self.unwatched = False
            return
        for path, _ in changed:
            owner = self._kept.watch.roots[self._kept.root_of(path)].owner
            self._verdicts.add(
                messages.glue_writes(path, owner or "the program's glue", f"before {until}")
            )
        for name in drawn:
            self._verdicts.add(messages.glue_draws(name, f"before {until}"))

    def _changes(self, body: Body) -> None:
        """Put down what changed since the last look to a body."""
        before = self._kept.regions
        old = self._kept.seen
        changed, drawn = self._kept.look()
        for name in drawn:
            state = f"generator.{name}"
            body.wrote.add(state)
            if not body.silent and not any(
                a.state == state and a.mode.writes for a in body.accesses
            ):
                self._verdicts.add(messages.draws(body.path, body.invocation, name))
        for path, in_place in changed:
            body.wrote.add(path)
            if body.silent:
                body.pending.append(path)
                self.touches.add(path, Touch(body.task, body.path, body.invocation, True, in_place))
                continue
            self._verdicts.write(body, path, in_place, old, before, self.touches)
