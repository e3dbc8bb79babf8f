"""``ROSE_PLAN=plan.json python train.py``: a plan for a whole program, without changing it."""

from __future__ import annotations

import atexit
import multiprocessing
import os
from collections.abc import Iterable
from typing import Any

from rose_trace import hooks
from rose_trace.component import Instance
from rose_trace.loop import LoopNode
from rose_trace.node import ExecutionNode

PLAN_VARIABLE = "ROSE_PLAN"


def install() -> None:
    """Replay with the plan that the environment names, from the first decorated call on.

    Worker processes inherit the environment but not the plan: they are told what to run.
    """
    path = os.environ.get(PLAN_VARIABLE)
    if path and multiprocessing.parent_process() is None:
        hooks.install_executor(_Pending(path))


class _Pending:
    """Starts the session at the first decorated call and hands the call on."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _begin(self) -> hooks.Resolver:
        from rose_exec.replay import (
            Replay,
        )  # installed while either package is still being imported

        hooks.install_executor(None)
        session = Replay(self._path).__enter__()
        atexit.register(session.close)
        resolver = hooks.active
        if resolver is None:
            from rose_exec.native import Native

            return Native()
        return resolver

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first call is a node."""
        return self._begin().invoke(node, args, kwargs)

    def run_loop(
        self, loop: LoopNode[Any, Any, Any], carry: Any, items: Iterable[Any]
    ) -> tuple[Any, Any]:
        """The first call is a loop."""
        return self._begin().run_loop(loop, carry, items)

    def run_iteration(
        self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The first call is an iteration."""
        return self._begin().run_iteration(node, args, kwargs)

    def iterate(self, name: str, items: Iterable[Any]) -> Iterable[Any]:
        """The first call is a traced loop."""
        return self._begin().iterate(name, items)

    def construct(
        self, instance: Instance, component: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """The first call constructs a component."""
        self._begin().construct(instance, component, args, kwargs)

    def attribute(self, instance: Instance, component: Any, name: str) -> Any:
        """No component lives elsewhere yet."""
        return self._begin().attribute(instance, component, name)
