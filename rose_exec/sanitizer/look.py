"""One look at something that keeps state: every value below it by path, with a digest.

Parameters, buffers, gradients, optimizer state, attributes in nested containers, generators. `_version`
only helps where contents are too large to be hashed in full: ``.data``, kernels of the user's own and
numpy views change a tensor without it.
"""

from __future__ import annotations

import io
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from rose_exec import streams
from rose_exec.digest import FULL_BYTES, digest, digest_bytes, is_array, is_tensor
from rose_exec.refs import is_deferred
from rose_exec.sanitizer.account import attributes, generator_state, memory_of, own_account
from rose_trace.node import ExecutionNode
from rose_trace.pytree import class_of

MAX_LEAVES = 50_000  # ours: a root with more is not looked into any further
MAX_DEPTH = 24  # ours

PLAIN = (bool, int, float, complex, str, bytes, np.generic, type(None))
SKIPPED = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.GeneratorType,
    types.CodeType,
    types.FrameType,
    type,
    property,
    staticmethod,
    classmethod,
    weakref.ReferenceType,
    threading.Thread,
    threading.Event,
    threading.Condition,
    type(threading.Lock()),
    type(threading.RLock()),
    threading.local,
    io.IOBase,
    ExecutionNode,
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One watched value.

    Attributes:
        root: What it belongs to: a component, class, module or function.
        kind: ``tensor``, ``array``, ``plain``, ``generator``, or ``account`` for bytes that an object of C
            code gives of itself.
        digest: Digest of its value.
        start: First address of its memory; 0 for other than tensors and arrays.
        stop: One past the last address.
        version: Torch's count of in-place writes, where the contents were only sampled.
    """

    root: str
    kind: str
    digest: str
    start: int = 0
    stop: int = 0
    version: int = 0


@dataclass(slots=True)
class Root:
    """Something that keeps state.

    Attributes:
        label: Its name; paths below it begin with it.
        kind: ``component``, ``class``, ``global`` or ``closure``.
        values: Its values by name.
        target: The object itself, for components.
        owner: What the glue or node is called that refers to it.
    """

    label: str
    kind: str
    values: Callable[[], Mapping[str, Any]]
    target: Any = None
    owner: str = ""


@dataclass(slots=True)
class Look:
    """One look at one root.

    Attributes:
        root: What is looked at.
        found: Its values by path, filled in.
        unseen: Paths that could not be looked into, with their types; filled in.
        full_bytes: Contents above this size [bytes] are sampled.
    """

    root: Root
    found: dict[str, Leaf]
    unseen: dict[str, str]
    full_bytes: int = FULL_BYTES
    seen: set[int] = field(default_factory=set[int])
    kept: list[Any] = field(default_factory=list[Any])
    count: int = 0

    def all(self) -> None:
        """Look at every value."""
        self.seen.add(id(self.root.target))
        for name, value in list(self.root.values().items()):
            self.value(f"{self.root.label}.{name}", value, 0)

    def value(self, path: str, value: Any, depth: int) -> None:
        """Look at one value and what is below it."""
        kind = class_of(value)
        if issubclass(kind, PLAIN):
            self.leaf(path, "plain", digest(value))
            return
        if is_deferred(value) or id(value) in self.seen or issubclass(kind, SKIPPED):
            return
        if "_rose_instance" in getattr(value, "__dict__", ()):  # a component is watched itself
            return
        self.seen.add(id(value))
        self.kept.append(value)  # ids of temporary objects must not come again
        if self.count > MAX_LEAVES or depth > MAX_DEPTH:
            self.unseen[path] = f"{kind.__qualname__} (too large)"
        elif is_tensor(value):
            self.tensor(path, value, depth)
        elif is_array(value):
            self.array(path, value, depth)
        elif isinstance(value, dict):
            for index, (key, item) in enumerate(list(cast("dict[Any, Any]", value).items())):
                name = repr(key) if issubclass(class_of(key), PLAIN) else f"#{index}"
                self.value(f"{path}[{name}]", item, depth + 1)
        elif isinstance(value, list | tuple) or kind.__name__ == "deque":
            for index, item in enumerate(list(cast("Iterable[Any]", value))):
                self.value(f"{path}[{index}]", item, depth + 1)
        elif isinstance(value, set | frozenset):
            items = sorted(digest(item) for item in cast("set[Any]", value))
            self.leaf(path, "plain", repr(items))
        else:
            self.object(path, value, depth)

    def tensor(self, path: str, value: Any, depth: int) -> None:
        """Look at a tensor and its gradient.

        Raises:
            RuntimeError: If the device fails: the body that has just ended made it, and is told only now.
        """
        try:
            start = int(value.data_ptr())
            _, stop = memory_of(value) or (start, start)
            sampled = value.numel() * value.element_size() > self.full_bytes
            version = int(value._version) if sampled and not value.is_inference() else 0  # noqa: SLF001
            self.leaf(path, "tensor", digest(value, self.full_bytes), start, stop, version)
            if value.is_leaf and value.grad is not None:
                self.value(f"{path}.grad", value.grad, depth + 1)
        except (RuntimeError, NotImplementedError) as error:
            if streams.is_device_error(error):
                raise
            self.unseen[path] = class_of(value).__qualname__

    def array(self, path: str, value: Any, depth: int) -> None:
        """Look at an array; one of objects as a list."""
        if value.dtype.hasobject:
            for index, item in enumerate(value.reshape(-1)):
                self.value(f"{path}[{index}]", item, depth + 1)
            return
        low, high = np.lib.array_utils.byte_bounds(value)
        self.leaf(path, "array", digest(value, self.full_bytes), int(low), int(high))

    def object(self, path: str, value: Any, depth: int) -> None:
        """Look at an object: a generator's state, its own account of its state, or its attributes."""
        state = generator_state(value)
        if state is not None:
            self.leaf(path, "generator", state)
            return
        if hasattr(value, "_parameters") and hasattr(value, "_modules"):
            self.module(path, value, depth)
            return
        account = own_account(value)
        if account is not None:
            self.state(path, account, depth)
            return
        own = attributes(value)
        for name, item in own.items():
            self.value(f"{path}.{name}", item, depth + 1)
        if not own and not hasattr(value, "__dict__"):
            told = digest(value)
            if told == class_of(value).__qualname__:
                self.unseen[path] = told
            else:
                self.leaf(path, "plain", told)

    def state(self, path: str, state: Any, depth: int) -> None:
        """Look at what an object says of itself."""
        self.kept.append(state)
        if isinstance(state, dict):
            for name, item in cast("dict[Any, Any]", state).items():
                self.value(f"{path}.{name}", item, depth + 1)
        elif isinstance(state, bytes):
            self.leaf(path, "account", digest_bytes(np.frombuffer(state, np.uint8)))
        else:
            self.value(path, state, depth + 1)

    def module(self, path: str, value: Any, depth: int) -> None:
        """Look at a torch module under the names that torch gives its parts."""
        own: dict[str, Any] = value.__dict__
        for name, item in own.items():
            if name in ("_parameters", "_buffers", "_modules"):
                parts: dict[str, Any] = item
                for child, part in parts.items():
                    self.value(f"{path}.{child}", part, depth + 1)
            elif not name.endswith("_hooks") and not name.endswith("_hooks_with_kwargs"):
                self.value(f"{path}.{name}", item, depth + 1)

    def leaf(
        self, path: str, kind: str, told: str, start: int = 0, stop: int = 0, version: int = 0
    ) -> None:
        """Note one value."""
        self.count += 1
        self.found[path] = Leaf(self.root.label, kind, told, start, stop, version)
