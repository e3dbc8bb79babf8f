"""NVML utilisation: the share of time in which some kernel ran. It is not SM activity, and is named so."""

from __future__ import annotations

import time
from collections.abc import Callable

from rose_trace.activity import devices
from rose_trace.activity.devices import nvml
from rose_trace.activity.periodic import Periodic

RESOLUTION_NS = 200_000_000  # the driver averages over 1/6 s to 1 s, depending on the product


class NvmlUtilisation:
    """Share of time with any kernel running."""

    name = "nvml-utilisation"
    estimate = True  # of SM activity: one small kernel counts as a full device
    resolution_ns = RESOLUTION_NS

    @staticmethod
    def unavailable() -> str | None:
        """Why it cannot work here; ``None`` where it can."""
        reason = devices.missing()
        if reason is not None:
            return reason
        try:
            for _, handle in devices.visible():
                nvml.nvmlDeviceGetUtilizationRates(handle)
        except nvml.NVMLError as error:
            return str(error)
        return None

    def start(self, write: Callable[[tuple[str, str, int, int, float, bool]], None]) -> None:
        """Begin sampling."""
        nvml.nvmlInit()
        self._write = write
        self._devices = devices.visible()
        self._since = time.time_ns()
        self._thread = Periodic("rose-nvml", RESOLUTION_NS, self._read)

    def stop(self) -> None:
        """Write the last sample and stop."""
        self._thread.stop()

    def _read(self) -> None:
        now = time.time_ns()
        for name, handle in self._devices:
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0
            self._write((self.name, name, self._since, now, busy, True))
        self._since = now
