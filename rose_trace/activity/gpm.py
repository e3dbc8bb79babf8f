"""NVML GPM: SM activity of a whole GPU from Hopper on, without privileges.

Its counters refresh about every 100 ms, so nothing finer is ever shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rose_trace.activity import devices
from rose_trace.activity.devices import nvml
from rose_trace.activity.periodic import Periodic

RESOLUTION_NS = 100_000_000  # the counters of H200 refresh at this rate; closer pairs read 0


class Gpm:
    """Share of SMs with work, from pairs of GPM samples."""

    name = "gpm"
    estimate = False
    resolution_ns = RESOLUTION_NS

    @staticmethod
    def unavailable() -> str | None:
        """Why it cannot work here; ``None`` where it can."""
        reason = devices.missing()
        if reason is not None:
            return reason
        for name, handle in devices.visible():
            try:
                supported = nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice
            except nvml.NVMLError as error:
                return f"{name}: {error}"
            if not supported:
                return f"{name}: GPM needs Hopper or newer"
        return None

    def start(self, write: Callable[[tuple[str, str, int, int, float, bool]], None]) -> None:
        """Begin sampling."""
        nvml.nvmlInit()
        self._write = write
        self._devices = devices.visible()
        self._last = {name: (_sample(handle), time.time_ns()) for name, handle in self._devices}
        self._thread = Periodic("rose-gpm", RESOLUTION_NS, self._read)

    def stop(self) -> None:
        """Write the last sample and stop."""
        self._thread.stop()
        for sample, _ in self._last.values():
            nvml.nvmlGpmSampleFree(sample)

    def _read(self) -> None:
        for name, handle in self._devices:
            before, start = self._last[name]
            now = time.time_ns()
            if now - start < RESOLUTION_NS:
                continue
            after = _sample(handle)
            self._last[name] = after, now
            activity = sm_activity(before, after)
            nvml.nvmlGpmSampleFree(before)
            if activity is not None:
                self._write((self.name, name, start, now, activity, False))


def sm_activity(before: Any, after: Any) -> float | None:
    """Share of SMs that had work between two samples [fraction]; ``None`` where it cannot be told."""
    query = nvml.c_nvmlGpmMetricsGet_t()
    query.version = nvml.NVML_GPM_METRICS_GET_VERSION
    query.numMetrics = 1
    query.sample1, query.sample2 = before, after
    query.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
    try:
        nvml.nvmlGpmMetricsGet(query)
    except nvml.NVMLError:
        return None
    found = query.metrics[0]
    return float(found.value) / 100.0 if found.nvmlReturn == nvml.NVML_SUCCESS else None


def _sample(handle: Any) -> Any:
    sample = nvml.nvmlGpmSampleAlloc()
    nvml.nvmlGpmSampleGet(handle, sample)
    return sample
