"""What a captured call reaches besides its arguments: weights by address, host values by identity.

A graph holds addresses and numbers as they were when it was captured. Here is remembered what they came
from, so that a call finds out whether they still hold.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch

from rose_exec.graphs.names import reached
from rose_exec.graphs.signature import PLAIN
from rose_exec.graphs.unfit import UnfitError
from rose_trace.identity import derives
from rose_trace.pytree import class_of

MAX_VALUES = 100_000  # ours: looking at them takes about 5 ms a call

_CODE: Any = types.ModuleType | types.FunctionType | types.BuiltinFunctionType | type | property
_FOREIGN = (
    "threading",
    "_thread",
    "logging",
    "queue",
    "weakref",
    "numpy",
    "collections",
    "rose_trace",
    "rose_opt",
    "rose_exec",
)


_FORWARD = {
    "training",
    "_parameters",
    "_buffers",
    "_modules",
    "_forward_hooks",
    "_forward_pre_hooks",
}
_BOOKKEEPING = frozenset(vars(torch.nn.Module())) - _FORWARD
"""What a torch module keeps about itself, without what its forward pass looks at."""


class _Cells:
    """Variables that a function closes over, by name."""

    def __init__(self, function: types.FunctionType) -> None:
        cells = function.__closure__ or ()
        self._cells = dict(zip(function.__code__.co_freevars, cells, strict=True))

    def __getitem__(self, name: str) -> Any:
        try:
            return self._cells[name].cell_contents
        except ValueError:  # not assigned yet
            return None


class State:
    """Everything that a function can reach by name, as it is now.

    Args:
        function: The function as written.
        owner: The component that it is a method of; of its attributes those count that the code names.

    Raises:
        UnfitError: If that is too much to look at before every call.
    """

    def __init__(self, function: Callable[..., Any], owner: Any = None) -> None:
        self._places: list[Any] = []  # what holds a value, under which key, which value, its name
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._labels: list[str] = []
        self._whole: list[Collection[Any]] = []  # of what all values count, and how many there are
        self._sizes: list[int] = []
        self._names_of_whole: dict[int, str] = {}
        self._known: dict[int, Any] = {}
        self._placed: list[tuple[str, torch.Tensor, int]] = []
        self._tensors: list[torch.Tensor] = []
        self._addresses: list[int] = []
        self._graded: list[tuple[str, torch.Tensor, torch.Tensor | None, int]] = []
        if owner is not None:
            self._known[id(owner)] = None  # a reference would keep it alive for ever
        names: dict[str, None] = {}
        for code in reached(function, owner, names):
            self._add_code(code, names)
        if owner is not None:
            for base in class_of(owner).__mro__:
                here = vars(base)
                self._walk(self._hold(base.__name__, here, [k for k in here if k in names]))
            own = _space(owner)
            self._walk(self._hold("self", own, [k for k in own if k in names]))

    def keep(self, storages: Collection[int]) -> None:
        """Leave out tensors that the call does not use, and gradients that it neither uses nor replaces.

        Args:
            storages: Storages that it uses, by address of the storage object.
        """
        self._graded = [
            each
            for each in self._graded
            if _storage(each[2]) in storages or _grad(each[1]) is not each[2]
        ]
        self._placed = [each for each in self._placed if _storage(each[1]) in storages]
        self._tensors = [x for _, x, _ in self._placed]
        self._addresses = [address for _, _, address in self._placed]

    @property
    def storages(self) -> set[int]:
        """Storages of all its tensors and their gradients, by address of the storage object."""
        known = [x for _, x, _ in self._placed] + [grad for _, _, grad, _ in self._graded]
        return {_storage(x) for x in known if x is not None}

    def difference(self) -> str | None:
        """Name of the first thing that is another now; ``None`` if everything is as it was."""
        try:
            sizes = list(map(len, self._whole))
            now = map(operator.getitem, self._places, self._keys)
            same = sizes == self._sizes and all(map(operator.is_, now, self._values))
        except (KeyError, IndexError):
            same = False
        moved = None if same else self._moved()
        if moved is not None:
            return moved
        if list(map(torch.Tensor.data_ptr, self._tensors)) != self._addresses:
            return next((name for name, x, address in self._placed if x.data_ptr() != address), "")
        for label, value, grad, address in self._graded:
            if _grad(value) is not grad or _address(grad) != address:
                return f"{label}.grad"
        return None

    def _add_code(self, function: types.FunctionType, names: dict[str, None]) -> None:
        free = function.__code__.co_freevars
        self._walk(self._hold(function.__name__, _Cells(function), free))
        space = function.__globals__
        self._walk(self._hold("", space, [name for name in names if name in space]))

    def _moved(self) -> str | None:
        """The first value that differs; equal plain values are taken over."""
        for place, size in zip(self._whole, self._sizes, strict=True):
            if len(place) != size:
                return self._names_of_whole[id(place)]
        for n, (place, key) in enumerate(zip(self._places, self._keys, strict=True)):
            old = self._values[n]
            try:
                new = place[key]
            except (KeyError, IndexError):
                return self._labels[n]
            if old is not new:
                if class_of(old) is not class_of(new) or class_of(old) not in PLAIN or old != new:
                    return self._labels[n]
                self._values[n] = new
        return None

    def _hold(
        self, label: str, place: Any, keys: Iterable[Any], *, dotted: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """Hold values of a container or namespace; what hangs on them is still to be walked.

        Raises:
            UnfitError: If there are too many.
        """
        for key in keys:
            name = f"{label}[{key!r}]" if label and not dotted else f"{label}.{key}".lstrip(".")
            self._places.append(place)
            self._keys.append(key)
            self._values.append(place[key])
            self._labels.append(name)
            yield name, place[key]
        if len(self._places) > MAX_VALUES:
            raise UnfitError(
                f"more than {MAX_VALUES:,} values that it can reach",
                "Let it reach its own weights only",
            )

    def _hold_all(
        self, label: str, place: Any, keys: Iterable[Any], *, dotted: bool = False
    ) -> Iterator[tuple[str, Any]]:
        """Hold all values of a container, and that it gets no others."""
        self._whole.append(place)
        self._sizes.append(len(place))
        self._names_of_whole[id(place)] = label
        return self._hold(label, place, keys, dotted=dotted)

    def _walk(self, values: Iterable[tuple[str, Any]]) -> None:
        """Hold all that hangs on values."""
        waiting = list(values)
        while waiting:
            label, value = waiting.pop()
            kind = class_of(value)
            if kind in PLAIN or derives(kind, _CODE) or id(value) in self._known:
                continue
            self._known[id(value)] = value
            if derives(kind, torch.Tensor):
                if value.layout is torch.strided:
                    self._placed.append((label, value, value.data_ptr()))
                    self._tensors.append(value)
                    self._addresses.append(value.data_ptr())
                    self._graded.append((label, value, _grad(value), _address(_grad(value))))
            elif kind is types.MethodType:
                waiting.append((label, value.__self__))
            elif kind is tuple:
                waiting += [(f"{label}[{n}]", item) for n, item in enumerate(value)]
            elif derives(kind, tuple | list):
                waiting += self._hold_all(label, value, range(len(value)))
            elif derives(kind, torch.nn.Module):
                space = _space(value)
                waiting += self._hold(label, space, [k for k in space if k not in _BOOKKEEPING])
            else:
                if derives(kind, dict):
                    waiting += self._hold_all(label, value, tuple(value))
                if kind.__module__.partition(".")[0] not in _FOREIGN and hasattr(value, "__dict__"):
                    space = _space(value)
                    waiting += self._hold_all(label, space, tuple(space), dotted=True)


def _space(value: Any) -> dict[str, Any]:
    return value.__dict__


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
