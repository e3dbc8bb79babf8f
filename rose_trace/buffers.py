"""Rows on their way to the file: one buffer per thread, one flusher per process, nothing dropped.

A thread appends finished invocations to its own list. A flusher thread carries them to the part file
a few times a second; a thread whose buffer is full carries its own and thereby waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

from rose_trace.device_time import DeviceClock
from rose_trace.invocation import Invocation

FLUSH_SECONDS = 0.25  # ours: what a kill can lose
FLUSH_ROWS = 1_024  # ours: rows in a buffer that wake the flusher
LIMIT_ROWS = 16_384  # ours: rows in a buffer at which its thread waits
CHUNK_ROWS = 512  # ours: rows per record batch; short enough not to hold up other threads


class Part(Protocol):
    """Where rows go."""

    def begin(self) -> None:
        """Called at the first invocation of the process, before any row."""
        ...

    def write_spans(self, rows: list[Invocation], thread: int) -> None:
        """Append finished invocations of one native thread."""
        ...

    def write_activity(self, samples: list[Sample]) -> None:
        """Append samples."""
        ...


Sample = tuple[str, str, int, int, float, bool]
"""Source, device, start and end [Unix ns], activity [fraction], estimate."""


class ThreadBuffer:
    """Finished invocations of one thread, and its last reading of the process's CPU time.

    Attributes:
        rows: Finished invocations, oldest first.
        native_id: Native id of the thread.
        read_ns: When CPU time was read [Unix ns].
        cpu_ns: What was read [ns].
        threads: Intra-op threads when last looked; 0 where unknown.
        looked_ns: When that was [Unix ns].
    """

    __slots__ = ("cpu_ns", "looked_ns", "native_id", "owner", "read_ns", "rows", "threads")

    def __init__(self) -> None:
        self.rows: list[Invocation] = []
        self.owner = threading.current_thread()
        self.native_id = threading.get_native_id()
        self.read_ns = 0
        self.cpu_ns = 0
        self.threads = 0
        self.looked_ns = 0

    def take(self, ready: Callable[[list[Invocation]], int]) -> list[Invocation]:
        """Remove as many of the oldest rows as are `ready`; safe beside an appending thread."""
        taken = self.rows[:CHUNK_ROWS]
        del taken[ready(taken) :]
        del self.rows[: len(taken)]
        return taken


class Buffers:
    """All buffers of one process and the thread that empties them.

    Args:
        part: Where rows go.
        failed: Called with an exception that writing raised, and the rows lost by it.
        device: Tells when device work was done.

    Attributes:
        local: Holds the calling thread's buffer as ``local.buffer``, once `mine` has made it.
        others: Called at every flush: sources of rows with buffers of their own.
    """

    def __init__(
        self, part: Part, failed: Callable[[Exception, int], None], device: DeviceClock
    ) -> None:
        self._part = part
        self._device = device
        self._failed = failed
        self.local = threading.local()
        self.others: list[Callable[[], None]] = []
        self._buffers: list[ThreadBuffer] = []
        self._samples: list[Sample] = []
        self._writing = threading.Lock()
        self._wake = threading.Condition()
        self._urgent = False
        self._closed = False
        self._flusher: threading.Thread | None = None

    def mine(self) -> ThreadBuffer:
        """The calling thread's buffer."""
        try:
            return self.local.buffer
        except AttributeError:
            buffer = self.local.buffer = ThreadBuffer()
            with self._wake:
                self._buffers.append(buffer)
                if self._flusher is None and not self._closed:
                    self._part.begin()
                    self._flusher = threading.Thread(
                        target=self._run, name="rose-flusher", daemon=True
                    )
                    self._flusher.start()
            return buffer

    def filled(self, buffer: ThreadBuffer) -> None:
        """Called by a thread whose buffer has reached `FLUSH_ROWS`: wake the flusher, or wait."""
        if len(buffer.rows) >= LIMIT_ROWS or self._closed:
            self._empty(buffer, final=True)
        elif not self._urgent:
            with self._wake:
                self._urgent = True
                self._wake.notify()

    def add_sample(self, sample: Sample) -> None:
        """Append one sample of activity."""
        self._samples.append(sample)

    def flush(self, final: bool = False) -> None:
        """Carry everything finished so far to the part.

        Args:
            final: Whether to wait for device work that goes on.
        """
        self._device.tend()
        with self._wake:
            buffers = list(self._buffers)
        for buffer in buffers:
            self._empty(buffer, final)
            # Alive first: a thread may add its last row and end between the two questions.
            if not buffer.owner.is_alive() and not buffer.rows:
                with self._wake, contextlib.suppress(ValueError):  # two threads may flush at once
                    self._buffers.remove(buffer)
        for carry in self.others:
            try:
                carry()
            except Exception as error:
                self._failed(error, 0)
        self._write_samples()

    def left(self) -> list[Invocation]:
        """Finished invocations that nobody has carried to the part yet."""
        with self._wake:
            return [inv for buffer in self._buffers for inv in buffer.rows]

    def close(self) -> None:
        """Stop the flusher and carry what is left; rows that finish later are carried at once."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._flusher is not None and self._flusher is not threading.current_thread():
            self._flusher.join()
        self.flush(final=True)

    def _run(self) -> None:
        while not self._closed:
            with self._wake:
                self._wake.wait_for(lambda: self._urgent or self._closed, FLUSH_SECONDS)
                self._urgent = False
            self.flush()

    def _empty(self, buffer: ThreadBuffer, final: bool) -> None:
        # The rows at hand now, not those that keep coming: a busy thread must not hold the flusher.
        left = len(buffer.rows)
        while left > 0:
            with self._writing:
                try:
                    rows = buffer.take(lambda rows: self._device.settle(rows, final))
                except Exception as error:  # the rows count more than their device times
                    self._failed(error, 0)
                    rows = buffer.take(len)
                if not rows:
                    return
                left -= len(rows)
                try:
                    self._part.write_spans(rows, buffer.native_id)
                except Exception as error:
                    self._failed(error, len(rows))

    def _write_samples(self) -> None:
        with self._writing:
            samples = self._samples[:]
            del self._samples[: len(samples)]
            if samples:
                try:
                    self._part.write_activity(samples)
                except Exception as error:
                    self._failed(error, len(samples))
