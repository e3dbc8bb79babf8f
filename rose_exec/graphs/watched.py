"""One eager call, looked at closely: would a replay of its kernels be the same call?

A replay repeats kernels on the same addresses and nothing else. So a call qualifies if all it did was
launch work of one device on its arguments, on known state and on tensors of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rose_exec.graphs.onlooker import looking_on
from rose_exec.graphs.signature import PLAIN
from rose_exec.graphs.unfit import UnfitError
from rose_trace import generators, pytree
from rose_trace.identity import derives
from rose_trace.pytree import class_of

_HOST = "Keep it on the device, or do it outside the node"


class Watch(TorchDispatchMode):
    """Notes what the operators within a block use; the first thing that no replay could repeat counts.

    Args:
        device: Where everything has to be.
        inputs: Tensors among the arguments.
        state: Storages that the call may use besides, by address of the storage object.

    Attributes:
        unfit: Why the call cannot be captured; ``None`` if nothing was seen.
        used: Storages of `state` that were used.
        draws: Whether the device's default generator was drawn from.
        drawn: What to say if generators of the host were drawn from, by the call or meanwhile by another
            thread; ``None`` if they were not.
    """

    def __init__(
        self, device: torch.device, inputs: Iterable[torch.Tensor], state: set[int]
    ) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.unfit: UnfitError | None = None
        self.used: set[int] = set()
        self.draws = False
        self.drawn: UnfitError | None = None
        self._device = device
        self._inputs = {_address(x) for x in inputs}
        self._state = state
        self._launched = False
        self._mark = object()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Look at one operator and run it."""
        named = kwargs or {}
        if self.unfit is None:
            self._safely(self._look, func, args, named)
        result = func(*args, **named)
        if self.unfit is None:
            self._safely(self._made, func, result)
        self._launched = True
        return result

    def judge(self, result: Any) -> None:
        """Look at what the call returned.

        Raises:
            UnfitError: If it cannot be captured.
        """
        if self.unfit is None and not self._launched:
            self._refuse("no work for the device", "Capture what launches some")
        for leaf in pytree.flatten(result)[0]:
            kind = class_of(leaf)
            if kind in PLAIN:
                continue
            if kind is not torch.Tensor:
                self._refuse(f"a result of type {kind.__name__}", "Return tensors and plain values")
            elif leaf.requires_grad:
                self._refuse(
                    "a result that needs gradients",
                    "Detach it, or call the node under torch.no_grad()",
                )
            elif not self._owns(leaf):
                self._refuse("a result that is an argument or a state", "Return a clone of it")
        if self.unfit is not None:
            raise self.unfit

    def _safely(self, look: Callable[..., None], func: Any, *given: Any) -> None:
        """Look at an operator; one that looks like no other is a reason, not an error of the program."""
        try:
            look(func, *given)
        except Exception as error:
            self._refuse(f"an operator of another kind ({func}: {error})", _HOST)

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tags = {tag.name for tag in func.tags}
        given = list(_tensors((args, kwargs)))
        self.draws |= "nondeterministic_seeded" in tags
        if "data_dependent_output" in tags:
            self._refuse(f"the host reads a value of the device ({func})", _HOST)
        elif func.overloadpacket in _INDEXING:
            if any(x.dtype in (torch.bool, torch.uint8) for x in _tensors(args[1])):
                self._refuse(f"indexing by a mask ({func})", "Use torch.where or a fixed size")
        elif "dynamic_output_shape" in tags:
            self._refuse(f"a shape that depends on values ({func})", "Use a fixed size")
        elif func is torch.ops.aten.lift_fresh.default:
            self._refuse("a tensor made from host values", "Make it once, outside the node")
        elif kwargs.get("generator") is not None:
            self._refuse("draws from a generator of its own", "Draw from torch's default one")
        for value in given:
            if value.device != self._device:
                self._refuse(f"a tensor on {value.device} ({func})", _HOST)
            elif not self._owns(value):
                self._outside(func, value)
        for declared, value in zip(func._schema.arguments, args, strict=False):  # noqa: SLF001
            if declared.alias_info is not None and declared.alias_info.is_write:
                self._written(func, value)
        self._written(func, kwargs.get("out"))

    def _outside(self, func: Any, value: torch.Tensor) -> None:
        address = _address(value)
        if address in self._state:
            self.used.add(address)
        elif address not in self._inputs:
            self._refuse(
                f"a tensor that is neither an argument nor a state ({func})",
                "Make it an attribute of the component",
            )

    def _written(self, func: Any, value: Any) -> None:
        if any(_address(x) in self._inputs for x in _tensors(value)):
            self._refuse(f"a write into an argument ({func})", "Write into a clone or a state")

    def _made(self, func: Any, result: Any) -> None:
        for value in _tensors(result):
            if value.device != self._device:
                self._refuse(f"a tensor on {value.device} ({func})", _HOST)
            elif _address(value) not in self._inputs and _address(value) not in self._state:
                storage: Any = value.untyped_storage()
                storage.rose_made = self._mark

    def _owns(self, value: torch.Tensor) -> bool:
        return getattr(value.untyped_storage(), "rose_made", None) is self._mark

    def _refuse(self, fact: str, action: str) -> None:
        if self.unfit is None:
            self.unfit = UnfitError(fact, action)


def watched_call(function: Callable[[], Any], watch: Watch) -> Any:
    """Make a call under a watch.

    Args:
        function: The call.
        watch: The watch; what it cannot see itself is added to its findings.

    Returns:
        What the call returned.
    """
    before = generators.capture()
    with looking_on() as onlooker, watch:
        result = function()
    drawn = [name for name in generators.changed(before, generators.capture()) if name != "cuda"]
    if onlooker.seen:  # what else was seen may be the work of its recording
        watch.unfit = UnfitError(
            f"a call of the node {onlooker.seen}", "Make that the captured node"
        )
    if drawn:
        watch.drawn = UnfitError(
            f"draws on the host ({', '.join(drawn)})", "Draw on the device, or pass what was drawn"
        )
    return result


_INDEXING = (torch.ops.aten.index, torch.ops.aten.index_put_, torch.ops.aten.index_put)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    kind = class_of(value)
    if derives(kind, torch.Tensor):
        yield value
    elif derives(kind, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif kind is dict:
        yield from _tensors(list(value.values()))


def _address(value: torch.Tensor) -> int:
    storage: Any = value.untyped_storage()
    return storage._cdata  # noqa: SLF001
