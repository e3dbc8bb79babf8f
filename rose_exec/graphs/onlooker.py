"""Whether a call calls nodes itself: those would run once, when it is captured, and never again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterable
from typing import Any

from rose_trace import hooks
from rose_trace.component import LocalComponents


class Onlooker:
    """Stands in front of every resolver and notes whether this thread calls nodes or loops.

    Attributes:
        seen: Key of the last one that was called; empty for none.
    """

    def __init__(self) -> None:
        self.seen = ""
        self._thread = threading.get_ident()

    def invoke(self, node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pass an invocation on."""
        self._note(node)
        behind = hooks.behind()
        return node.entry(*args, **kwargs) if behind is None else behind.invoke(node, args, kwargs)

    def run_loop(self, loop: Any, carry: Any, items: Iterable[Any]) -> tuple[Any, Any]:
        """Pass a loop on."""
        self._note(loop)
        behind = hooks.behind()
        return loop.run(carry, items) if behind is None else behind.run_loop(loop, carry, items)

    def run_iteration(self, node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pass an iteration on."""
        self._note(node)
        behind = hooks.behind()
        if behind is None:
            return node.entry(*args, **kwargs)
        return behind.run_iteration(node, args, kwargs)

    def iterate(self, name: str, items: Iterable[Any]) -> Iterable[Any]:
        """Pass a traced loop on."""
        behind = hooks.behind()
        return items if behind is None else behind.iterate(name, items)

    def construct(
        self, instance: Any, component: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Pass a construction on."""
        behind = hooks.behind() or LocalComponents()
        behind.construct(instance, component, args, kwargs)

    def attribute(self, instance: Any, component: Any, name: str) -> Any:
        """Pass a look at an attribute on."""
        behind = hooks.behind() or LocalComponents()
        return behind.attribute(instance, component, name)

    def _note(self, node: Any) -> None:
        if threading.get_ident() == self._thread:
            self.seen = node.key


@contextlib.contextmanager
def looking_on() -> Generator[Onlooker]:
    """Note what nodes and loops this thread calls within a block."""
    onlooker = Onlooker()
    hooks.install_onlooker(onlooker)
    try:
        yield onlooker
    finally:
        hooks.install_onlooker(None)
