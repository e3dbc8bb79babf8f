"""Values that may not be there yet: where they come from, and the deferred leaves a program holds.

A node called in replay returns containers of the recorded structure at once; each leaf is a `Deferred`
that stands for one part of the result. Handing it to another node waits for nothing; using it in glue
code waits for it.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import wrapt

from rose_exec import wire
from rose_exec.memory import here
from rose_exec.readiness import Position, TaskId
from rose_trace import pytree
from rose_trace.legality import RowRange
from rose_trace.pytree import Leaf, Structure


class Cancelled(BaseException):
    """Unwinds a branch whose work will not run; never seen by the user's program."""


@dataclass(slots=True)
class Result:
    """The outcome of one task.

    Attributes:
        id: Task id.
        path: Node path.
        position: Place in the native program order.
        done: Set when `leaves` or `error` is there.
        structure: Actual structure of the result.
        leaves: Wire forms of the result's leaves.
        error: What it raised; `Cancelled` where it never ran.
        guarded: Whether its exception goes to whoever waits for it.
    """

    id: TaskId
    path: str
    position: Position
    done: threading.Event = field(default_factory=threading.Event)
    structure: Structure | None = None
    leaves: Sequence[wire.Wire] = ()
    error: BaseException | None = None
    guarded: bool = False


class Value(ABC):
    """Something that exists now or later."""

    def results(self) -> Iterator[Result]:
        """Results it depends on."""
        return iter(())

    @abstractmethod
    def to_wire(self) -> wire.Wire:
        """What to send to the consumer; all results must be done."""

    def get(self) -> Any:
        """The value; all results must be done."""
        value = wire.decode(self.to_wire())
        here().fence()
        here().settle()
        return value


@dataclass(slots=True)
class Immediate(Value):
    """A value the program already has."""

    value: Any

    def to_wire(self) -> wire.Wire:
        """The object itself."""
        return wire.Object(self.value)


@dataclass(slots=True)
class Output(Value):
    """One leaf of a task's result."""

    result: Result
    index: int

    def results(self) -> Iterator[Result]:
        """The task it comes from."""
        yield self.result

    def to_wire(self) -> wire.Wire:
        """The leaf as the worker returned it."""
        return self.result.leaves[self.index]


@dataclass(slots=True)
class Rows(Value):
    """Merge: the rows of several values, in row order (axis 0).

    Attributes:
        parts: The values.
        bounds: Global rows of each part.
    """

    parts: tuple[Value, ...]
    bounds: tuple[RowRange, ...] | None = None

    def results(self) -> Iterator[Result]:
        """All tasks the parts come from."""
        for part in self.parts:
            yield from part.results()

    def to_wire(self) -> wire.Wire:
        """A concatenation, performed where it is used."""
        return wire.Concat(tuple(part.to_wire() for part in self.parts))


@dataclass(slots=True)
class Slice(Value):
    """Split: some rows of a value (axis 0)."""

    value: Value
    rows: RowRange

    def results(self) -> Iterator[Result]:
        """The tasks of the whole value."""
        return self.value.results()

    def to_wire(self) -> wire.Wire:
        """A slice, performed where it is used."""
        return wire.Rows(self.value.to_wire(), self.rows.start, self.rows.stop)


@dataclass(slots=True)
class HostCopy(Value):
    """A tensor in host memory, straight from the device of the process that holds it."""

    value: Value

    def results(self) -> Iterator[Result]:
        """The tasks of the tensor."""
        return self.value.results()

    def to_wire(self) -> wire.Wire:
        """The tensor as it is."""
        return self.value.to_wire()

    def get(self) -> Any:
        """The copy; ``None`` where no other process holds the tensor on a device."""
        return wire.to_host(self.to_wire())


_found = threading.RLock()  # one object for all, where two threads had to fetch the value


class Deferred(wrapt.LazyObjectProxy):  # type: ignore[misc]
    """One leaf of a result that may not be there yet; using it waits for it."""

    rose_deferred = True

    def __new__(cls, *_: Any, **__: Any) -> Deferred:
        """Allocate without the per-instance subclass that the base class makes."""
        return wrapt.BaseObjectProxy.__new__(cls)

    def __init__(self, value: Value, leaf: Leaf, wait: Callable[[Value], Any]) -> None:
        super().__init__(lambda: wait(value), interface=object)
        self._self_value = value
        self._self_leaf = leaf

    def __wrapped_get__(self) -> Any:
        """The value; waits for it without holding a lock.

        The base class would hold one of the whole class meanwhile: a branch that waits for a later value
        could keep another one from the value that it needs to go on.
        """
        found: Any = self.__wrapped_factory__()
        with _found:
            if not self.__wrapped_get_called__:
                self.__wrapped__ = found
                self.__wrapped_get_called__ = True
            return self.__wrapped__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], _: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Torch functions take the value itself."""
        return function(
            *pytree.map_leaves(concrete, args), **pytree.map_leaves(concrete, kwargs or {})
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        wrapped: Any = concrete(self)
        return wrapped.__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return repr(concrete(self))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        wrapped: Any = concrete(self)
        return copy.deepcopy(wrapped, memo)


def defer(value: Value, leaf: Leaf, wait: Callable[[Value], Any]) -> Any:
    """The deferred leaf that stands for `value`.

    Args:
        value: What it stands for.
        leaf: What was recorded about it.
        wait: Waits for a value.

    Returns:
        A `DeferredTensor` for a tensor, a `Deferred` for anything else.
    """
    if leaf.type == "tensor":
        from rose_exec.deferred_tensor import DeferredTensor

        return DeferredTensor(value, leaf, wait)
    return Deferred(value, leaf, wait)


def is_deferred(value: Any) -> bool:
    """Whether `value` is a deferred leaf; never waits."""
    return hasattr(pytree.class_of(value), "rose_deferred")


def concrete(leaf: Any) -> Any:
    """The value behind a leaf, waiting where it is deferred."""
    return leaf.__wrapped__ if is_deferred(leaf) else leaf


def value_of(leaf: Any) -> Value:
    """The value a leaf stands for; never waits."""
    return leaf._self_value if is_deferred(leaf) else Immediate(leaf)  # noqa: SLF001


def describe(leaf: Any) -> Leaf:
    """Describe a leaf; never waits."""
    return leaf._self_leaf if is_deferred(leaf) else pytree.describe_leaf(leaf)  # noqa: SLF001
