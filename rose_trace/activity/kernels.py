"""Kernel records of this process: SM activity estimated from grids, through torch's profiler.

The profiler collects CUDA activity in windows. At the end of each, a process of its own reads the
records and estimates ``min(1, blocks of all running kernels / SMs)`` (`rose_trace.interop.kernel_activity`).

Never chosen by ``auto``: it takes the process's only profiler, every launch is recorded, and exporting
a window holds the interpreter (63 μs a kernel in all beside one H200; ``benchmarks/gpu_trace`` measures it).
Use it where neither PM sampling nor GPM works, on programs with few launches.

Does not handle: other processes' kernels; kernels that run across the end of a window; a program that
captures CUDA graphs or uses torch.profiler while it records. Between two windows nothing is sampled.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rose_trace.activity import devices

log = logging.getLogger("rose_trace")

RESOLUTION_NS = 1_000_000  # ours: as fine as PM sampling is by default
WINDOW_SECONDS = 2.0  # ours: the gap between two windows is some ms per 1,000 kernels
LOOK_SECONDS = 0.02  # ours: how often to look whether the program has begun to use CUDA
RECORD = struct.Struct("<iqqf")  # device, start and end [Unix ns], activity [fraction]

ONLY_ASKED = (
    "used only when asked for: it takes the process's profiler and costs some 60 us per kernel"
)
"""Why ``auto`` passes it over."""


class Window(Protocol):
    """A profiler that collects kernel records between `start` and `stop`."""

    def ready(self) -> dict[int, int] | None:
        """SMs of every visible device; ``None`` while the program has not initialised CUDA."""
        ...

    def start(self) -> None:
        """Begin to collect."""
        ...

    def stop(self, file: Path) -> None:
        """Stop and write what was collected, as Kineto does."""
        ...


class TorchWindow:
    """Torch's profiler on CUDA activity alone."""

    def __init__(self) -> None:
        self._profile: Any = None

    def ready(self) -> dict[int, int] | None:
        """SMs of every visible device; ``None`` while the program has not initialised CUDA."""
        torch: Any = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if cuda is None or not getattr(cuda, "is_initialized", bool)():
            return None
        return {
            k: int(cuda.get_device_properties(k).multi_processor_count)
            for k in range(cuda.device_count())
        }

    def start(self) -> None:
        """Begin to collect."""
        from torch.autograd import profiler

        profile: Any = profiler.profile
        self._profile = profile(use_device="cuda", use_cpu=False, use_kineto=True)
        self._profile.__enter__()

    def stop(self, file: Path) -> None:
        """Stop and write what was collected."""
        self._profile.use_device = None  # else it synchronises the device first
        self._profile.__exit__(None, None, None)
        self._profile.export_chrome_trace(str(file))
        self._profile = None


class Kernels:
    """SM activity estimated from the kernels of this process.

    Args:
        window_seconds: Length of a window [s].
        resolution_ns: Length of a sample, 1 ms or more [ns].
        window: The profiler.

    Raises:
        ValueError: If the resolution is finer than 1 ms.
    """

    name = "kernels"
    estimate = True

    def __init__(
        self,
        window_seconds: float = WINDOW_SECONDS,
        resolution_ns: int = RESOLUTION_NS,
        window: Window | None = None,
    ) -> None:
        if resolution_ns < RESOLUTION_NS:
            raise ValueError(
                f"Kernels(resolution_ns={resolution_ns}): expected at least {RESOLUTION_NS}, got less. "
                "An estimate from grids means nothing finer."
            )
        self.resolution_ns = resolution_ns
        self._seconds = window_seconds
        self._window = window or TorchWindow()
        self._stopped = threading.Event()

    @staticmethod
    def unavailable() -> str | None:
        """Why it cannot work here; ``None`` where it can."""
        reason = devices.missing()
        if reason is not None:
            return reason
        if importlib.util.find_spec("torch") is None:
            return "torch is not installed"
        from torch import profiler

        if profiler.ProfilerActivity.CUDA not in profiler.supported_activities():
            return "this build of torch has no CUDA profiler"
        return None

    def start(self, write: Callable[[tuple[str, str, int, int, float, bool]], None]) -> None:
        """Begin; the first window opens once the program uses CUDA."""
        self._folder = tempfile.TemporaryDirectory(prefix="rose-kernels-")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ROSE_")}
        known = environment.get("PYTHONPATH")
        root = str(Path(__file__).resolve().parents[2])  # where rose_trace itself is
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{known}" if known else root
        self._reader = subprocess.Popen(
            [sys.executable, "-m", "rose_trace.activity.kernel_reader", str(self.resolution_ns)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a Ctrl-C of the program must not take the last samples away
        )
        self._threads = [
            threading.Thread(target=self._record, name="rose-kernels", daemon=True),
            threading.Thread(target=self._read, args=(write,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Write what is left and stop."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._reader.wait()
        self._folder.cleanup()

    def _record(self) -> None:
        assert self._reader.stdin is not None
        with self._reader.stdin as jobs:

            def send(job: dict[str, Any]) -> None:
                jobs.write(json.dumps(job).encode() + b"\n")
                jobs.flush()

            try:
                self._windows(send)
            except Exception as error:
                log.warning(
                    "Kernels: expected a profiler that works, got %r. No samples from here on.",
                    error,
                )

    def _windows(self, send: Callable[[dict[str, Any]], None]) -> None:
        sms = self._window.ready()
        while sms is None:
            if self._stopped.wait(LOOK_SECONDS):
                return
            sms = self._window.ready()
        number = 0
        ended = False
        while not ended:
            file = Path(self._folder.name) / f"{number}.json"
            number += 1
            self._window.start()
            begin = time.time_ns()
            ended = self._stopped.wait(self._seconds)
            end = time.time_ns()
            self._window.stop(file)
            send({"file": str(file), "bounds_ns": [begin, end], "sms": sms})

    def _read(self, write: Callable[[tuple[str, str, int, int, float, bool]], None]) -> None:
        assert self._reader.stdout is not None
        with self._reader.stdout as samples:
            while len(data := samples.read(RECORD.size)) == RECORD.size:
                device, start, end, activity = RECORD.unpack(data)
                write((self.name, f"cuda:{device}", start, end, activity, True))
