"""Torch settings that surround a call: a task runs under those of the glue code that made it.

Grad mode, inference mode and autocast belong to a thread; the default dtype, the matmul precision and
the choice of deterministic kernels to a process. All of them change what a node computes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Ambient:
    """Torch settings of one thread.

    Attributes:
        grad: Whether gradients are recorded.
        inference: Whether inference mode is on.
        autocast: Element type to cast to, per device type; empty where autocast is off.
        dtype: Default element type.
        precision: Precision of float32 matrix products.
        deterministic: Whether only deterministic kernels are chosen.
    """

    grad: bool
    inference: bool
    autocast: tuple[str, ...]
    dtype: str
    precision: str
    deterministic: bool


DEFAULT = Ambient(True, False, ("", ""), "torch.float32", "highest", False)
"""Settings that torch will have where it is not loaded yet."""


def capture() -> Ambient | None:
    """Settings of this thread; ``None`` where torch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return Ambient(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple(
            str(torch.get_autocast_dtype(d)) if torch.is_autocast_enabled(d) else ""
            for d in DEVICES
        ),
        str(torch.get_default_dtype()),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
    )


def stream() -> Any:
    """CUDA stream of this thread; ``None`` where CUDA is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda.current_stream()  # pyright: ignore[reportUnknownMemberType]


_AS_IS = contextlib.nullcontext()


def applied(ambient: Ambient | None) -> contextlib.AbstractContextManager[None]:
    """Run a block under `ambient`, where it differs from this thread's settings."""
    if ambient is None or ambient == (capture() or DEFAULT):
        return _AS_IS
    return _changed_to(ambient)


@contextlib.contextmanager
def _changed_to(ambient: Ambient) -> Generator[None]:
    import torch

    here = capture()
    assert here is not None
    if ambient.dtype != here.dtype:
        torch.set_default_dtype(getattr(torch, ambient.dtype.removeprefix("torch.")))
    if ambient.precision != here.precision:
        torch.set_float32_matmul_precision(ambient.precision)
    if ambient.deterministic != here.deterministic:
        torch.use_deterministic_algorithms(ambient.deterministic)
    with contextlib.ExitStack() as stack:
        if ambient.inference != here.inference:
            stack.enter_context(torch.inference_mode(ambient.inference))
        if ambient.grad != torch.is_grad_enabled():
            stack.enter_context(torch.set_grad_enabled(ambient.grad))
        for device, wanted, found in zip(DEVICES, ambient.autocast, here.autocast, strict=True):
            if wanted != found:
                kind = getattr(torch, wanted.removeprefix("torch.")) if wanted else None
                stack.enter_context(torch.autocast(device, kind, enabled=bool(wanted)))
        yield
