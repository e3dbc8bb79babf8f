"""`rose.component`: a class that owns state and can be built again elsewhere.

The constructor call is recorded, so that a worker process can build the same instance, one shard of
it, or a copy for a trial.

Paper: §4.2, Fig. 6; App. A.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from rose_trace import hooks
from rose_trace.node import ExecutionNode
from rose_trace.pytree import definition_key

C = TypeVar("C", bound=type)

registry: dict[str, ComponentClass] = {}
"""Latest definition of every component class, by ``module:qualname``."""


INSTANCE = "_rose_instance"
"""Attribute under which a component keeps its `Instance`."""


@dataclass(frozen=True, slots=True)
class ComponentClass:
    """What was declared about a component class.

    Attributes:
        name: Name of the first instance; later ones get ``#1``, ``#2``, ….
        key: ``module:qualname`` of the class.
        batch_states: States that hold one row per row of the batch.
        shardable: Whether the class can be built as shards (it has a ``shard`` classmethod).
    """

    name: str
    key: str
    batch_states: tuple[str, ...]
    shardable: bool


@dataclass(slots=True)
class Instance:
    """One constructed component.

    Attributes:
        name: Unique name in the program, e.g. ``policy`` or ``simulator#1``.
        cls: The component class object.
        declared: What was declared about the class.
        args: Positional constructor arguments.
        kwargs: Keyword constructor arguments.
        home: Whatever the resolver that built it keeps about it; ``None`` for a native instance.
        alive: Weak reference to the component; ``None`` where its class has none.
    """

    name: str
    cls: type
    declared: ComponentClass
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    home: Any = None
    alive: weakref.ref[Any] | None = None

    @property
    def batch_states(self) -> tuple[str, ...]:
        """States that hold one row per row of the batch."""
        return self.declared.batch_states

    def __reduce__(self) -> tuple[Any, ...]:
        return Instance, (self.name, self.cls, self.declared, self.args, self.kwargs)


@dataclass(slots=True)
class Program:
    """One set of component instances: names are counted within it, in construction order."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    instances: dict[str, Instance] = field(default_factory=dict[str, Instance])

    def name(self, base: str) -> str:
        """Next unique instance name for `base`."""
        index = self.counts.get(base, 0)
        self.counts[base] = index + 1
        return base if index == 0 else f"{base}#{index}"


_program: ContextVar[Program | None] = ContextVar("rose_program", default=None)
_default_program = Program()


def current_program() -> Program:
    """The program that newly constructed components belong to."""
    return _program.get() or _default_program


@contextlib.contextmanager
def program(existing: Program | None = None) -> Generator[Program]:
    """Construct components of a separate program: instance names start anew inside the block.

    Use it to build the same program twice in one process, e.g. for a comparison.
    """
    inside = existing or Program()
    token = _program.set(inside)
    try:
        yield inside
    finally:
        _program.reset(token)


@overload
def component(cls: C, /) -> C: ...


@overload
def component(
    cls: None = None, /, *, name: str | None = None, batch_states: str | Sequence[str] = ()
) -> Callable[[C], C]: ...


def component(
    cls: Any = None, /, *, name: str | None = None, batch_states: str | Sequence[str] = ()
) -> Any:
    """Make a class a component.

    Args:
        cls: The class, when used as a bare ``@rose.component``.
        name: Name of the first instance; the class name in lower case by default.
        batch_states: States of which one row belongs to one row of the batch.

    Returns:
        The same class. Optional methods a component may have: ``shard(cls, index, count, *args,
        **kwargs)`` returns the constructor arguments of one shard, as a tuple of positional arguments
        or a dict of keyword arguments; ``replica_of(other)``; ``snapshot()`` and ``restore(value)``.

    Raises:
        TypeError: If instances of the class have no ``__dict__``.
    """
    states = (batch_states,) if isinstance(batch_states, str) else tuple(batch_states)

    def decorate(target: type) -> type:
        if not target.__dictoffset__:
            raise TypeError(
                f"rose.component({target.__qualname__}): expected a class whose instances take attributes, got "
                "one with __slots__ only. Drop __slots__."
            )
        declared = ComponentClass(
            name or target.__name__.lower(),
            definition_key(target),
            states,
            callable(getattr(target, "shard", None)),
        )
        registry[declared.key] = declared
        _mark_methods(target)
        _intercept_construction(target, declared)
        _intercept_attributes(target)
        target._rose_component = declared  # type: ignore[attr-defined]  # noqa: SLF001
        return target

    return decorate if cls is None else decorate(cls)


