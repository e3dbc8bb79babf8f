"""Which GPUs this process may use: CUDA's numbers beside NVML's handles.

CUDA and NVML count differently: ``CUDA_VISIBLE_DEVICES`` hides and reorders, and where GPUs differ CUDA
puts the fastest first unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. CUDA is never initialised here, because
the program may still want to fork.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pynvml

nvml: Any = pynvml  # its type stubs are incomplete

ORDER_SECONDS = 20.0  # ours: how long the driver may take to list its devices

LIST_DEVICES = """
import ctypes, uuid
cuda = ctypes.CDLL("libcuda.so.1")
count, device, found = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for ordinal in range(count.value):
    assert cuda.cuDeviceGet(ctypes.byref(device), ordinal) == 0
    assert cuda.cuDeviceGetUuid(ctypes.byref(found), device) == 0
    print(f"GPU-{uuid.UUID(bytes=bytes(found))}")
"""
"""Prints the UUIDs in CUDA's order; runs in a process of its own."""


def visible() -> list[tuple[str, Any]]:
    """CUDA name (``cuda:0``, …) and NVML handle of every visible GPU; NVML must be initialised."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(k) for k in range(nvml.nvmlDeviceGetCount())]
    uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    alike = len({_text(nvml.nvmlDeviceGetName(handle)) for handle in handles}) <= 1
    if not alike and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        uuids = in_cuda_order(uuids, _listed())
    by_uuid = {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}
    return [
        (f"cuda:{ordinal}", by_uuid.get(uuid) or nvml.nvmlDeviceGetHandleByUUID(uuid))
        for ordinal, uuid in enumerate(selected(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids))
    ]


def missing() -> str | None:
    """Why NVML shows no GPU here; ``None`` where it shows one."""
    try:
        nvml.nvmlInit()
        return None if visible() else "no visible NVIDIA GPU"
    except nvml.NVMLError as error:
        return f"no NVIDIA driver ({error})"


def selected(chosen: str | None, uuids: Sequence[str]) -> list[str]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, by the rules of CUDA.

    Entries are numbers, UUIDs or beginnings of one UUID; the first that names no GPU ends the list. A MIG
    instance is named by its own UUID.

    Args:
        chosen: Value of the variable; ``None`` where it is not set.
        uuids: UUIDs of all GPUs in CUDA's order.

    Returns:
        UUIDs in the order of the process's device numbers.

    >>> selected("1,GPU-a", ["GPU-aa", "GPU-bb"])
    ['GPU-bb', 'GPU-aa']
    >>> selected("0,-1,1", ["GPU-aa", "GPU-bb"])
    ['GPU-aa']
    """
    if chosen is None:
        return list(uuids)
    found: list[str] = []
    for entry in chosen.split(","):
        item = entry.strip()
        if item.startswith("MIG-"):
            named = [item]
        elif item.isdigit():
            named = list(uuids[int(item) : int(item) + 1])
        else:
            named = [uuid for uuid in uuids if item and uuid.lower().startswith(item.lower())]
        if len(named) != 1 or named[0] in found:
            break
        found += named
    return found


def in_cuda_order(uuids: Sequence[str], listed: Sequence[str]) -> list[str]:
    """UUIDs in the order that the CUDA driver lists them; as they are where it lists others.

    >>> in_cuda_order(["GPU-a", "GPU-b"], ["GPU-b", "GPU-a"])
    ['GPU-b', 'GPU-a']
    """
    return list(listed) if sorted(listed) == sorted(uuids) else list(uuids)


def _listed() -> list[str]:
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", LIST_DEVICES],
            capture_output=True,
            text=True,
            timeout=ORDER_SECONDS,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name  # bytes from older bindings
