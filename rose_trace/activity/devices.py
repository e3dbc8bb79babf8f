"""Which GPUs this process may use, as NVML sees them."""

from __future__ import annotations

import os
from typing import Any

import pynvml

nvml: Any = pynvml  # its type stubs are incomplete


def visible() -> list[tuple[str, Any]]:
    """CUDA name (``cuda:0``, …) and NVML handle of every visible GPU; NVML must be initialised.

    ``CUDA_VISIBLE_DEVICES`` selects and orders them, by index or by UUID.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        handles = [nvml.nvmlDeviceGetHandleByIndex(k) for k in range(nvml.nvmlDeviceGetCount())]
    else:
        handles = [_handle(item.strip()) for item in chosen.split(",") if item.strip()]
    return [(f"cuda:{index}", handle) for index, handle in enumerate(handles)]


def missing() -> str | None:
    """Why NVML shows no GPU here; ``None`` where it shows one."""
    try:
        nvml.nvmlInit()
        return None if visible() else "no visible NVIDIA GPU"
    except nvml.NVMLError as error:
        return f"no NVIDIA driver ({error})"


def _handle(item: str) -> Any:
    return (
        nvml.nvmlDeviceGetHandleByIndex(int(item))
        if item.isdigit()
        else nvml.nvmlDeviceGetHandleByUUID(item)
    )
