"""A thread that reads counters at a fixed period: what the NVML sources have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Periodic:
    """Calls `read` every `period_ns`, and once more at the end.

    Args:
        name: Name of the thread.
        period_ns: Time between readings [ns].
        read: Takes one reading.
    """

    def __init__(self, name: str, period_ns: int, read: Callable[[], None]) -> None:
        self._period = period_ns / 1e9
        self._read = read
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take the last reading and end."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._period):
            self._read()
        self._read()
