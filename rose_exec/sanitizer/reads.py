"""What a body reads: attributes of components, and memory in torch operations.

Does not handle: reads of numpy memory through a view that was taken earlier, reads by kernels that torch
does not dispatch, and attributes of objects below a component (their tensors are seen all the same).
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Generator, Iterator
from typing import Any

from rose_exec.digest import is_tensor
from rose_exec.sanitizer.account import memory_of

NoteAttribute = Callable[[Any, str], None]
NoteMemory = Callable[[int, int], None]


class AttributeReads:
    """Tells of every attribute that is read on an instance of the classes added.

    Args:
        note: Called with the component and the name.
    """

    def __init__(self, note: NoteAttribute) -> None:
        self._note = note
        self._patched: dict[type, bool] = {}

    def add(self, cls: Any) -> None:
        """Watch instances of a class, once."""
        if cls in self._patched:
            return
        self._patched[cls] = "__getattribute__" in vars(cls)
        original: Callable[[Any, str], Any] = cls.__getattribute__
        note = self._note

        def __getattribute__(self: Any, name: str) -> Any:
            value = original(self, name)
            if not name.startswith(("__", "_rose_")) and not isinstance(
                value, types.MethodType | types.FunctionType
            ):
                note(self, name)
            return value

        __getattribute__.__wrapped__ = original  # type: ignore[attr-defined]
        cls.__getattribute__ = __getattribute__

    def close(self) -> None:
        """Leave the classes as they were."""
        for cls, own in self._patched.items():
            if own:
                cls.__getattribute__ = cls.__getattribute__.__wrapped__  # type: ignore[attr-defined,method-assign]
            else:
                del cls.__getattribute__  # type: ignore[misc]
        self._patched.clear()


@contextlib.contextmanager
def memory_reads(note: NoteMemory) -> Generator[None]:
    """Tell of the memory that torch operations of this thread read inside the block.

    Args:
        note: Called with first and last address of each tensor that an operation does not overwrite.
    """
    if "torch" not in sys.modules:
        yield
        return
    with _mode(note):
        yield


def _mode(note: NoteMemory) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Reads(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            for tensor in _read(func, args, kwargs or {}):
                span = memory_of(tensor)
                if span is not None:
                    note(*span)
            return func(*args, **(kwargs or {}))

    return Reads()


def _read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Tensors among the arguments that the operation does not write."""
    schema = getattr(func, "_schema", None)
    declared = [] if schema is None else list(schema.arguments)
    by_name = {argument.name: argument for argument in declared}
    pairs = [
        *((value, declared[k] if k < len(declared) else None) for k, value in enumerate(args)),
        *((value, by_name.get(name)) for name, value in kwargs.items()),
    ]
    for value, argument in pairs:
        alias = None if argument is None else argument.alias_info
        if alias is not None and alias.is_write:
            continue
        for item in value if isinstance(value, list | tuple) else (value,):  # pyright: ignore[reportUnknownVariableType]
            if is_tensor(item):
                yield item
