"""What a decorated function asks before it runs: native entry, recorder, or a plan's replacement.

`active` is ``None`` in a plain program, so a decorated call costs one attribute lookup. The lower
package owns the protocol; recorder and executor install themselves (paper: Fig. 7, App. A).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rose_trace.component import Instance
    from rose_trace.loop import LoopNode
    from rose_trace.node import ExecutionNode


class Resolver(Protocol):
    """Decides how a decorated call runs."""

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one invocation of `node` (for methods, ``args[0]`` is the instance)."""
        ...

    def run_loop(
        self, loop: LoopNode[Any, Any, Any], carry: Any, items: Iterable[Any]
    ) -> tuple[Any, Any]:
        """Run all iterations of `loop`; returns ``(carry, outputs)``."""
        ...

    def run_iteration(
        self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one call of the root loop's body: one RL iteration."""
        ...

    def iterate(self, name: str, items: Iterable[Any]) -> Iterable[Any]:
        """Iterate over `items` as a traced loop that cannot be rewritten."""
        ...

    def construct(
        self, instance: Instance, component: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Construct `component` (already allocated), natively or in a worker."""
        ...

    def attribute(self, instance: Instance, component: Any, name: str) -> Any:
        """Read an attribute of a component that lives elsewhere; AttributeError where it has none."""
        ...


active: Resolver | None = None
"""The resolver every decorated call asks; read it as ``hooks.active``."""

invoke: list[Callable[[ExecutionNode, tuple[Any, ...], dict[str, Any]], Any] | None] = [None]
"""Its `invoke`, in one cell that every decorated function holds.

A decorated function comes between other work, when nothing is in the caches: two lookups by name less are
a tenth of what a recorded invocation costs, and a third of what one costs that nobody asks about."""

_recorder: Resolver | None = None
_executor: Resolver | None = None
_onlooker: Resolver | None = None


_watchers: list[Callable[[Resolver | None], None]] = []


def watch_recorder(watcher: Callable[[Resolver | None], None]) -> Callable[[], None]:
    """Call `watcher` whenever recording opens or ends in this process; returns how to stop that.

    It is called before what was recorded is merged, so that worker processes can write theirs.
    """
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher)


def recorder() -> Resolver | None:
    """The recorder of this process, if one is open."""
    return _recorder


def install_recorder(resolver: Resolver | None) -> None:
    """Open or close recording for this process."""
    global _recorder
    _recorder = resolver
    _activate()
    for watcher in list(_watchers):
        watcher(resolver)


def install_executor(resolver: Resolver | None) -> None:
    """Put an executor in front of the recorder, or take it away."""
    global _executor
    _executor = resolver
    _activate()


def install_onlooker(resolver: Resolver | None) -> None:
    """Put a resolver that passes everything on in front of all others, or take it away."""
    global _onlooker
    _onlooker = resolver
    _activate()


def _activate() -> None:
    global active
    active = _onlooker or behind()
    invoke[0] = None if active is None else active.invoke


def behind() -> Resolver | None:
    """What an onlooker passes calls on to; ``None`` in a plain program."""
    return _executor or _recorder
