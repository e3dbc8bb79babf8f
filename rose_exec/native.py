"""The native entry of a decorated call inside a running task, with the guard that keeps a plan honest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from rose_trace import hooks
from rose_trace.component import LocalComponents
from rose_trace.legality import AccessSet
from rose_trace.loop import LoopNode
from rose_trace.node import ExecutionNode


@dataclass(frozen=True, slots=True)
class Running:
    """The task that this thread executes.

    Attributes:
        path: Node path of the task.
        allowed: What it announced that it may touch.
        composites: Definitions that only call other nodes, by key.
    """

    path: str
    allowed: AccessSet
    composites: frozenset[str] = frozenset()


running: ContextVar[Running | None] = ContextVar("rose_running", default=None)
"""The task executed here; ``None`` in glue code."""


class Observer(Protocol):
    """Watches the bodies of nodes."""

    def observe(
        self,
        node: ExecutionNode,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        """Run a body, and look at what it does."""
        ...


observer: ContextVar[Observer | None] = ContextVar("rose_observer", default=None)
"""Who watches the task executed here."""


class UnannouncedAccess(RuntimeError):
    """A node inside a task touches a state that the task did not announce."""


class Native(LocalComponents):
    """Resolver that runs everything natively, recorded where a recorder is open."""

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the user's function.

        Raises:
            UnannouncedAccess: If the enclosing task did not announce what `node` declares.
        """
        task = running.get()
        if task is not None:
            _guard(task, node, args)
        watching = observer.get()
        if watching is not None:
            return watching.observe(node, args, kwargs, lambda: _run(node, args, kwargs))
        return _run(node, args, kwargs)

    def run_loop(
        self, loop: LoopNode[Any, Any, Any], carry: Any, items: Iterable[Any]
    ) -> tuple[Any, Any]:
        """Run the loop in order."""
        recorder = hooks.recorder()
        return loop.run(carry, items) if recorder is None else recorder.run_loop(loop, carry, items)

    def run_iteration(
        self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the root natively."""
        recorder = hooks.recorder()
        if recorder is None:
            return node.entry(*args, **kwargs)
        return recorder.run_iteration(node, args, kwargs)

    def iterate(self, name: str, items: Iterable[Any]) -> Iterable[Any]:
        """The items themselves."""
        recorder = hooks.recorder()
        return items if recorder is None else recorder.iterate(name, items)


def _run(node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    recorder = hooks.recorder()
    return node.entry(*args, **kwargs) if recorder is None else recorder.invoke(node, args, kwargs)


def _guard(task: Running, node: ExecutionNode, args: tuple[Any, ...]) -> None:
    if task.allowed.opaque or (node.declaration.silent and node.key in task.composites):
        return
    instance = node.instance_of(args)
    access = node.accesses(instance)
    if not task.allowed.covers(access):
        extra = (
            "an undeclared node"
            if access.opaque
            else ", ".join(str(a) for a in access.accesses if a not in task.allowed.accesses)
        )
        raise UnannouncedAccess(
            f"{task.path}: expected only the accesses recorded below it, got {extra} from "
            f"{node.full_name(instance)}. Record a new trace that covers this call and plan again."
        )