def instance_of(component: Any) -> Instance | None:
    """The recorded construction of a component, or ``None`` for any other object."""
    return getattr(component, INSTANCE, None)


def _mark_methods(target: type) -> None:
    for base in target.__mro__:
        for member in vars(base).values():
            definition = getattr(member, "__rose_node__", None)
            if isinstance(definition, ExecutionNode):
                definition.is_method = True


def _intercept_construction(target: type, declared: ComponentClass) -> None:
    original = target.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is not target or INSTANCE in self.__dict__:
            original(self, *args, **kwargs)
            return
        scope = current_program()
        instance = Instance(scope.name(declared.name), target, declared, args, kwargs)
        scope.instances[instance.name] = instance
        if target.__weakrefoffset__:
            instance.alive = weakref.ref(self)
        object.__setattr__(self, INSTANCE, instance)
        resolver = hooks.active
        if resolver is None:
            original(self, *args, **kwargs)
        else:
            resolver.construct(instance, self, args, kwargs)

    __init__.__wrapped__ = original  # type: ignore[attr-defined]
    __init__.__doc__ = original.__doc__
    target.__init__ = __init__  # type: ignore[method-assign]


def construct_natively(instance: Instance, component: Any) -> None:
    """Run the user's constructor on an allocated component."""
    type(component).__init__.__wrapped__(component, *instance.args, **instance.kwargs)  # type: ignore[attr-defined]


class LocalComponents:
    """The part of a resolver whose components are built where the program is."""

    def construct(
        self, instance: Instance, component: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Construct a component natively."""
        construct_natively(instance, component)

    def attribute(self, instance: Instance, component: Any, name: str) -> Any:
        """No component lives elsewhere.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(f"{type(component).__name__!r} object has no attribute {name!r}")


def rebuild(instance: Instance, shard: int = 0, shards: int = 1) -> Any:
    """Build a component again from its recorded constructor call, whole or as one shard.

    Args:
        instance: The recorded construction.
        shard: Index of the shard.
        shards: Number of shards, 1 for the whole component.

    Returns:
        The new component; it has the name of the recorded one.
    """
    args, kwargs = instance.args, instance.kwargs
    if shards > 1:
        args, kwargs = shard_arguments(instance, shard, shards)
    copy: Any = _allocate(instance.cls)
    own = Instance(instance.name, instance.cls, instance.declared, args, kwargs)
    object.__setattr__(copy, INSTANCE, own)
    construct_natively(own, copy)
    return copy


_allocate: Callable[[Any], Any] = object.__new__


def shard_arguments(
    instance: Instance, shard: int, shards: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Constructor arguments of one shard, from the class's ``shard`` method.

    Raises:
        TypeError: If there is no ``shard`` method, or it returns neither a tuple nor a dict.
    """
    make: Any = getattr(instance.cls, "shard", None)
    made: Any = None if make is None else make(shard, shards, *instance.args, **instance.kwargs)
    if isinstance(made, dict):
        return (), made  # pyright: ignore[reportUnknownVariableType]
    if isinstance(made, tuple):
        return made, {}  # pyright: ignore[reportUnknownVariableType]
    raise TypeError(
        f"{instance.declared.key}.shard: expected a classmethod that returns a tuple of arguments or a dict "
        f"of keyword arguments, got {type(made).__name__}. Return what the constructor takes."
    )


def _intercept_attributes(target: type) -> None:
    """Route missing attributes of a component that lives in a worker to the resolver."""
    original = getattr(target, "__getattr__", None)

    def __getattr__(self: Any, name: str) -> Any:
        instance: Instance | None = self.__dict__.get(INSTANCE)
        if instance is not None and instance.home is not None and not name.startswith("__"):
            resolver = hooks.active
            if resolver is not None:
                return resolver.attribute(instance, self, name)
        if original is not None:
            return original(self, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    target.__getattr__ = __getattr__  # type: ignore[attr-defined]
