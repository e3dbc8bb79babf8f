"""Copies for trials: deep, faithful, and apart from the program."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from typing import Any, cast

from rose_exec.digest import is_array, is_tensor
from rose_exec.sanitizer.account import own_account
from rose_trace.pytree import class_of

COPY_DEPTH = 6  # ours: how deep simulators are looked for in a component

_allocate: Callable[[Any], Any] = object.__new__


def copied(value: Any) -> Any:
    """A deep copy, attribute by attribute, that keeps the recorded construction of components.

    Objects that pickle only what they were made from (simulators often do) are copied as they are now.
    """
    memo: dict[int, Any] = {}
    made: list[tuple[Any, Any]] = []
    _prepare(value, memo, made, 0, set())
    result = copy.deepcopy(value, memo)
    for original, empty in made:
        empty.__dict__.update(copy.deepcopy(original.__dict__, memo))
    return result


def _prepare(
    value: Any, memo: dict[int, Any], made: list[tuple[Any, Any]], depth: int, seen: set[int]
) -> None:
    """Fill `memo` with empty objects for those that deepcopy would make anew from their arguments."""
    if id(value) in seen or depth > COPY_DEPTH or is_tensor(value) or is_array(value):
        return
    seen.add(id(value))
    parts: Iterable[Any] = ()
    if isinstance(value, list | tuple):
        parts = cast("Iterable[Any]", value)
    elif isinstance(value, dict):
        parts = cast("dict[Any, Any]", value).values()
    elif hasattr(value, "_parameters"):
        return
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        instance = value.__dict__.get("_rose_instance")
        if instance is not None:
            memo[id(instance)] = instance
        own = class_of(value).__dict__.get("__deepcopy__")
        remade = any("__setstate__" in vars(c) for c in class_of(value).__mro__)
        if own is None and remade and own_account(value) is None:
            with contextlib.suppress(TypeError):  # C code makes its own
                empty = _allocate(class_of(value))
                memo[id(value)] = empty
                made.append((value, empty))
        attributes: dict[str, Any] = value.__dict__
        parts = attributes.values()
    for part in list(parts):
        _prepare(part, memo, made, depth + 1, seen)
