"""CPU utilisation of the whole machine: the source of activity where there is no GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil

PERIOD_SECONDS = 0.05  # ours: the kernel counts in ticks of 10 ms per core


class CpuUtilisation:
    """Share of all cores that were busy, sampled about 20 times a second.

    Args:
        period_seconds: Time between samples [s].
    """

    name = "cpu"
    estimate = False

    def __init__(self, period_seconds: float = PERIOD_SECONDS) -> None:
        self._period = period_seconds
        self.resolution_ns = int(period_seconds * 1e9)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @staticmethod
    def unavailable() -> str | None:
        """Why it cannot work here; ``None`` where it can."""
        try:
            _busy_and_total()
        except (OSError, RuntimeError, psutil.Error) as error:
            return f"no CPU times: {error}"
        return None

    def start(self, write: Callable[[tuple[str, str, int, int, float, bool]], None]) -> None:
        """Begin sampling on a thread of its own."""
        self._thread = threading.Thread(
            target=self._run, args=(write,), name="rose-cpu-activity", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Write the last sample and stop."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, write: Callable[[tuple[str, str, int, int, float, bool]], None]) -> None:
        begin, (busy, total) = time.time_ns(), _busy_and_total()
        ended = False
        while not ended:
            ended = self._stopped.wait(self._period)
            now, (busy_now, total_now) = time.time_ns(), _busy_and_total()
            if total_now > total:  # the kernel's counters have moved
                share = min(1.0, max(0.0, (busy_now - busy) / (total_now - total)))
                write((self.name, "cpu", begin, now, share, self.estimate))
                begin, busy, total = now, busy_now, total_now


def _busy_and_total() -> tuple[float, float]:
    """CPU time in which cores were busy, and all CPU time, since boot [s]."""
    times = psutil.cpu_times()._asdict()
    # Linux counts guests in user time already.
    total = sum(seconds for name, seconds in times.items() if not name.startswith("guest"))
    return total - times["idle"] - times.get("iowait", 0.0), total
