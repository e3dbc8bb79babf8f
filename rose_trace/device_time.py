"""When a device was done with an invocation's work, in Unix time; never waits while the program runs.

On closing, an invocation leaves a CUDA event on the current stream. The flusher asks later whether it
is done and converts its time (`rose_trace.device_anchor`).

What counts: work given to the stream that is current when the invocation closes. A stream that was left
before counts only once the current one waits for it, as it must for its results to be used. An event
that is reached within `IDLE_NS` says that nothing was pending. An invocation without CUDA values whose
event comes right after the last one before its start has only been behind other work: no device time.

Does not handle: graph capture (nothing runs then), devices used without torch.

Paper: §4.3.2 (an invocation lasts until its device work is done).
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rose_trace import cuda_events
from rose_trace.cuda_events import Cuda, Event
from rose_trace.device_anchor import Anchors

log = logging.getLogger("rose_trace")

IDLE_NS = 20_000  # ours: an event on an idle stream is reached within this time
EMPTY_NS = 5_000  # ours: two events with nothing between them are no further apart
FINAL_SECONDS = 5.0  # ours: how long the end of a recording waits for the devices
HISTORY = 8_192  # ours: marks remembered by stream
MOST_PROBLEMS = 100  # ours: after as many failing calls device times stop


@dataclass(slots=True, eq=False)
class Mark:
    """An event at the end of an invocation.

    Attributes:
        event: The event.
        device: Its device.
        key: Its stream, for this process.
        stream: Id of the stream; 0 for the default stream.
        start_ns: Start of the invocation [Unix ns].
        end_ns: Its end on the host [Unix ns].
        recorded_ns: When the event had been recorded [Unix ns].
        used: Whether the invocation took or returned CUDA tensors.
    """

    event: Event
    device: int
    key: Hashable
    stream: int
    start_ns: int
    end_ns: int
    recorded_ns: int
    used: bool


class Row(Protocol):
    """What `settle` needs of a finished invocation.

    Attributes:
        mark: What `mark` returned; ``None`` once it is settled.
        device_end_ns: End of its device work [Unix ns]; ``None`` without any.
        stream: Stream of that work; ``None`` without any.
    """

    mark: Mark | None
    device_end_ns: int | None
    stream: int | None


class DeviceClock:
    """Ends of device work, for one process.

    Args:
        find: Gives CUDA once the process has initialised it.
        now: Unix time [ns].
        sleep: Waits [s].

    Attributes:
        active: Whether this process uses CUDA; check it before calling `mark`.
        failure: The first thing that went wrong; ``None`` while all is well.
        unresolved: Invocations whose device end could not be told.
    """

    __slots__ = ("__dict__", "active")  # a slot: the native hot path reads it where it lies

    def __init__(
        self,
        find: Callable[[], Cuda | None] = cuda_events.initialised,
        now: Callable[[], int] = time.time_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._find = find
        self._now = now
        self._sleep = sleep
        self.failure: str | None = None
        self.unresolved = 0
        self._problems = 0
        self._reset()
        self.look()

    def _reset(self) -> None:
        self.active = False
        self._cuda: Cuda | None = None
        self._anchors: Anchors | None = None
        self._lock = threading.Lock()
        self._marked: dict[int, int] = {}  # device -> end of the last invocation marked on it
        self._free: dict[Hashable, list[Event]] = {}
        self._events: list[Event] = []
        self._history: dict[Hashable, list[tuple[int, int]]] = {}
        self._waiting: set[int] = set()  # devices that a row waits for

    @property
    def margin_ns(self) -> int:
        """How well device ends are known at worst, plus or minus, without drift [ns]."""
        return 0 if self._anchors is None else self._anchors.margin_ns

    def look(self) -> None:
        """Notice that the process has begun to use CUDA; cheap, and initialises nothing."""
        if self.active or self._problems:
            return
        try:
            cuda = self._find()
            if cuda is not None:
                self._cuda, self._anchors = cuda, Anchors(cuda, self._now)
                self.active = True
        except Exception as error:  # no driver library to call: none will come
            self._problem(error)

    def mark(self, start_ns: int, end_ns: int, device: int = -1) -> Mark | None:
        """Leave an event behind an invocation that closes now; never waits, never raises.

        Args:
            start_ns: Its start [Unix ns].
            end_ns: Its end on the host [Unix ns].
            device: Index of the device of its CUDA tensors; -1 where it has none.

        Returns:
            The mark; ``None`` where there is nothing to mark.
        """
        cuda = self._cuda
        if cuda is None:
            return None
        try:
            if cuda.capturing():
                return None
            used = device >= 0
            if not used:
                device = cuda.current_device()
                if device not in self._marked:  # perhaps without a context, which must not be made
                    return None
            key, stream, where = cuda.current_stream(device)
            free = self._free.get(key)
            if free is None:
                free = self._free.setdefault(key, [])
            try:
                event = free.pop()
            except IndexError:
                event = cuda.event()
                self._events.append(event)
            event.record(where)
            self._marked[device] = end_ns
            return Mark(event, device, key, stream, start_ns, end_ns, self._now(), used)
        except Exception as error:
            self._problem(error)
            return None

    def tend(self) -> None:
        """Renew the anchors that are due; for the flusher, a few times a second; never raises."""
        self.look()
        with self._lock:
            cuda, anchors = self._cuda, self._anchors
            if cuda is None or anchors is None:
                return
            try:
                due = [
                    device
                    for device, used_ns in list(self._marked.items())
                    if anchors.due(device, self._now() if device in self._waiting else used_ns)
                ]
                self._waiting.clear()
                if due:
                    with cuda.relaxed(due[0]):
                        for device in due:
                            anchors.renew(device)
            except Exception as error:
                self._problem(error)

    def settle(self, rows: Sequence[Row], final: bool = False) -> int:
        """Fill in device ends, in order, up to the first row whose device work goes on; never raises.

        Args:
            rows: Finished invocations of one thread, oldest first.
            final: Whether to wait for the devices, `FINAL_SECONDS` at most, and then give up.

        Returns:
            How many rows from the start are settled.
        """
        device = next((row.mark.device for row in rows if row.mark is not None), -1)
        if device < 0:
            return len(rows)
        with self._lock:
            cuda = self._cuda
            try:
                with contextlib.nullcontext() if cuda is None else cuda.relaxed(device):
                    return self._settle(rows, final)
            except Exception as error:
                self._problem(error)
                for row in rows:
                    self._give_up(row)
                return len(rows)

    def after_fork(self) -> None:
        """Become the clock of a forked child: nothing of the parent's CUDA is touched or freed here."""
        _inherited.append((self._cuda, self._events, self._anchors))
        self._reset()

    def _settle(self, rows: Sequence[Row], final: bool) -> int:
        deadline_ns = self._now() + round(FINAL_SECONDS * 1e9) if final else 0
        for index, row in enumerate(rows):
            mark = row.mark
            if mark is None:
                continue
            try:
                if not self._resolve(row, mark, deadline_ns):
                    return index
            except Exception as error:
                self._problem(error)
                self._give_up(row)
        return len(rows)

    def _resolve(self, row: Row, mark: Mark, deadline_ns: int) -> bool:
        """Settle one row, whatever the outcome; ``False`` where that must wait."""
        cuda, anchors = self._cuda, self._anchors
        if cuda is None or anchors is None:
            self._give_up(row)
            return True
        with cuda.on(mark.device):
            while not mark.event.query():
                if not deadline_ns:
                    self._waiting.add(mark.device)
                    return False
                if self._now() > deadline_ns:
                    self._give_up(row)
                    return True
                self._sleep(0.001)
            if deadline_ns and anchors.due(mark.device, self._now()):
                anchors.renew(mark.device)
            if mark.device not in anchors:
                if deadline_ns:
                    self._give_up(row)
                return bool(deadline_ns)
            end_ns = anchors.unix_ns(mark.device, mark.event)
        row.mark = None
        self._free[mark.key].append(mark.event)
        if self._worked(mark, end_ns):
            row.stream = mark.stream
            idle = end_ns - mark.recorded_ns <= IDLE_NS
            row.device_end_ns = mark.end_ns if idle else end_ns
        return True

    def _worked(self, mark: Mark, end_ns: int) -> bool:
        """Whether the mark tells of work of the invocation's own."""
        known = self._history.setdefault(mark.key, [])
        before = bisect.bisect_right(known, (mark.start_ns, 2**63)) - 1
        waited = before >= 0 and end_ns - known[before][1] <= EMPTY_NS
        bisect.insort(known, (mark.end_ns, end_ns))
        if len(known) > HISTORY:
            del known[: HISTORY // 2]
        return mark.used or (end_ns - mark.recorded_ns > IDLE_NS and not waited)

    def _give_up(self, row: Row) -> None:
        if row.mark is not None:
            row.mark = None
            self.unresolved += 1

    def _problem(self, error: Exception) -> None:
        self._problems += 1
        if self.failure is None:
            self.failure = f"{type(error).__name__}: {error}"
            log.warning(
                "Device times: expected CUDA events that work, got %s. Invocations concerned end with "
                "their host call.",
                self.failure,
            )
        if self._problems >= MOST_PROBLEMS or self._cuda is None:
            self.active = False
            self._cuda = None


_inherited: list[Any] = []
"""CUDA objects of a forked child's parent: kept, because freeing them would call CUDA."""


def cuda_index(devices: Iterable[str]) -> int:
    """Index of the first CUDA device among the devices of a value's leaves; -1 without any.

    >>> cuda_index(["", "cpu", "cuda:1"])
    1
    """
    for device in devices:
        if device.startswith("cuda"):
            return int(device.partition(":")[2] or 0)
    return -1
