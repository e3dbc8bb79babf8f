"""From the time of a CUDA event to Unix time: an event whose moment the host knows, and the difference.

An anchor is an event on an idle stream: it is done within some microseconds of being recorded, so its
moment lies between two readings of the host's clock. Anchors are renewed four times a second while
there is work: neither drift between the clocks (some 20 ppm, 5 μs) nor the float32 milliseconds of CUDA
(60 ns at one second) matter then, and the error stays below 10 μs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rose_trace.cuda_events import Cuda, Event

ANCHOR_NS = 250_000_000  # ours
ANCHOR_TRIES = 5  # ours: the one known best is taken
ANCHOR_LIMIT_NS = 2_000_000  # ours: an anchor that takes longer waits behind work and is given up
ANCHOR_MARGIN_NS = 100_000  # ours: one known less well replaces only one that is too old
ANCHOR_LIFE_NS = 5_000_000_000  # ours


class _Anchor:
    """An event that is done, its Unix time [ns], and how well that is known, plus or minus [ns]."""

    __slots__ = ("event", "host_ns", "margin_ns")

    def __init__(self, event: Event, host_ns: int, margin_ns: int) -> None:
        self.event = event
        self.host_ns = host_ns
        self.margin_ns = margin_ns


class Anchors:
    """Anchors of all devices; used by one thread at a time, with relaxed capture mode.

    Args:
        cuda: CUDA.
        now: Unix time [ns].

    Attributes:
        margin_ns: How well the worst anchor so far is known, plus or minus [ns].
        owned: CUDA objects in use here.
    """

    def __init__(self, cuda: Cuda, now: Callable[[], int]) -> None:
        self._cuda = cuda
        self._now = now
        self._anchors: dict[int, _Anchor] = {}
        self._spare: dict[int, tuple[Any, list[Event]]] = {}
        self.owned: list[Any] = []
        self.margin_ns = 0

    def due(self, device: int, used_ns: int) -> bool:
        """Whether a device needs a new anchor.

        Args:
            device: The device.
            used_ns: When it last got work [Unix ns].
        """
        anchor = self._anchors.get(device)
        return anchor is None or (
            self._now() - anchor.host_ns >= ANCHOR_NS and used_ns > anchor.host_ns
        )

    def renew(self, device: int) -> None:
        """Measure a new anchor; takes some 50 μs. Where none can be had, the old one stays."""
        with self._cuda.on(device):
            stream, spare = self._spare.get(device) or self._first(device)
            tried = [self._measure(event, stream) for event in spare[:ANCHOR_TRIES]]
        old = self._anchors.get(device)
        known = [anchor for anchor in tried if anchor is not None]
        if known:
            best = min(known, key=lambda anchor: anchor.margin_ns)
            aged = old is not None and best.host_ns - old.host_ns > ANCHOR_LIFE_NS
            if old is None or aged or best.margin_ns <= ANCHOR_MARGIN_NS:
                spare.remove(best.event)
                if old is not None:
                    spare.append(old.event)
                self._anchors[device] = best
                self.margin_ns = max(self.margin_ns, best.margin_ns)

    def unix_ns(self, device: int, event: Event) -> int:
        """Unix time at which an event of a device with an anchor was done [ns]."""
        anchor = self._anchors[device]
        return anchor.host_ns + round(anchor.event.elapsed_time(event) * 1e6)

    def __contains__(self, device: int) -> bool:
        return device in self._anchors

    def _first(self, device: int) -> tuple[Any, list[Event]]:
        stream = self._cuda.own_stream(device)
        spare = [self._cuda.event() for _ in range(ANCHOR_TRIES + 1)]
        self.owned += [stream, *spare]
        self._spare[device] = stream, spare
        return stream, spare

    def _measure(self, event: Event, stream: Any) -> _Anchor | None:
        before = self._now()
        event.record(stream)
        while not event.query():
            if self._now() - before > ANCHOR_LIMIT_NS:
                return None
        margin = (self._now() - before) // 2
        return _Anchor(event, before + margin, margin)
