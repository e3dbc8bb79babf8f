"""`rose.loop`, `rose.iterations`, `rose.iteration`: loops as the optimizer sees them.

Paper: §4.2, Fig. 6 (LoopNode).
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from rose_trace import hooks
from rose_trace.node import ExecutionNode
from rose_trace.pytree import class_of
from rose_trace.records import Declaration

if TYPE_CHECKING:
    from rose_trace.component import Instance

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Carry = TypeVar("Carry")
Item = TypeVar("Item")
Output = TypeVar("Output")


class LoopNode(ExecutionNode, Generic[Carry, Item, Output]):
    """A loop with the scan convention: ``carry, outputs = loop(carry, count=n | over=iterable)``.

    The body takes ``(carry, item)`` and returns ``(carry, output)``; with ``count=`` the item is the
    index. Its own code is glue around nodes and must be free of side effects.
    """

    kind = "loop"

    def __init__(self, body: Callable[..., tuple[Carry, Output]], name: str | None = None) -> None:
        if inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body):
            raise TypeError(
                f"rose.loop({body.__qualname__}): expected a plain function, got a coroutine or generator. "
                "Use rose.iterations for loops that cannot be rewritten."
            )
        super().__init__(body, name, Declaration())
        functools.update_wrapper(self, body)
        self._bound: Any = None

    def __get__(self, instance: Any, owner: type | None = None) -> LoopNode[Carry, Item, Output]:
        """Bind to an instance, so that a loop can be a method."""
        if instance is None:
            return self
        bound = copy.copy(self)
        bound._bound = instance  # noqa: SLF001
        return bound

    @property
    def instance(self) -> Instance | None:
        """The component instance that this loop is a method of, if any."""
        return getattr(self._bound, "_rose_instance", None)

    def body(self, carry: Carry, item: Item) -> tuple[Carry, Output]:
        """One iteration, natively.

        Raises:
            TypeError: If the body does not return a pair.
        """
        result: Any = (
            self.entry(carry, item) if self._bound is None else self.entry(self._bound, carry, item)
        )
        if not (issubclass(class_of(result), tuple) and len(result) == 2):
            raise TypeError(
                f"rose.loop({self.key}): expected the body to return (carry, output), got "
                f"{class_of(result).__name__}. Return a pair, with None where there is no carry or output."
            )
        return result

    def __call__(
        self, carry: Carry, *, count: int | None = None, over: Iterable[Item] | None = None
    ) -> tuple[Carry, list[Output]]:
        """Run the loop.

        Args:
            carry: Value handed from iteration to iteration.
            count: Number of iterations; the item is then the index.
            over: Items, one per iteration.

        Returns:
            The last carry and the outputs in iteration order.

        Raises:
            TypeError: If not exactly one of `count` and `over` is given.
        """
        if (count is None) == (over is None):
            raise TypeError(
                f"rose.loop({self.key}): expected exactly one of count= and over=, got both or neither."
            )
        items: Iterable[Any] = range(count) if count is not None else over  # type: ignore[assignment]
        resolver: Any = hooks.active
        if resolver is None:
            return self.run(carry, items)
        return resolver.run_loop(self, carry, items)

    def run(self, carry: Carry, items: Iterable[Item]) -> tuple[Carry, list[Output]]:
        """All iterations in order, natively."""
        outputs: list[Output] = []
        for item in items:
            carry, output = self.body(carry, item)
            outputs.append(output)
        return carry, outputs


@overload
def loop(
    body: Callable[[Carry, Item], tuple[Carry, Output]], /
) -> LoopNode[Carry, Item, Output]: ...


@overload
def loop(
    body: Callable[[Any, Carry, Item], tuple[Carry, Output]], /
) -> LoopNode[Carry, Item, Output]: ...


def loop(body: Callable[..., Any], /) -> LoopNode[Any, Any, Any]:
    """Make ``body(carry, item) -> (carry, output)`` a loop that the optimizer may split and move.

    Paper: §4.2.
    """
    return LoopNode(body)


def iterations(name: str, items: Iterable[T]) -> Iterable[T]:
    """Iterate over `items` as a traced loop that cannot be rewritten.

    Args:
        name: Name in paths.
        items: What to iterate over.

    Returns:
        The same items in the same order.
    """
    resolver = hooks.active
    return items if resolver is None else resolver.iterate(name, items)


class IterationNode(ExecutionNode):
    """The root loop: one call is one RL iteration."""

    kind = "iteration"


@overload
def iteration(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def iteration(
    function: None = None, /, *, name: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def iteration(function: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """Mark the function whose call is one RL iteration: the root of the hierarchy.

    Args:
        function: The function, when used as a bare ``@rose.iteration``.
        name: Name in paths; the function's name by default.

    Returns:
        The same function with the same signature.
    """

    def decorate(entry: Callable[..., Any]) -> Callable[..., Any]:
        definition = IterationNode(entry, name, Declaration())

        @functools.wraps(entry)
        def call(*args: Any, **kwargs: Any) -> Any:
            resolver = hooks.active
            if resolver is None:
                return entry(*args, **kwargs)
            return resolver.run_iteration(definition, args, kwargs)

        call.__rose_node__ = definition  # type: ignore[attr-defined]
        return call

    return decorate if function is None else decorate(function)
