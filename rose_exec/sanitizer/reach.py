"""What a function can reach without being given it: globals, closed-over variables, defaults, classes.

Calls are followed within the same top-level package, decorated nodes excepted, which are looked at
themselves. Reaching is by name: code that finds its state through strings is not seen through.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rose_trace.identity import derives
from rose_trace.node import ExecutionNode
from rose_trace.pytree import class_of

FOREIGN = ("torch", "numpy", "rose_trace", "rose_exec", "rose_opt", "gymnasium", "mujoco", "wrapt")
"""Packages whose code is not looked into."""


_BEHIND = {
    staticmethod: "__func__",
    classmethod: "__func__",
    types.MethodType: "__func__",
    property: "fget",
    functools.partial: "func",
}


@dataclass(frozen=True, slots=True)
class Reached:
    """Something that code refers to.

    Attributes:
        label: Name of what holds it, e.g. a module.
        kind: ``class``, ``global`` or ``closure``.
        values: Its values by name, read when asked.
        holder: The class, where it is one.
    """

    label: str
    kind: str
    values: Callable[[], Mapping[str, Any]]
    holder: Any = None


def class_data(cls: type) -> dict[str, Any]:
    """Attributes of a class that are data, not code."""
    if not _own(cls.__module__) or cls.__module__ == "builtins":
        return {}
    return {
        name: value
        for name, value in vars(cls).items()
        if not name.startswith("__")
        and name not in ("_rose_component", "_abc_impl")
        and _data(value)
    }


def reachable(entry: Any, known: set[int]) -> Iterator[Reached]:
    """Everything that `entry` refers to and that `known` does not have yet."""
    function = _function(entry)
    if function is None or id(function) in known or not _own(function.__module__):
        return
    known.add(id(function))
    yield from _closure(function, known)
    yield from _defaults(function)
    for code in _codes(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield from _named(function.__globals__, name, code.co_names, known, function)


def _named(
    space: dict[str, Any],
    name: str,
    names: tuple[str, ...],
    known: set[int],
    function: types.FunctionType,
) -> Iterator[Reached]:
    value = space[name]
    if isinstance(value, types.ModuleType):
        if _same_package(value.__name__, function.__module__):
            for attribute in names:
                if attribute in vars(value) and attribute not in space:
                    yield from _named(vars(value), attribute, (), known, function)
        return
    if isinstance(value, type):
        if class_data(value):
            yield Reached(value.__qualname__, "class", lambda: class_data(value), value)
        return
    called = _function(value)
    if called is not None:
        if not hasattr(value, "__rose_node__") and _same_package(
            called.__module__, function.__module__
        ):
            yield from reachable(called, known)
        return
    if _data(value):
        module = str(space.get("__name__", "?"))
        label = f"{module.rpartition('.')[2]}:{name}"
        yield Reached(label, "global", lambda: {"value": space.get(name)})


def _closure(function: types.FunctionType, known: set[int]) -> Iterator[Reached]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            value = None
        called = _function(value)
        if called is not None and not hasattr(value, "__rose_node__"):
            yield from reachable(called, known)
        elif called is None:
            label = f"{function.__qualname__.replace('<locals>.', '')}:{name}"
            yield Reached(label, "closure", functools.partial(_cell, cell))


def _cell(cell: types.CellType) -> dict[str, Any]:
    try:
        value = cell.cell_contents
    except ValueError:
        return {}
    return {"value": value} if _data(value) else {}


def _defaults(function: types.FunctionType) -> Iterator[Reached]:
    own = {k: v for k, v in vars(function).items() if not k.startswith("__") and _data(v)}
    mutable = isinstance(function.__defaults__, tuple) and any(
        isinstance(x, list | dict | set) for x in function.__defaults__
    )
    if own or mutable:
        label = function.__qualname__.replace("<locals>.", "")
        yield Reached(
            label,
            "closure",
            lambda: {
                **{k: v for k, v in vars(function).items() if not k.startswith("__") and _data(v)},
                "__defaults__": function.__defaults__,
            },
        )


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _function(value: Any) -> types.FunctionType | None:
    """The plain function behind a method, node, property or partial; what a loop calls is its own."""
    definition = getattr(value, "__rose_node__", None)
    found: Any = value if definition is None else definition.function
    for kind, behind in _BEHIND.items():
        if derives(class_of(found), kind):
            found = getattr(found, behind)
    return found if isinstance(found, types.FunctionType) else None


def _data(value: Any) -> bool:
    skipped = (
        types.ModuleType,
        types.FunctionType,
        types.BuiltinFunctionType,
        types.MethodType,
        types.MemberDescriptorType,
        types.GetSetDescriptorType,
        type,
        property,
        staticmethod,
        classmethod,
        functools.partial,
        functools.cached_property,
        ExecutionNode,
    )
    if isinstance(value, skipped) or hasattr(value, "__rose_node__"):
        return False
    kind = class_of(value)
    return kind.__module__ not in (
        "typing",
        "logging",
        "types",
        "_thread",
        "threading",
    )


def _own(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in FOREIGN


def _same_package(one: str | None, other: str | None) -> bool:
    return (one or "").partition(".")[0] == (other or "").partition(".")[0]
