"""What a component holds, as bytes: to move it between processes, or to give a trial copy its state.

A class that offers ``snapshot()`` and ``restore(value)`` says itself what that is; of any other all attributes
are taken, in one piece, so that an optimizer still updates the parameters of its own module.

Does not handle: memory that two arrays share, and objects that two components share. Both are told, not
guessed: the copy would be two where there was one.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import signal
import sys
import threading
from collections.abc import Generator
from dataclasses import fields, is_dataclass
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np

from rose_exec.digest import is_array, is_tensor
from rose_trace.component import INSTANCE


class NotCarried(RuntimeError):
    """A component's state cannot be taken along."""


def save(component: Any) -> bytes:
    """The state of a component.

    Args:
        component: Any object; a component in practice.

    Returns:
        What `load` takes.

    Raises:
        NotCarried: If it cannot be told apart from what others hold, or cannot be pickled.
    """
    value, offered = held(component)
    seen = _Seen(type(component).__name__)
    try:
        seen.dumps(value)
        graded: list[Any] = [tensor for tensor in seen.tensors if tensor.grad is not None]
        grads = [tensor.grad for tensor in graded]  # pickling a tensor leaves its gradient behind
        return _Seen(seen.name).dumps((offered, value, graded, grads))
    except NotCarried:
        raise
    except Exception as error:
        raise NotCarried(
            f"{seen.name}: expected attributes that can be pickled, got {error}. "
            "Give the class snapshot() and restore(value)."
        ) from error


def load(component: Any, data: bytes) -> None:
    """Put a component into a saved state.

    Args:
        component: One of the same class.
        data: What `save` returned.
    """
    offered, value, graded, grads = _loads(data)
    for tensor, grad in zip(graded, grads, strict=True):
        tensor.grad = grad
    restore(component, offered, value)


def arrays(data: bytes) -> list[Any]:
    """Tensors and arrays of a saved state, gradients included, in the order in which it holds them."""
    _, value, _, grads = _loads(data)
    seen = _Seen("A saved state")
    seen.dumps((value, grads))
    return [obj for obj in seen.alive if is_tensor(obj) or is_array(obj)]


def held(component: Any) -> tuple[Any, bool]:
    """What a component's state is, and whether its class says so itself."""
    offered = _offered(component)
    return (component.snapshot() if offered else _attributes(component)), offered


def restore(component: Any, offered: bool, value: Any) -> None:
    """Give a component of the same class what `held` told of another."""
    if offered:
        component.restore(value)
    else:
        put_back(component, value)


def refuse_component(obj: Any, holder: str = "A component") -> None:
    """Stop where a component is inside another: a copy of one would be one too many.

    Raises:
        NotCarried: If `obj` is a component.
    """
    if INSTANCE in getattr(obj, "__dict__", ()):
        inside: Any = getattr(obj, INSTANCE)
        raise NotCarried(
            f"{holder}: expected attributes of its own, got component {inside.name} inside. "
            "Give the class snapshot() and restore(value)."
        )


def take_away(component: Any) -> dict[str, Any]:
    """Empty a component whose state lives elsewhere for a while; returns what it held."""
    held = _attributes(component)
    for name in held:
        del component.__dict__[name]
    return held


def put_back(component: Any, attributes: dict[str, Any]) -> None:
    """Give a component these attributes and no others."""
    take_away(component)
    component.__dict__.update(attributes)


def shared(components: dict[str, Any]) -> dict[str, str]:
    """Components that hold objects of each other, which copies of each would not.

    Args:
        components: Components by name.

    Returns:
        By name, what it shares and with whom. A component that cannot be pickled is not looked into.
    """
    owners: dict[int, str] = {}
    keep: list[Any] = []
    found: dict[str, str] = {}
    for name, component in components.items():
        seen = _Seen(name)
        with contextlib.suppress(Exception):
            seen.dumps(_attributes(component))
        keep.append(seen)  # identities hold as long as the objects do
        for mark, kind in seen.marks.items():
            other = owners.setdefault(mark, name)
            if other != name:
                found.setdefault(name, f"holds the same {kind} as {other}")
                found.setdefault(other, f"holds the same {kind} as {name}")
    return found


