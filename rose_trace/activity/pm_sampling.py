"""CUPTI PM sampling: SM activity of a whole GPU, millisecond by millisecond.

The sampler is a process of its own without a CUDA context, outside MPS: it sees every process's work, it
cannot disturb the program's profiler libraries, and it is drained continuously so that no buffer fills.
Needs root or the profiling permission, ``cupti-python`` and ``nvidia-cuda-cupti``; where these conflict
with torch's own CUPTI, install them elsewhere (``pip install --target DIR``) and name the directory in
``ROSE_CUPTI_PATH``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from rose_trace.activity import devices

log = logging.getLogger("rose_trace")

INTERVAL_NS = 1_000_000  # ours: fine enough for single nodes, 3 % of one core to evaluate
START_TIMEOUT_S = 30.0  # ours
RECORD = struct.Struct("<iqqf")  # device, start and end [Unix ns], activity [fraction]
SIDECAR = Path(__file__).with_name("pm_sidecar.py")
PATH_VARIABLE = "ROSE_CUPTI_PATH"


class PmSampling:
    """SM activity from a sidecar process.

    Args:
        interval_ns: Time between samples [ns].
    """

    name = "pm-sampling"
    estimate = False

    def __init__(self, interval_ns: int = INTERVAL_NS) -> None:
        self.resolution_ns = interval_ns

    @staticmethod
    def unavailable() -> str | None:
        """Why it cannot work here; ``None`` where it can. Tries the sampler for real."""
        reason = devices.missing()
        if reason is not None:
            return reason
        if PATH_VARIABLE not in os.environ and importlib.util.find_spec("cupti") is None:
            return f"cupti-python is not installed (set {PATH_VARIABLE} where it is installed elsewhere)"
        sidecar = _start(["--check"])
        try:
            _, said = sidecar.communicate(timeout=START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            sidecar.kill()
            sidecar.communicate()
            return f"the sampler did not answer within {START_TIMEOUT_S:.0f} s"
        if sidecar.returncode:
            return (
                said.decode(errors="replace").strip().splitlines()[-1]
                if said
                else "the sampler died"
            )
        return None

    def start(self, write: Callable[[tuple[str, str, int, int, float, bool]], None]) -> None:
        """Begin sampling; returns when the first counters run.

        Raises:
            RuntimeError: If the sampler cannot start.
        """
        self._sidecar = _start([str(self.resolution_ns)])
        assert self._sidecar.stdout is not None
        ready = self._sidecar.stdout.read(RECORD.size)
        if len(ready) < RECORD.size:
            _, said = self._sidecar.communicate()
            raise RuntimeError(
                f"PM sampling: expected a running sampler, got: {said.decode(errors='replace').strip()}. "
                "Use another activity source."
            )
        self._reader = threading.Thread(target=self._read, args=(write,), daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Write what is left and stop; a sampler that died earlier is named."""
        assert self._sidecar.stdin is not None
        assert self._sidecar.stdout is not None
        assert self._sidecar.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            self._sidecar.stdin.close()
        self._reader.join()
        with self._sidecar.stdout, self._sidecar.stderr as problems:
            said = problems.read().decode(errors="replace").strip().splitlines()
        if self._sidecar.wait():
            log.warning(
                "PM sampling: expected a sampler that lasts as long as the recording, got: %s. Samples "
                "end early.",
                said[-1] if said else f"exit status {self._sidecar.returncode}",
            )

    def _read(self, write: Callable[[tuple[str, str, int, int, float, bool]], None]) -> None:
        assert self._sidecar.stdout is not None
        while len(data := self._sidecar.stdout.read(RECORD.size)) == RECORD.size:
            device, start, end, activity = RECORD.unpack(data)
            write((self.name, f"cuda:{device}", start, end, min(max(activity, 0.0), 1.0), False))


def _start(arguments: list[str]) -> subprocess.Popen[bytes]:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("CUDA_MPS_")
    }
    environment.pop("LD_PRELOAD", None)
    site = environment.get(PATH_VARIABLE)
    if site:
        environment["PYTHONPATH"] = site
    libraries = _libraries(site)
    if libraries:
        known = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{libraries}:{known}" if known else libraries
    return subprocess.Popen(
        [sys.executable, str(SIDECAR), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # a Ctrl-C of the program must not take the last samples away
    )


def _libraries(site: str | None) -> str | None:
    """Directory of the ``libnvperf`` libraries that belong to the installed CUPTI."""
    roots = [Path(site)] if site else [Path(p) for p in sys.path if p]
    for root in roots:
        found = sorted(root.glob("nvidia/*/lib/libnvperf_host.so*"))
        if found:
            return str(found[0].parent)
    return None
