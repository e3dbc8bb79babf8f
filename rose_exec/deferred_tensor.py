"""Deferred tensors: tensors to torch itself, whose C++ code looks behind every proxy.

torch takes an object whose ``__class__`` is ``Tensor`` for one and reads its memory, so a deferred
tensor has to be one: a wrapper without storage, of which every use reaches the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from rose_trace import pytree
from rose_trace.pytree import Leaf

if TYPE_CHECKING:
    from rose_exec.refs import Value


class DeferredTensor(torch.Tensor):
    """One tensor of a result that may not be there yet; using it waits for it."""

    rose_deferred = True

    _self_value: Value
    _self_leaf: Leaf
    _self_wait: Callable[[Value], Any]
    _self_found: Any

    @staticmethod
    def __new__(
        cls: type[DeferredTensor], value: Value, leaf: Leaf, wait: Callable[[Value], Any]
    ) -> DeferredTensor:
        """Make the wrapper; its own shape and type are what was recorded."""
        made: DeferredTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]  # noqa: SLF001
            cls, leaf.shape or (), dtype=getattr(torch, leaf.dtype)
        )
        made._self_value, made._self_leaf, made._self_wait = value, leaf, wait
        return made

    def __init__(self, value: Value, leaf: Leaf, wait: Callable[[Value], Any]) -> None:
        """Nothing is left to do."""

    @property
    def __wrapped__(self) -> torch.Tensor:
        """The value; waits for it."""
        attributes: dict[str, Any] = object.__getattribute__(self, "__dict__")
        if "_self_found" not in attributes:
            attributes["_self_found"] = attributes["_self_wait"](attributes["_self_value"])
        return attributes["_self_found"]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Torch functions take the value itself."""
        if func is torch.Tensor.cpu and len(args) == 1 and not kwargs:
            staged = args[0].rose_host_copy()
            if staged is not None:
                return staged
        return _on_values(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """So do kernels that torch reaches without calling a torch function."""
        return _on_values(func, args, kwargs)

    def rose_host_copy(self) -> torch.Tensor | None:
        """A copy in host memory that needs none on this process's device; ``None`` where there is none."""
        from rose_exec.refs import HostCopy

        attributes: dict[str, Any] = object.__getattribute__(self, "__dict__")
        if "_self_found" in attributes:
            return None
        return attributes["_self_wait"](HostCopy(attributes["_self_value"]))

    def __copy__(self) -> DeferredTensor:
        return self


def _on_values(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    from rose_exec.refs import concrete

    return func(*pytree.map_leaves(concrete, args), **pytree.map_leaves(concrete, kwargs or {}))
