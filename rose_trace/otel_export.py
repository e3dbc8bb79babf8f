"""Live export: finished invocations handed to the user's own OpenTelemetry provider.

A thread of its own reads what the flusher has written, so neither the program nor the file waits for
an exporter. It hands spans over in small numbers and lets the provider's processors empty themselves
in between: a batch processor drops what does not fit into its queue.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanContext

from rose_trace.interop.otlp_attributes import ITERATION, NUMBERS, PROCESS, TEXTS, USUAL
from rose_trace.otel import SAMPLED, SCOPE_NAME
from rose_trace.parquet import producer
from rose_trace.parts import PartFile

log = logging.getLogger("rose_trace")

HANDED_AT_ONCE = 512  # ours: spans between two flushes; the SDK's batch processor holds 2,048
BACKLOG_ROWS = 262_144  # ours: rows that wait for a slow exporter before new ones are passed over
CLOSE_SECONDS = 10.0  # ours: how long the end of a recording waits for the exporter

_PROCESSORS = "_active_span_processor"  # the SDK has no public way to hand over a finished span

_COLUMNS = [
    "process", "thread", "worker", "trace_id", "span_id", "parent_id", "kind", "node", "path", "key",
    "iteration", "ordinal", "count", "group", "groups", "row_start", "row_stop", "start_ns", "end_ns",
    "cpu_ns", "wait_ns", "threads", "status", "error", "attributes",
]  # fmt: skip
_AS_ATTRIBUTES = {
    column: name
    for column, name in {**TEXTS, **NUMBERS, "iteration": ITERATION, "process": PROCESS}.items()
    if column in _COLUMNS and column != "node"
}


class ExportingPart(PartFile):
    """A part file whose rows go to a live export as well.

    Args:
        directory: The parts directory.
        run: Id of the run.
        process: Role of the process.
        export: Where rows go as well.
    """

    def __init__(self, directory: Path, run: str, process: str, export: LiveExport) -> None:
        super().__init__(directory, run, process)
        self._export = export

    def _write(self, kind: str, batch: Any) -> None:
        super()._write(kind, batch)
        if kind == "spans":
            self._export.add(batch)


class LiveExport:
    """Hands rows to the span processors of a provider, from a thread of its own.

    Args:
        provider: The provider; ``None`` for the global one, as soon as it is one of the SDK.

    Attributes:
        handed: Spans handed to the provider.
        passed_over: Spans that the provider could not take in time, or was never there for.
        dropped: Spans handed over although a batch processor's queue was full, so that it dropped some.
    """

    def __init__(self, provider: Any = None) -> None:
        self.handed = 0
        self.passed_over = 0
        self.dropped = 0
        self._provider = provider
        self._backlog: deque[Any] = deque()
        self._rows = 0
        self._changed = threading.Condition()
        self._closed = False
        self._deadline = float("inf")
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def add(self, batch: Any) -> None:
        """Take a batch of the spans table; returns at once."""
        with self._changed:
            if self._closed or self._rows >= BACKLOG_ROWS:
                self.passed_over += batch.num_rows
                return
            self._backlog.append(batch)
            self._rows += batch.num_rows
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rose-export", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Hand over what waits, flush the provider, and say what did not get there.

        Args:
            seconds: How long to wait for the exporter.
        """
        with self._changed:
            self._closed = True
            self._deadline = time.monotonic() + seconds
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)
        with self._changed:
            self.passed_over += self._rows
            self._rows = 0
            self._backlog.clear()
        if self.passed_over or self.dropped:
            log.warning(
                "Live export: expected to hand over every invocation, got %d handed over, %d that the provider "
                "was not there or not fast enough for, and %d that found the queue of its batch processor full. "
                "The trace file has them all; use a larger queue (OTEL_BSP_MAX_QUEUE_SIZE) or a faster collector.",
                self.handed,
                self.passed_over,
                self.dropped,
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or (self._rows and self._found() is not None), 1.0
                )
                if self._closed and (not self._rows or self._found() is None):
                    return
                provider = self._found()
                if provider is None or not self._backlog:
                    continue
                batch = self._backlog[0]
            done = self._hand_over(batch, provider)
            with self._changed:
                if self._backlog and self._backlog[0] is batch:
                    self._backlog.popleft()
                    self._rows -= batch.num_rows
                self.passed_over += batch.num_rows - done

    def _found(self) -> Any:
        """The provider, if it is one that has span processors."""
        provider: Any = self._provider or trace.get_tracer_provider()
        return provider if hasattr(provider, _PROCESSORS) else None

    def _hand_over(self, batch: Any, provider: Any) -> int:
        """Give the rows of a batch to a provider; returns how many it took, or needed not take."""
        done = 0
        for start in range(0, batch.num_rows, HANDED_AT_ONCE):
            if time.monotonic() > self._deadline:
                break
            rows = batch.slice(start, HANDED_AT_ONCE).select(_COLUMNS).to_pylist()
            try:
                self._give(rows, provider)
            except Exception as failure:
                if self._failure is None:
                    self._failure = failure
                    log.exception(
                        "Live export: expected the provider to take spans, got an exception."
                    )
                break
            done += len(rows)
        return done

    def _give(self, rows: list[dict[str, Any]], provider: Any) -> None:
        processors = getattr(provider, _PROCESSORS)
        queues = _queues(processors)
        room = min([limit for _, limit in queues], default=HANDED_AT_ONCE)
        for number, row in enumerate(rows, start=1):
            if row["kind"] == "foreign":
                continue  # its own provider exports it
            self.dropped += any(len(queue) >= limit for queue, limit in queues)
            processors.on_end(span_of(row, provider.resource))
            self.handed += 1
            if number % max(room // 2, 1) == 0:
                provider.force_flush()
        provider.force_flush()


def span_of(row: Mapping[str, Any], resource: Any) -> Any:
    """A finished span of the SDK for one row.

    Args:
        row: Columns of the spans table.
        resource: The provider's resource.

    Returns:
        A ``ReadableSpan`` with the row's ids and times.
    """
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Status, StatusCode

    trace_id = int(row["trace_id"], 16)
    parent_id = row["parent_id"]
    attributes: dict[str, Any] = {}
    for column, name in _AS_ATTRIBUTES.items():
        value = row[column]
        if value is not None and value != [] and value != USUAL.get(column):
            attributes[name] = value
    attributes |= {f"rose.{key}": value for key, value in row["attributes"] or ()}
    failed = row["status"] == "error"
    return ReadableSpan(
        row["node"],
        SpanContext(trace_id, row["span_id"], is_remote=False, trace_flags=SAMPLED),
        SpanContext(trace_id, parent_id, is_remote=False, trace_flags=SAMPLED)
        if parent_id
        else None,
        resource,
        attributes,
        status=Status(StatusCode.ERROR, row["error"]) if failed else Status(StatusCode.UNSET),
        start_time=row["start_ns"],
        end_time=row["end_ns"],
        instrumentation_scope=_scope(),
    )


def _queues(processors: Any) -> list[tuple[Any, int]]:
    """Queue and capacity of every batch processor, where the SDK lets one look."""
    found: list[tuple[Any, int]] = []
    for processor in getattr(processors, "_span_processors", ()):
        batched = getattr(processor, "_batch_processor", None)
        queue, limit = getattr(batched, "_queue", None), getattr(batched, "_max_queue_size", 0)
        if queue is not None and limit:
            found.append((queue, limit))
    return found


@functools.cache
def _scope() -> Any:
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    return InstrumentationScope(SCOPE_NAME, producer()["rose"])
