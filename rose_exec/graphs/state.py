"""What a captured call reaches besides its arguments: weights by address, host values by identity.

A graph holds addresses and numbers as they were when it was captured. Here is remembered what they came
from, so that a call finds out whether they still hold.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from rose_exec.graphs.names import reached
from rose_exec.graphs.signature import PLAIN
from rose_exec.graphs.unfit import UnfitError
from rose_trace.identity import derives
from rose_trace.pytree import class_of

MAX_HOLDERS = 50_000  # ours: objects of one call's state

_CODE: Any = types.ModuleType | types.FunctionType | types.BuiltinFunctionType | type | property
_FOREIGN = ("threading", "_thread", "logging", "queue", "weakref", "numpy", "rose_trace")


_Placed: TypeAlias = "tuple[str, torch.Tensor, int, torch.Tensor | None, int]"
"""Name of a tensor, itself, its address, its gradient and the gradient's address."""


@dataclass(slots=True)
class _Holder:
    """A container or namespace: its values as they were.

    Attributes:
        label: Name in messages.
        container: What has as many parts as values were saved.
        read: Its present values.
        names: Their names.
        saved: The values.
    """

    label: str
    container: Collection[Any]
    read: Callable[[], Iterable[Any]]
    names: Callable[[], Iterable[Any]]
    saved: tuple[Any, ...]


class State:
    """Everything that a function can reach by name, as it is now.

    Args:
        function: The function as written.
        owner: The component that it is a method of; of its attributes those count that the code names.

    Raises:
        UnfitError: If that is too much to look at before every call.
    """

    def __init__(self, function: Callable[..., Any], owner: Any = None) -> None:
        self._holders: list[_Holder] = []
        self._empty: list[Collection[Any]] = []
        self._known: dict[int, Any] = {}
        self._tensors: list[_Placed] = []
        if owner is not None:
            self._known[id(owner)] = None  # a reference would keep it alive for ever
        names: dict[str, None] = {}
        for code in reached(function, owner, names):
            self._add_code(code, names)
        if owner is not None:
            for base in class_of(owner).__mro__:
                self._named(base.__name__, vars(base), tuple(n for n in vars(base) if n in names))
            own = _space(owner)
            self._named("self", own, tuple(n for n in own if n in names))

    def keep(self, storages: Collection[int]) -> None:
        """Leave out tensors that the call does not use.

        Args:
            storages: Storages that it uses, by address of the storage object.
        """
        self._tensors = [
            each
            for each in self._tensors
            if _storage(each[1]) in storages or _storage(each[3]) in storages
        ]

    @property
    def storages(self) -> set[int]:
        """Storages of all its tensors and their gradients, by address of the storage object."""
        return {_storage(x) for each in self._tensors for x in (each[1], each[3]) if x is not None}

    def difference(self) -> str | None:
        """Name of the first thing that is another now; ``None`` if everything is as it was."""
        same = operator.is_
        try:
            if any(self._empty):
                return "a list or dict that was empty"
            for held in self._holders:
                if len(held.container) != len(held.saved):
                    return held.label
                if not all(map(same, held.read(), held.saved)):
                    moved = _moved(held)
                    if moved is not None:
                        return moved
        except (RuntimeError, ValueError):  # another thread writes to it, or a cell was emptied
            return "something that another thread changes"
        for label, value, address, grad, grad_address in self._tensors:
            if value.data_ptr() != address:
                return label
            if _grad(value) is not grad or _address(grad) != grad_address:
                return f"{label}.grad"
        return None

    def _add_code(self, function: types.FunctionType, names: dict[str, None]) -> None:
        cells = function.__closure__ or ()
        free = function.__code__.co_freevars
        contents = tuple(_content(cell) for cell in cells)
        self._hold(function.__name__, cells, lambda: map(_content, cells), lambda: free, contents)
        for name, value in zip(free, contents, strict=True):
            self._walk(name, value)
        space = function.__globals__
        self._named("", space, tuple(n for n in names if n in space))

    def _named(self, label: str, space: Mapping[str, Any], names: tuple[str, ...]) -> None:
        """Hold some names of a namespace."""
        values = tuple(map(space.get, names))
        self._hold(label, names, lambda: map(space.get, names), lambda: names, values)
        for name, value in zip(names, values, strict=True):
            self._walk(f"{label}.{name}" if label else name, value)

    def _hold(
        self,
        label: str,
        container: Collection[Any],
        read: Callable[[], Iterable[Any]],
        names: Callable[[], Iterable[Any]],
        saved: tuple[Any, ...],
    ) -> None:
        if saved:
            self._holders.append(_Holder(label, container, read, names, saved))
        if len(self._holders) > MAX_HOLDERS:
            raise UnfitError(
                f"more than {MAX_HOLDERS:,} objects that it can reach",
                "Let it reach its own weights only",
            )

    def _walk(self, label: str, value: Any) -> None:
        """Hold all that hangs on a value."""
        waiting: list[tuple[str, Any]] = [(label, value)]
        while waiting:
            label, value = waiting.pop()
            kind = class_of(value)
            if kind in PLAIN or derives(kind, _CODE) or id(value) in self._known:
                continue
            self._known[id(value)] = value
            if derives(kind, torch.Tensor):
                if value.layout is torch.strided:
                    grad = _grad(value)
                    self._tensors.append((label, value, value.data_ptr(), grad, _address(grad)))
            elif kind is types.MethodType:
                waiting.append((label, value.__self__))
            elif derives(kind, tuple | list):
                items: Any = value
                if kind is not tuple:
                    self._full(label, items, items.__iter__, lambda c=items: range(len(c)))
                waiting += [(f"{label}[{n}]", item) for n, item in enumerate(items)]
            else:
                waiting += self._namespace(label, value, kind)

    def _namespace(self, label: str, value: Any, kind: type[Any]) -> Iterator[tuple[str, Any]]:
        """Hold a dict or an object's attributes; their values are still to be walked."""
        if derives(kind, dict):
            self._full(label, value, value.values, value.keys)
            for key, item in value.items():
                yield f"{label}[{key!r}]" if class_of(key) in PLAIN else label, item
        if kind.__module__.partition(".")[0] not in _FOREIGN and hasattr(value, "__dict__"):
            space = _space(value)
            self._full(label, space, space.values, space.keys)
            for name, item in space.items():
                if name != "_rose_instance":
                    yield f"{label}.{name}", item

    def _full(
        self,
        label: str,
        container: Collection[Any],
        read: Callable[[], Iterable[Any]],
        names: Callable[[], Iterable[Any]],
    ) -> None:
        """Hold all parts of a container."""
        if container:
            self._hold(label, container, read, names, tuple(read()))
        else:
            self._empty.append(container)


def _space(value: Any) -> dict[str, Any]:
    return value.__dict__


def _moved(held: _Holder) -> str | None:
    """The first part that differs; equal plain values are taken over."""
    now = tuple(held.read())
    for name, old, new in zip(held.names(), held.saved, now, strict=False):
        same = class_of(old) is class_of(new) and class_of(old) in PLAIN and old == new
        if old is not new and not same:
            return f"{held.label}.{name}" if held.label else str(name)
    held.saved = now
    return None


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _grad(value: torch.Tensor) -> torch.Tensor | None:
    return value.grad if value.is_leaf else None  # others warn, and keep none


def _address(value: torch.Tensor | None) -> int:
    return 0 if value is None else value.data_ptr()


def _storage(value: torch.Tensor | None) -> int:
    """Address of the storage object, which views share; 0 for none."""
    if value is None:
        return 0
    storage: Any = value.untyped_storage()
    return storage._cdata  # noqa: SLF001
