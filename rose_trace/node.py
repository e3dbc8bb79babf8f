"""`rose.node`: the execution node of the paper, a function whose invocations are recorded and may be moved.

Paper: §4.2, Fig. 6.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from rose_trace import hooks
from rose_trace.fingerprint import fingerprint
from rose_trace.graph_entry import captured
from rose_trace.legality import AccessSet
from rose_trace.pytree import definition_key
from rose_trace.records import Declaration

if TYPE_CHECKING:
    from rose_trace.component import Instance

P = ParamSpec("P")
R = TypeVar("R")

registry: dict[str, ExecutionNode] = {}
"""Latest definition of every node and loop, by ``module:qualname``: what a plan is checked against."""


class ExecutionNode:
    """A decorated function: its entry, its declaration and its fingerprint.

    Attributes:
        name: Name as used in paths, without the component.
        function: The user's function.
        entry: What runs for it: the function, or captured calls of it where `graph=True` asks for that.
        declaration: What its author declared.
        key: ``module:qualname`` of the definition.
        is_method: Whether the first parameter is a component instance.
    """

    kind = "exec"

    # What every invocation asks for has a fixed place: the native hot path reads it there, and leaves
    # the site of the last invocation in `recent`.
    __slots__ = ("__dict__", "__weakref__", "entry", "is_method", "name", "recent", "suspends")

    def __init__(
        self, entry: Callable[..., Any], name: str | None, declaration: Declaration
    ) -> None:
        self.function = entry
        self.name = name or entry.__name__
        self.declaration = declaration
        self.key = definition_key(entry)
        self.is_method = False
        self.recent: Any = None
        self.is_async = inspect.iscoroutinefunction(entry)
        self.is_generator = inspect.isgeneratorfunction(entry) or inspect.isasyncgenfunction(entry)
        self.suspends = self.is_async or self.is_generator
        self.entry = self._captured() if declaration.graph else entry
        registry[self.key] = self

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the normalised source and the declaration: what a plan relies on."""
        return fingerprint(self.function, self.declaration)

    @property
    def graph_name(self) -> str:
        """The node in messages about its captures."""
        return f"rose.node({self.key}, graph=True)"

    def _captured(self) -> Callable[..., Any]:
        """The entry of a node that is captured.

        Raises:
            ValueError: If a call of it returns before its work is issued.
        """
        if self.suspends:
            kind = "a coroutine function" if self.is_async else "a generator"
            raise ValueError(
                f"{self.graph_name}: expected a plain function, got {kind}. Only what a "
                "call has launched when it returns can be captured: put that into a node of its own."
            )
        return captured(self)

    def instance_of(self, args: tuple[Any, ...]) -> Instance | None:
        """The component instance an invocation belongs to, if any."""
        if not self.is_method or not args:
            return None
        return getattr(args[0], "_rose_instance", None)

    def full_name(self, instance: Instance | None) -> str:
        """Name in a path: ``policy.act`` for a method, ``gae`` for a function."""
        return self.name if instance is None else f"{instance.name}.{self.name}"

    def accesses(self, instance: Instance | None) -> AccessSet:
        """Declared accesses on one instance; opaque where nothing is declared (a leaf then is a fence)."""
        if self.declaration.silent:
            return AccessSet(opaque=True)
        if instance is None:
            return AccessSet(self.declaration.accesses(None))
        return AccessSet(self.declaration.accesses(instance.name, instance.batch_states))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key}>"


@overload
def node(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def node(
    function: None = None,
    /,
    *,
    name: str | None = None,
    reads: str | Sequence[str] = (),
    updates: str | Sequence[str] = (),
    refreshes: str | Sequence[str] = (),
    pure: bool = False,
    rows: bool | str | Sequence[str] = False,
    graph: bool = False,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def node(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    reads: str | Sequence[str] = (),
    updates: str | Sequence[str] = (),
    refreshes: str | Sequence[str] = (),
    pure: bool = False,
    rows: bool | str | Sequence[str] = False,
    graph: bool = False,
) -> Any:
    """Make a function, method or async function an execution node.

    Args:
        function: The function, when used as a bare ``@rose.node``.
        name: Name in paths; the function's name by default.
        reads: States whose existing value is used, relative to the component (``"weights"``) or
            absolute (``"policy.weights"``).
        updates: States that get a new value from the previous one.
        refreshes: States that get a new value that inherits nothing.
        pure: The node touches no state. Without `pure` and without states, a leaf node conflicts
            with everything and is never moved; a node that only calls other nodes has their accesses.
            One that calls nodes and declares states of its own does work between its calls: it always
            runs as one task.
        rows: Row i of every output depends only on row i of the inputs (row axis 0). ``True``: every
            tensor argument whose first axis has the batch's length carries rows; names: only those
            parameters do.
        graph: Capture the device work of a call into a CUDA graph and replay it, with or without a
            plan. Calls that cannot be captured run eagerly, with a message; so do all where there is
            no CUDA. What the function does on the host is not repeated.

    Returns:
        The same function with the same signature. Without a trace, a plan and `graph` it runs
        unchanged.

    Raises:
        ValueError: If the declarations contradict each other, or `graph` is asked of a coroutine or
            generator function.

    Paper: §4.2.
    """
    declaration = Declaration(
        _names(reads),
        _names(updates),
        _names(refreshes),
        pure,
        rows if isinstance(rows, bool) else _names(rows),
        graph,
    )

    def decorate(entry: Callable[..., Any]) -> Callable[..., Any]:
        definition = ExecutionNode(entry, name, declaration)
        return wrap(definition)

    return decorate if function is None else decorate(function)


def wrap(definition: ExecutionNode) -> Callable[..., Any]:
    """The callable that stands for `definition`: native unless a resolver is active."""
    entry, resolved = definition.entry, hooks.invoke
    if definition.is_async:
        return _wrap_coroutine(definition)

    @functools.wraps(entry)
    def invocation(*args: Any, **kwargs: Any) -> Any:
        invoke = resolved[0]
        if invoke is None:
            return entry(*args, **kwargs)
        return invoke(definition, args, kwargs)

    invocation.__rose_node__ = definition  # type: ignore[attr-defined]
    return invocation


def _wrap_coroutine(definition: ExecutionNode) -> Callable[..., Any]:
    """A coroutine function stays one for everybody who asks."""
    entry = definition.entry

    @functools.wraps(entry)
    async def invocation(*args: Any, **kwargs: Any) -> Any:
        resolver = hooks.active
        if resolver is None:
            return await entry(*args, **kwargs)
        return await resolver.invoke(definition, args, kwargs)

    invocation.__rose_node__ = definition  # type: ignore[attr-defined]
    return invocation


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
