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
RECORD = struct.Struct("<qqf")  # start and end [Unix ns], activity [fraction]
SIDECAR = Path(__file__).with_name("pm_sidecar.py")
PATH_VARIABLE = "ROSE_CUPTI_PATH"


class PmSampling:
    """SM activity from a sidecar process per GPU: two collectors in one process crash.

    Args:
        interval_ns: Time between samples [ns].
    """

    name = "pm-sampling"
    estimate = False

    def __init__(self, interval_ns: int = INTERVAL_NS) -> None:
        self.resolution_ns = interval_ns
        self._sidecars: list[_Sidecar] = []

    @staticmethod
    def unavailable() -> str | None:
        """Why it cannot work here; ``None`` where it can. Tries the sampler for real."""
        reason = devices.missing()
        if reason is not None:
            return reason
        if PATH_VARIABLE not in os.environ and importlib.util.find_spec("cupti") is None:
            return f"cupti-python is not installed (set {PATH_VARIABLE} where it is installed elsewhere)"
        trials = [_start("--check", device) for device in range(len(devices.visible()))]
        problems = [_problem(trial) for trial in trials]
        return next(filter(None, problems), None)

    def start(self, write: Callable[[tuple[str, str, int, int, float, bool]], None]) -> None:
        """Begin sampling; returns when the first counters run.

        Raises:
            RuntimeError: If a sampler cannot start.
        """
        missing = devices.missing()
        if missing is not None:
            raise RuntimeError(
                f"PM sampling: expected a GPU, got {missing}. Use another activity source."
            )
        count = len(devices.visible())
        self._sidecars = [_Sidecar(self.resolution_ns, device) for device in range(count)]
        try:
            for sidecar in self._sidecars:
                sidecar.start(lambda sample: write((self.name, *sample, False)))
        except RuntimeError:
            for sidecar in self._sidecars:
                sidecar.abandon()
            raise

    def stop(self) -> None:
        """Write what is left and stop; a sampler that died earlier is named."""
        for sidecar in self._sidecars:
            sidecar.end()
        for sidecar in self._sidecars:
            problem = sidecar.joined()
            if problem:
                log.warning(
                    "PM sampling: expected a sampler that lasts as long as the recording, got: %s. Samples "
                    "end early.",
                    problem,
                )


class _Sidecar:
    """The sampler of one GPU and the thread that reads it.

    Args:
        interval_ns: Time between samples [ns].
        device: Its number among the visible GPUs.
    """

    def __init__(self, interval_ns: int, device: int) -> None:
        self._device = f"cuda:{device}"
        self._process = _start(str(interval_ns), device)
        self._reader: threading.Thread | None = None

    def start(self, write: Callable[[tuple[str, int, int, float]], None]) -> None:
        """Read from now on; returns when the counters run.

        Raises:
            RuntimeError: If they do not.
        """
        assert self._process.stdout is not None
        ready = self._process.stdout.read(RECORD.size)
        if len(ready) < RECORD.size:
            _, said = self._process.communicate()
            raise RuntimeError(
                f"PM sampling: expected a running sampler, got: {said.decode(errors='replace').strip()}. "
                "Use another activity source."
            )
        self._reader = threading.Thread(target=self._read, args=(write,), daemon=True)
        self._reader.start()

    def end(self) -> None:
        """Tell the sampler to write what is left."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def joined(self) -> str:
        """Wait for the end; what went wrong, empty if nothing did."""
        assert self._reader is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._reader.join()
        with self._process.stdout, self._process.stderr as problems:
            said = problems.read().decode(errors="replace").strip().splitlines()
        status = self._process.wait()
        return (said[-1] if said else f"exit status {status}") if status else ""

    def abandon(self) -> None:
        """End a sampler whose samples nobody wants."""
        self._process.kill()
        if self._reader is not None:
            self.end()
            self.joined()
        elif self._process.stdout is not None and not self._process.stdout.closed:
            self._process.communicate()

    def _read(self, write: Callable[[tuple[str, int, int, float]], None]) -> None:
        assert self._process.stdout is not None
        while len(data := self._process.stdout.read(RECORD.size)) == RECORD.size:
            start, end, activity = RECORD.unpack(data)
            write((self._device, start, end, min(max(activity, 0.0), 1.0)))


def _problem(trial: subprocess.Popen[bytes]) -> str | None:
    """Why a trial of the sampler failed; ``None`` if it did not."""
    try:
        _, said = trial.communicate(timeout=START_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        trial.kill()
        trial.communicate()
        return f"the sampler did not answer within {START_TIMEOUT_S:.0f} s"
    if not trial.returncode:
        return None
    if not said:
        return f"the sampler died (exit status {trial.returncode})"
    return said.decode(errors="replace").strip().splitlines()[-1]


def _start(what: str, device: int) -> subprocess.Popen[bytes]:
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
        [sys.executable, str(SIDECAR), what, str(device)],
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
