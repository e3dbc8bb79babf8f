"""How much memory the machine has, and how much of it this process has taken at most.

What a plan may build a second time depends on it.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def read_memory() -> dict[str, int]:
    """Memory of this machine and this process.

    Returns:
        ``host_bytes``, what the process may use of the host, and ``host_peak_bytes``, the most it has
        used; where it uses CUDA, also ``gpu_bytes``, the size of the smallest device it sees, and
        ``gpu_peak_bytes``, the most that is or was taken of one, by other processes too.
    """
    import psutil

    limits = [psutil.virtual_memory().total]
    with contextlib.suppress(OSError, ValueError):  # no limit reads "max"
        limits.append(int(CGROUP_LIMIT.read_text(encoding="ascii")))
    told = {
        "host_bytes": min(limits),
        "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        told |= _devices(torch.cuda)
    return told


def together(processes: list[Mapping[str, int]]) -> dict[str, int]:
    """Memory of one machine, of what its processes have read.

    >>> together([{"host_bytes": 8, "host_peak_bytes": 2}, {"host_bytes": 8, "host_peak_bytes": 1}])
    {'host_bytes': 8, 'host_peak_bytes': 3}
    """
    found: dict[str, int] = {}
    for told in processes:
        for name, value in told.items():
            known = found.get(name)
            if known is None:
                found[name] = value
            elif name == "host_peak_bytes":
                found[name] = known + value
            elif name == "gpu_peak_bytes" or " of " in name:  # of a component: where it is whole
                found[name] = max(known, value)
            else:
                found[name] = min(known, value)
    return found


def _devices(cuda: Any) -> dict[str, int]:
    sizes: list[int] = []
    taken: list[int] = []
    with contextlib.suppress(RuntimeError):  # of a device that no longer works
        for device in range(cuda.device_count()):
            free, total = cuda.mem_get_info(device)
            sizes.append(int(total))
            taken.append(max(int(total - free), int(cuda.max_memory_reserved(device))))
    return {"gpu_bytes": min(sizes), "gpu_peak_bytes": max(taken)} if sizes else {}
