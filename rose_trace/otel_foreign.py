"""Spans of other instrumentation, as rows of the trace: where they began, how long they took, what they say.

A span processor on the providers of the OpenTelemetry SDK sees them. It only appends to a list; the
SDK offers no way to take a processor away, so after a recording it stays and does nothing.
"""

from __future__ import annotations

import functools
import json
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import StatusCode, get_current_span

from rose_trace.frames import current
from rose_trace.otel import SCOPE_NAME

LIMIT_ROWS = (
    16_384  # ours: spans that wait to be written before the thread that ends one writes them
)

Row = dict[str, Any]
"""One row of the spans table; columns that are not named are null."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a span began.

    Attributes:
        path: Path of the span.
        iteration: Indices of the loops around it, outermost first.
        thread: Native id of the thread.
    """

    path: str
    iteration: tuple[int, ...]
    thread: int


class ForeignSpans(SpanProcessor):
    """Collects the spans that end while a recording is open; inert otherwise.

    Attributes:
        write: Writes rows to the open recording; ``None`` where none is open.
        failed: Told what `write` raised, and how many rows that lost.
    """

    def __init__(self) -> None:
        self.write: Callable[[list[Row]], None] | None = None
        self.failed: Callable[[Exception, int], None] | None = None
        self._open: dict[int, _Place] = {}
        self._ended: list[tuple[ReadableSpan, _Place]] = []
        self._writing = threading.Lock()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Note where a span begins: below the invocation or the span that is its parent."""
        if self.write is None:
            return
        place = self._place(span.name, get_current_span(parent_context))
        self._open[span.get_span_context().span_id] = place

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a finished span for the flusher."""
        found = span.get_span_context()
        if found is None:
            return
        place = self._open.pop(found.span_id, None)
        if self.write is None or _is_ours(span):
            return
        if place is None:  # it began before the recording
            place = _Place(_step(span.name), (), threading.get_native_id())
        self._ended.append((span, place))
        if len(self._ended) >= LIMIT_ROWS:
            self.flush()

    def shutdown(self) -> None:
        """A provider ends: what it has ended so far is written."""
        self.flush()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write what has ended so far."""
        self.flush()
        return True

    def flush(self) -> None:
        """Write what has ended so far; safe beside threads that end more."""
        if self._ended:
            self._carry(self.write, self.failed)

    def stop(self) -> None:
        """Be inert from now on, and write what has ended."""
        write, self.write = self.write, None
        self._carry(write, self.failed)

    def _carry(
        self,
        write: Callable[[list[Row]], None] | None,
        failed: Callable[[Exception, int], None] | None,
    ) -> None:
        with self._writing:
            ended = self._ended[:]
            del self._ended[: len(ended)]
            if write is None or not ended:
                return
            try:
                write(
                    [
                        row_of(span, place.path, place.iteration, place.thread)
                        for span, place in ended
                    ]
                )
            except Exception as error:
                if failed is not None:
                    failed(error, len(ended))

    def after_fork(self) -> None:
        """In a forked child: what the parent has collected is the parent's."""
        self._writing = threading.Lock()
        self._ended.clear()

    def _place(self, name: str, parent: trace.Span) -> _Place:
        frame = current.get()
        parent_id = parent.get_span_context().span_id
        thread = threading.get_native_id()
        outer = self._open.get(parent_id)
        if outer is not None:
            return _Place(f"{outer.path}/{_step(name)}", outer.iteration, thread)
        if frame is None or frame.span_id != parent_id:
            # The context came without the frame, as instrumentation carries it into other threads.
            path: str = getattr(parent, "path", "")
            iteration: tuple[int, ...] = getattr(parent, "iteration", ())
            if not path and frame is not None:
                path, iteration = frame.path, frame.iteration
        else:
            path, iteration = frame.path, frame.iteration
        return _Place(f"{path}/{_step(name)}" if path else _step(name), iteration, thread)


PROCESSOR = ForeignSpans()
"""The one processor of this process: a provider gets it once, however many recordings follow."""

