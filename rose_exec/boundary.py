"""What lives on from one iteration to the next, seen in native iterations.

A state that every iteration refreshes before anything else touches it ends with the iteration: a component
that was built anew may take over from there. Everything else has to be taken along.

Paper: §4.2 (access modes); §4.3.3 (trial copies).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rose_exec.native import Native
from rose_trace.component import Instance
from rose_trace.legality import AccessSet
from rose_trace.loop import LoopNode
from rose_trace.node import ExecutionNode
from rose_trace.records import StateAccess


@dataclass(slots=True)
class Member:
    """A component of the running program.

    Attributes:
        instance: Its recorded construction.
        component: The object that the program holds.
        states: States that its nodes touch.
        opaque: Whether one of its nodes may touch anything.
    """

    instance: Instance
    component: Any
    states: set[str] = field(default_factory=set[str])
    opaque: bool = False


class Boundary(Native):
    """Resolver that runs everything natively, recorded where a recorder is open, and watches.

    Attributes:
        members: Components by name.
        iterations: Iterations watched to their end.
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.iterations = 0
        self._written: set[str] = set()
        self._inherited: set[str] = set()
        self._touched: set[str] = set()
        self._opaque = False
        self._open: list[bool] = []  # of each node that runs: whether it called another

    def carried(self, name: str) -> bool:
        """Whether something of a component lives on that an iteration changes."""
        member = self.members[name]
        return (
            self._opaque or member.opaque or bool(member.states & self._inherited & self._written)
        )

    def constant(self, name: str) -> bool:
        """Whether a component has a state that no iteration changes."""
        return bool(self.members[name].states - self._written)

    # Resolver -----------------------------------------------------------------------------------

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run natively, and note what is touched first."""
        instance = node.instance_of(args)
        member = None if instance is None else self._member(instance, args[0])
        silent = node.declaration.silent
        if not silent:
            self._note(node.accesses(instance), member)
        with _Inside(self._open) as inside:
            result = super().invoke(node, args, kwargs)
        if silent and (not inside.called or node.is_async or node.is_generator):
            self._unknown(member)
        return result

    def run_loop(
        self, loop: LoopNode[Any, Any, Any], carry: Any, items: Iterable[Any]
    ) -> tuple[Any, Any]:
        """Run the loop natively."""
        with _Inside(self._open):
            return super().run_loop(loop, carry, items)

    def run_iteration(
        self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one iteration; what it touches first decides what it inherits."""
        self._touched.clear()
        result = super().run_iteration(node, args, kwargs)
        self.iterations += 1
        return result

    def _member(self, instance: Instance, component: Any) -> Member:
        known = self.members.get(instance.name)
        if known is None:
            known = self.members[instance.name] = Member(instance, component)
        elif known.instance is not instance:
            raise RuntimeError(
                f"rose_exec.tune: expected one component called {instance.name}, got two. Build each program "
                "inside `with rose.program():`."
            )
        return known

    def _note(self, access: AccessSet, member: Member | None) -> None:
        if access.opaque:
            self._unknown(member)
        for item in access.accesses:
            if item.state not in self._touched:
                self._touched.add(item.state)
                if item.mode is not StateAccess.REFRESH:
                    self._inherited.add(item.state)
            if item.mode.writes:
                self._written.add(item.state)
            if member is not None:
                member.states.add(item.state)

    def _unknown(self, member: Member | None) -> None:
        if member is None:
            self._opaque = True
        else:
            member.opaque = True


class _Inside:
    """A node or loop that runs."""

    def __init__(self, stack: list[bool]) -> None:
        self._stack = stack
        self.called = False

    def __enter__(self) -> _Inside:
        if self._stack:
            self._stack[-1] = True
        self._stack.append(False)
        return self

    def __exit__(self, *_: object) -> None:
        self.called = self._stack.pop()
