"""What a benchmark ran on: hardware, versions and commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Processor, GPUs, versions and commit, for the head of a result."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpus": _gpus(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")


def _gpus() -> list[str]:
    import pynvml

    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
        driver = nvml.nvmlSystemGetDriverVersion()
        handles = [nvml.nvmlDeviceGetHandleByIndex(k) for k in range(nvml.nvmlDeviceGetCount())]
        return [f"{nvml.nvmlDeviceGetName(handle)} (driver {driver})" for handle in handles]
    except nvml.NVMLError:
        return []


def _commit() -> str | None:
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None
