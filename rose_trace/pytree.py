"""Values that cross nodes: pytrees of tensors, arrays and plain data, and the text form of their structure.

A structure names the containers and, for each leaf, what kind of value stood there; it is what the
trace records about a result and what lets the executor hand out parts of a value that is not there yet.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

class_of: Callable[[Any], type[Any]] = type
"""`type`, with a result that a type checker can follow."""

Kind = Literal["leaf", "none", "tuple", "list", "dict", "namedtuple", "dataclass"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """What stood at one leaf.

    Attributes:
        type: ``tensor``, ``array``, or the Python type's name.
        dtype: Element type of a tensor or array, e.g. ``float32``; empty otherwise.
        shape: Shape of a tensor or array; ``None`` otherwise.
    """

    type: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """Containers of a value, with one `Leaf` wherever a leaf stood.

    Attributes:
        kind: Container kind, ``leaf`` or ``none``.
        keys: Keys of a dict, or field names of a named tuple or dataclass.
        cls: ``module:qualname`` of a named tuple or dataclass.
        children: Structures of the parts.
        leaf: Description of the leaf, for ``leaf``.
    """

    kind: Kind
    keys: tuple[str, ...] = ()
    cls: str = ""
    children: tuple[Structure, ...] = ()
    leaf: Leaf | None = None

    def leaves(self) -> Iterator[Leaf]:
        """Descriptions of all leaves, in flattening order."""
        if self.leaf is not None:
            yield self.leaf
        for child in self.children:
            yield from child.leaves()

    def matches(self, other: Structure) -> bool:
        """Whether containers and leaf types agree; shapes and element types may differ."""
        if (self.kind, self.keys, self.cls, len(self.children)) != (
            other.kind,
            other.keys,
            other.cls,
            len(other.children),
        ):
            return False
        if self.leaf is not None and other.leaf is not None and self.leaf.type != other.leaf.type:
            return False
        return all(a.matches(b) for a, b in zip(self.children, other.children, strict=True))

    def to_json(self) -> str:
        """Compact JSON, stable for equal structures."""
        return json.dumps(_encode(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Structure:
        """Inverse of `to_json`."""
        return _decode(json.loads(text))


NONE = Structure("none")


def describe_leaf(value: Any) -> Leaf:
    """Describe one leaf without touching its data."""
    shape = getattr(value, "shape", None)
    dtype = getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        is_tensor = hasattr(value, "untyped_storage")
        return Leaf(
            "tensor" if is_tensor else "array",
            str(dtype).removeprefix("torch."),
            tuple(int(n) for n in shape),
        )
    return Leaf(type(value).__name__)


def flatten(
    value: Any, describe: Callable[[Any], Leaf] = describe_leaf
) -> tuple[list[Any], Structure]:
    """Take a value apart.

    Args:
        value: Any pytree. Dicts with keys other than strings, and all other objects, are leaves.
        describe: How to describe a leaf.

    Returns:
        Leaves in a fixed order (dict order for dicts) and the structure.
    """
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves, describe)


def unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    """Build a value of `structure` from `leaves` in flattening order."""
    match structure.kind:
        case "leaf":
            return next(leaves)
        case "none":
            return None
        case "tuple":
            return tuple(unflatten(child, leaves) for child in structure.children)
        case "list":
            return [unflatten(child, leaves) for child in structure.children]
        case "dict":
            return {
                key: unflatten(child, leaves)
                for key, child in zip(structure.keys, structure.children, strict=True)
            }
        case "namedtuple":
            return resolve_class(structure.cls)(
                *(unflatten(child, leaves) for child in structure.children)
            )
        case "dataclass":
            fields = {
                k: unflatten(child, leaves)
                for k, child in zip(structure.keys, structure.children, strict=True)
            }
            return resolve_class(structure.cls)(**fields)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The same containers with `function` applied to every leaf."""
    if value is None:
        return None
    kind = class_of(value)
    if kind is dict:
        return (
            {key: map_leaves(function, item) for key, item in value.items()}
            if _plain(value)
            else function(value)
        )
    if kind is tuple or kind is list:
        make: Any = kind
        return make(map_leaves(function, item) for item in value)
    if _is_namedtuple(kind):
        return kind(*(map_leaves(function, item) for item in value))
    if dataclasses.is_dataclass(kind):
        names = [f.name for f in dataclasses.fields(kind) if f.init]
        return dataclasses.replace(
            value, **{name: map_leaves(function, getattr(value, name)) for name in names}
        )
    return function(value)


def definition_key(definition: Any) -> str:
    """``module:qualname`` of a class or function, the same in a program and in the processes it spawns.

    A spawned process imports the program's script as ``__mp_main__``.
    """
    module = definition.__module__
    module = "__main__" if module == "__mp_main__" else module
    return f"{module}:{definition.__qualname__}"


def class_key(cls: type) -> str:
    """``module:qualname`` of a class; remembers it, so that local classes resolve in this process."""
    key = definition_key(cls)
    _classes[key] = cls
    return key


def resolve_class(key: str) -> type[Any]:
    """The class named by ``module:qualname``.

    Raises:
        LookupError: If it is neither importable nor seen in this process.
    """
    if key not in _classes:
        module, _, qualname = key.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in qualname.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise LookupError(
                f"Class {key}: expected an importable class, got {error}. Define it at module level."
            ) from error
        _classes[key] = found
    return _classes[key]


_classes: dict[str, type[Any]] = {}


def _flatten(value: Any, leaves: list[Any], describe: Callable[[Any], Leaf]) -> Structure:
    if value is None:
        return NONE
    kind = class_of(value)  # never value.__class__: a deferred value must not be waited for here
    if kind is dict and _plain(value):
        return Structure(
            "dict",
            tuple(value),
            children=tuple(_flatten(v, leaves, describe) for v in value.values()),
        )
    if kind is tuple or kind is list:
        return Structure(
            "tuple" if kind is tuple else "list",
            children=tuple(_flatten(item, leaves, describe) for item in value),
        )
    if _is_namedtuple(kind):
        return Structure(
            "namedtuple",
            tuple(value._fields),
            class_key(kind),
            tuple(_flatten(item, leaves, describe) for item in value),
        )
    if dataclasses.is_dataclass(kind):
        names = tuple(f.name for f in dataclasses.fields(kind) if f.init)
        return Structure(
            "dataclass",
            names,
            class_key(kind),
            tuple(_flatten(getattr(value, n), leaves, describe) for n in names),
        )
    leaves.append(value)
    return Structure("leaf", leaf=describe(value))


def _plain(value: dict[Any, Any]) -> bool:
    return all(class_of(key) is str for key in value)


def _is_namedtuple(kind: Any) -> bool:
    return hasattr(kind, "_fields") and issubclass(kind, tuple)


def _encode(structure: Structure) -> list[Any]:
    leaf = structure.leaf
    if leaf is not None:
        return ["leaf", leaf.type, leaf.dtype, None if leaf.shape is None else list(leaf.shape)]
    return [
        structure.kind,
        list(structure.keys),
        structure.cls,
        [_encode(child) for child in structure.children],
    ]


def _decode(data: list[Any]) -> Structure:
    if data[0] == "leaf":
        return Structure(
            "leaf", leaf=Leaf(data[1], data[2], None if data[3] is None else tuple(data[3]))
        )
    return Structure(data[0], tuple(data[1]), data[2], tuple(_decode(child) for child in data[3]))