@contextlib.contextmanager
def uninterrupted() -> Generator[None]:
    """Let a Ctrl-C wait for the end of the block."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    pending: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pending.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pending:
        signal.raise_signal(signal.SIGINT)


def _offered(component: Any) -> bool:
    cls = cast(Any, type(component))
    return callable(getattr(cls, "snapshot", None)) and callable(getattr(cls, "restore", None))


def _attributes(component: Any) -> dict[str, Any]:
    held = cast("dict[str, Any]", vars(component))
    return {name: value for name, value in held.items() if name != INSTANCE}


def _loads(data: bytes) -> Any:
    if data[:1] == b"T":
        import torch

        return torch.load(io.BytesIO(data[1:]), weights_only=False)  # pyright: ignore[reportUnknownMemberType]
    return pickle.loads(data[1:])


class _Seen:
    """One walk over what a component holds.

    Args:
        name: The component, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: list[Any] = []
        self.marks: dict[int, str] = {}
        self._arrays: dict[int, int] = {}
        self.alive: list[Any] = []

    def dumps(self, value: Any) -> bytes:
        """Pickle a value and note what is in it; torch keeps views of one storage together."""
        noting = self._note

        class Pickler(pickle.Pickler):
            def reducer_override(self, obj: Any) -> Any:
                noting(obj)
                return NotImplemented

        buffer = io.BytesIO()
        torch = sys.modules.get("torch")
        if torch is None:
            buffer.write(b"P")
            Pickler(buffer, protocol=5).dump(value)
        else:
            buffer.write(b"T")
            module = SimpleNamespace(Pickler=Pickler, __name__="pickle")
            inner = io.BytesIO()
            torch.save(value, inner, pickle_module=module, pickle_protocol=5)
            buffer.write(inner.getvalue())
        return buffer.getvalue()

    def _note(self, obj: Any) -> None:
        if isinstance(obj, type | FunctionType | ModuleType):
            return
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            self._note_tensor(obj)
        elif isinstance(obj, np.ndarray):
            self._note_array(obj)  # pyright: ignore[reportUnknownArgumentType]
        else:
            refuse_component(obj, self.name)
            if getattr(obj, "__dict__", None) and not _frozen(obj):
                self._mark(id(obj), type(obj).__name__)
        self.alive.append(obj)

    def _note_tensor(self, tensor: Any) -> None:
        if tensor.requires_grad and tensor.grad_fn is not None:
            raise NotCarried(
                f"{self.name}: expected no autograd graph between iterations, got a tensor with one. "
                "Keep .detach() of it."
            )
        self.tensors.append(tensor)
        if tensor.numel():
            self._mark(tensor.untyped_storage().data_ptr(), "tensor memory")

    def _note_array(self, array: np.ndarray[Any, Any]) -> None:
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        place = int(root.__array_interface__["data"][0])
        if not array.nbytes:
            return
        other = self._arrays.setdefault(place, id(array))
        if other != id(array) or self.marks.get(place) == "tensor memory":
            raise NotCarried(
                f"{self.name}: expected arrays of their own memory, got two that share it (shapes up to "
                f"{list(root.shape)}). Give the class snapshot() and restore(value)."
            )
        self._mark(place, "array memory")

    def _mark(self, mark: int, kind: str) -> None:
        if self.marks.setdefault(mark, kind) == "array memory" and kind == "tensor memory":
            raise NotCarried(
                f"{self.name}: expected arrays of their own memory, got one that a tensor shares. "
                "Give the class snapshot() and restore(value)."
            )


def _frozen(obj: Any) -> bool:
    """Whether an object is a record that nobody changes."""
    cls = cast(Any, type(obj))
    parameters: Any = getattr(cls, "__dataclass_params__", None)
    return is_dataclass(obj) and bool(parameters and parameters.frozen) and bool(fields(obj))
