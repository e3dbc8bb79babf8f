"""What a component holds, as a few flat tensors: to copy it often, and fast.

`rose_exec.handover` gives the same as bytes, which may lie in a file. Here the memory of tensors stays apart
from what is pickled: it is gathered on the device where it is, handed over as any value, and taken apart
again on the other side, so that a copy costs about as much as its memory traffic.

Does not handle: tensors on several GPUs or of other classes; `taken` then falls back on bytes.

Paper: beyond the paper.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from rose_exec import handover

ALIGNMENT = (
    64  # ours: of each storage among the gathered ones [bytes], at least that of any element
)

Snapshot = tuple[Any, Any, Any]
"""Pickled rest, host memory and GPU memory, flat. Shapes: [bytes] each."""


def taken(component: Any) -> Snapshot:
    """Take a snapshot of a component.

    Args:
        component: A component.

    Returns:
        What `put` takes; the memory in it is a copy.

    Raises:
        NotCarried: If its state cannot be told apart from what others hold, or cannot be pickled.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return _bytes(component)
    value, offered = handover.held(component)
    pickler = _Apart(io.BytesIO(), torch)
    try:
        pickler.dump((offered, value))
    except _Other:
        return _bytes(component)
    except handover.NotCarried:
        raise
    except Exception as error:
        raise handover.NotCarried(
            f"{type(component).__name__}: expected attributes that can be pickled, got {error}. "
            "Give the class snapshot() and restore(value)."
        ) from error
    places, host = _gathered(torch, pickler.host)
    devices, gpu = _gathered(torch, pickler.gpu)
    about = pickle.dumps((places, devices), protocol=5)
    head = len(about).to_bytes(8, "little")
    rest = np.frombuffer(head + about + pickler.data.getvalue(), np.uint8)
    return rest, host, gpu


def put(component: Any, snapshot: Snapshot) -> None:
    """Put a component of the same class into the state that a snapshot was taken of.

    Args:
        component: The component.
        snapshot: What `taken` returned; its memory is not kept.
    """
    rest, host, gpu = snapshot
    data = memoryview(rest)
    size = int.from_bytes(data[:8], "little")
    if not size:
        handover.load(component, bytes(data[8:]))
        return
    places, devices = pickle.loads(data[8 : 8 + size])
    storages = [_storage(host, *place) for place in places]
    on_gpu = [_storage(gpu, *place) for place in devices]
    offered, value = _Together(io.BytesIO(data[8 + size :]), storages, on_gpu).load()
    handover.restore(component, offered, value)


def _bytes(component: Any) -> Snapshot:
    data = (0).to_bytes(8, "little") + handover.save(component)
    nothing = np.zeros(0, np.uint8)
    return np.frombuffer(data, np.uint8), nothing, nothing


def _gathered(torch: Any, storages: Sequence[Any]) -> tuple[list[tuple[int, int]], Any]:
    """Where each storage begins and how long it is, and the memory of all [bytes]."""
    places: list[tuple[int, int]] = []
    end = 0
    for storage in storages:
        places.append((end, storage.nbytes()))
        end += -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
    device = storages[0].device if storages else "cpu"
    flat = torch.empty(end, dtype=torch.uint8, device=device)
    for (start, size), storage in zip(places, storages, strict=True):
        flat[start : start + size].copy_(_view(torch, storage))
    return places, flat


def _view(torch: Any, storage: Any) -> Any:
    made = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return made.set_(storage, 0, (storage.nbytes(),), (1,))


def _storage(flat: Any, start: int, size: int) -> Any:
    """A storage of its own with some of the gathered memory."""
    return flat[start : start + size].clone().untyped_storage()


class _Other(Exception):
    """A tensor whose memory is no flat storage of one device."""


class _Apart(pickle.Pickler):
    """Pickles everything but the memory of tensors; storages that are met are listed, each once."""

    def __init__(self, data: io.BytesIO, torch: Any) -> None:
        super().__init__(data, protocol=5)
        self.data = data
        self.host: list[Any] = []
        self.gpu: list[Any] = []
        self._torch = torch
        self._known: dict[tuple[str, int], tuple[str, int]] = {}
        self._alive: list[Any] = []

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        """Where the memory of a storage is found.

        Raises:
            _Other: If it is on another device than the rest.
        """
        if not isinstance(obj, self._torch.UntypedStorage):
            return None
        kind = "cpu" if obj.device.type == "cpu" else "gpu"
        key = kind, obj.data_ptr() if obj.nbytes() else -len(self._alive) - 1
        if key not in self._known:
            storages = self.host if kind == "cpu" else self.gpu
            if storages and storages[0].device != obj.device:
                raise _Other
            self._known[key] = kind, len(storages)
            storages.append(obj)
        self._alive.append(obj)
        return self._known[key]

    def reducer_override(self, obj: Any) -> Any:
        """Tensors by what they are beside their memory, gradients included.

        Raises:
            NotCarried: If one has an autograd graph.
            _Other: If its memory is no flat storage.
        """
        if not isinstance(obj, self._torch.Tensor):
            handover.refuse_component(obj)
            return NotImplemented
        parameter = type(obj) is self._torch.nn.Parameter
        if not (parameter or type(obj) is self._torch.Tensor):
            raise _Other
        if obj.layout is not self._torch.strided or obj.is_quantized or obj.is_meta:
            raise _Other
        if obj.device.type not in ("cpu", "cuda") or obj.is_conj() or obj.is_neg():
            raise _Other
        if obj.requires_grad and obj.grad_fn is not None:
            raise handover.NotCarried(
                "expected no autograd graph when a component is copied, got a tensor with one. Keep .detach() of it."
            )
        made = obj.untyped_storage(), str(obj.dtype), obj.storage_offset(), obj.size(), obj.stride()
        return _tensor, (*made, obj.requires_grad, parameter, obj.grad if obj.is_leaf else None)


class _Together(pickle.Unpickler):
    """Inverse of `_Apart`, given the storages."""

    def __init__(self, data: io.BytesIO, host: Sequence[Any], gpu: Sequence[Any]) -> None:
        super().__init__(data)
        self._storages = {"cpu": host, "gpu": gpu}

    def persistent_load(self, pid: tuple[str, int]) -> Any:
        """The storage that a tensor lies in."""
        kind, index = pid
        return self._storages[kind][index]


def _tensor(
    storage: Any,
    dtype: str,
    offset: int,
    size: Any,
    stride: Any,
    requires_grad: bool,
    parameter: bool,
    grad: Any,
) -> Any:
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    made: Any = torch.empty(0, dtype=kind, device=storage.device)
    made.set_(storage, offset, tuple(size), tuple(stride))
    if parameter:
        made = torch.nn.Parameter(made, requires_grad=requires_grad)
    elif requires_grad:
        made.requires_grad_()
    if grad is not None:
        made.grad = grad
    return made
