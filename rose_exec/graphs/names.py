"""What a function can reach by name, and what the functions that it calls can."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from rose_trace.identity import derives
from rose_trace.pytree import class_of

_MODULE = ("_parameters", "_buffers", "_modules", "training", "forward")
"""What code that calls a torch module relies on without naming it."""


def reached(
    function: Callable[..., Any], owner: Any, names: dict[str, None]
) -> list[types.FunctionType]:
    """Functions that `function` calls by name, itself first; collects all names that they use.

    Followed are methods of the owner and functions of the same top-level package. Code that finds things
    through strings is not seen through.

    Args:
        function: The function.
        owner: The component that it is a method of, if any.
        names: Receives the names.

    Returns:
        The functions as written, without their decorators.
    """
    found: list[types.FunctionType] = []
    waiting: list[Any] = [function]
    cls: Any = None if owner is None else class_of(owner)
    if cls is not None and derives(cls, torch.nn.Module):
        names |= dict.fromkeys(_MODULE)
        waiting.append(cls.forward)
    while waiting:
        each = _written(waiting.pop())
        if each is None or each in found or _package(each) == "torch":
            continue
        found.append(each)
        for code in _codes(each.__code__):
            for name in code.co_names:
                names[name] = None
                waiting.append(getattr(cls, name, None))
                value = each.__globals__.get(name)
                if getattr(value, "__module__", None) and _package(value) == _package(function):
                    waiting.append(value)
    return found


def _written(value: Any) -> types.FunctionType | None:
    """The plain function behind a decorated one, a method or a property."""
    found: Any = value
    for name in ("fget", "func", "__func__"):
        found = getattr(found, name, found)
    while derives(class_of(found), types.FunctionType) and hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found if isinstance(found, types.FunctionType) else None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _package(value: Any) -> str:
    return str(value.__module__).partition(".")[0]
