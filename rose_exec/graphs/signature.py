"""What a captured call depends on besides the contents of its tensors.

Two calls with equal signatures run the same kernels on the same shapes, so one capture serves both.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias, cast

import torch

from rose_exec.graphs.unfit import UnfitError
from rose_trace import pytree
from rose_trace.frames import current_rows
from rose_trace.identity import derives
from rose_trace.legality import RowRange
from rose_trace.pytree import class_of

ALIGNMENT = 64  # ours: kernels choose vector widths by address, up to 32 bytes so far
MAX_TOKENS = 4096  # ours: reading more than this costs more than a capture saves

PLAIN: frozenset[Any] = frozenset({
    bool, int, float, complex, str, bytes, type(None), range, RowRange,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
})  # fmt: skip
"""Classes of leaves that count by value."""

TENSORS: frozenset[Any] = frozenset({torch.Tensor, torch.nn.Parameter})
"""Classes of leaves that are copied in before a replay."""

Signature: TypeAlias = tuple[Hashable, ...]


def read(
    args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> tuple[Signature, list[torch.Tensor]]:
    """Signature and tensors of a call.

    Args:
        args: Positional arguments, without the component.
        kwargs: Keyword arguments.
        device: Where all tensors have to be.

    Returns:
        The signature, and the tensors in the order in which `rose_trace.pytree` flattens them.

    Raises:
        UnfitError: If an argument is neither such a tensor nor a plain value.
    """
    tokens: list[Any] = [len(args), *kwargs, *surroundings()]
    tensors: list[torch.Tensor] = []
    try:
        for value in args:
            _walk(value, tokens, tensors, device)
        for value in kwargs.values():
            _walk(value, tokens, tensors, device)
    except RecursionError:
        raise UnfitError("an argument nested too deeply", "Pass flat values") from None
    return tuple(tokens), tensors


def surroundings() -> tuple[Hashable, ...]:
    """Settings of this thread and process that decide which kernels run.

    Raises:
        UnfitError: If autocast keeps casts of weights beyond the call.
    """
    autocast = torch.is_autocast_enabled("cuda")
    if autocast and torch.is_autocast_cache_enabled():
        raise UnfitError(
            "a surrounding autocast that keeps cast weights between calls",
            "Use torch.autocast(..., cache_enabled=False), or enter it inside the node",
        )
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_autocast_dtype("cuda") if autocast else None,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        current_rows(),
    )


def replace_tensors(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The same value with its tensors replaced, in flattening order."""
    return pytree.map_leaves(lambda x: next(tensors) if class_of(x) in TENSORS else x, value)


def _walk(value: Any, tokens: list[Any], tensors: list[torch.Tensor], device: torch.device) -> None:
    kind = class_of(value)
    if kind in TENSORS:
        tokens += (kind, *_describe(value, device))
        tensors.append(value)
    elif kind in PLAIN:
        tokens += (kind, value.hex() if kind is float else value)
    elif derives(kind, enum.Enum):
        tokens += (kind, value.name)
    else:
        keys, parts = _parts(kind, value)
        tokens += (kind, keys)
        for part in parts:
            _walk(part, tokens, tensors, device)
    if len(tokens) > MAX_TOKENS:
        raise UnfitError("arguments of too many parts", "Pass few tensors in place of many values")


def _parts(kind: Any, value: Any) -> tuple[Hashable, list[Any]]:
    """Names (or number) and values of a container's parts.

    Raises:
        UnfitError: If it is no container.
    """
    if kind is tuple or kind is list:
        return len(value), value
    if kind is dict and all(class_of(key) is str for key in value):
        return tuple(value), list(value.values())
    if derives(kind, tuple) and hasattr(kind, "_fields"):
        return len(value), list(value)
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields is not None:
        names = tuple(name for name, f in fields.items() if f.init)
        return names, [getattr(value, name) for name in names]
    raise UnfitError(
        f"an argument of type {kind.__name__}",
        "Pass tensors of the device, plain values, and tuples, lists, dicts or dataclasses of them",
    )


def _describe(value: torch.Tensor, device: torch.device) -> tuple[Hashable, ...]:
    if value.device != device or value.layout is not torch.strided:
        where = value.device if value.layout is torch.strided else value.layout
        raise UnfitError(
            f"a tensor on {where} among the arguments", f"Pass dense tensors on {device}"
        )
    if value.requires_grad and torch.is_grad_enabled():
        raise UnfitError(
            "an argument that needs gradients", "Detach it, or call the node under torch.no_grad()"
        )
    place = value.data_ptr() % ALIGNMENT
    stride = cast("Callable[[], tuple[int, ...]]", value.stride)
    return value.shape, value.dtype, stride(), place, value.is_conj(), value.is_neg()