_watched: weakref.WeakSet[TracerProvider] = weakref.WeakSet()
_construct = TracerProvider.__init__


def start(
    write: Callable[[list[Row]], None],
    failed: Callable[[Exception, int], None],
    provider: object = None,
    noticed: Callable[[], None] | None = None,
) -> None:
    """Record the spans of the global provider, of `provider`, and of every one made from now on.

    Args:
        write: Writes rows.
        failed: Told what `write` raised, and how many rows that lost.
        provider: A provider that is not the global one.
        noticed: Called whenever a provider is made.
    """
    PROCESSOR.write, PROCESSOR.failed = write, failed
    watch(trace.get_tracer_provider())
    watch(provider)

    @functools.wraps(_construct)
    def construct(self: TracerProvider, *args: Any, **kwargs: Any) -> None:
        _construct(self, *args, **kwargs)
        watch(self)
        if noticed is not None:
            noticed()

    TracerProvider.__init__ = construct


def stop() -> None:
    """Write what has ended, and be inert."""
    TracerProvider.__init__ = _construct
    PROCESSOR.stop()


def watch(provider: object) -> None:
    """Give a provider of the SDK the processor, once; nothing happens with any other object."""
    if isinstance(provider, TracerProvider) and provider not in _watched:
        _watched.add(provider)
        provider.add_span_processor(PROCESSOR)


def row_of(span: ReadableSpan, path: str, iteration: Sequence[int], thread: int) -> Row:
    """The row of a finished span.

    Args:
        span: The span.
        path: Its place in the hierarchy.
        iteration: Indices of the loops around it, outermost first.
        thread: Native id of the thread that began it.

    Returns:
        Columns of the spans table, without those of the process.
    """
    found = span.get_span_context()
    scope = span.instrumentation_scope
    failed = span.status.status_code is StatusCode.ERROR
    return {
        "thread": thread,
        "trace_id": "" if found is None else f"{found.trace_id:032x}",
        "span_id": 0 if found is None else found.span_id,
        "parent_id": 0 if span.parent is None else span.parent.span_id,
        "kind": "foreign",
        "node": span.name,
        "path": path,
        "key": f"{'' if scope is None else scope.name}:{span.name}",
        "iteration": list(iteration),
        "ordinal": 0,
        "group": -1,
        "groups": 1,
        "start_ns": span.start_time,
        "end_ns": span.end_time,
        "status": "error" if failed else "ok",
        "error": _error(span) if failed else None,
        "inputs": [],
        "outputs": [],
        "states": [],
        "attributes": _attributes(span),
    }


def _attributes(span: ReadableSpan) -> list[tuple[str, str]]:
    """What a span says, as text; what is not a string is JSON."""
    found = [(key, _text(value)) for key, value in (span.attributes or {}).items()]
    found.append(("otel.kind", span.kind.name.lower()))
    if span.status.description:
        found.append(("otel.status_description", span.status.description))
    if span.events:
        events = [
            {"name": e.name, "time_ns": e.timestamp, "attributes": dict(e.attributes or {})}
            for e in span.events
        ]
        found.append(("otel.events", _text(events)))
    if span.links:
        links = [
            {
                "trace_id": f"{link.context.trace_id:032x}",
                "span_id": f"{link.context.span_id:016x}",
                "attributes": dict(link.attributes or {}),
            }
            for link in span.links
        ]
        found.append(("otel.links", _text(links)))
    return found


def _error(span: ReadableSpan) -> str:
    """Type of the exception that a span recorded last; ``error`` where it recorded none."""
    sources: list[Mapping[str, Any]] = [e.attributes or {} for e in reversed(span.events)]
    named = [str(a["exception.type"]) for a in sources if "exception.type" in a]
    return named[0] if named else str((span.attributes or {}).get("error.type", "error"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _step(name: str) -> str:
    """A name as one step of a path."""
    return name.replace("/", "|")


def _is_ours(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and scope.name == SCOPE_NAME
