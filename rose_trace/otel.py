"""OpenTelemetry at the edge of the trace: real ids, and the real context while an invocation runs.

Spans that other libraries start inside an invocation become its children, and a recording inside
somebody's span becomes part of that trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextvars import Token

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    Span,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

attach: Callable[[Context], Token[Context]] = otel_context.attach
detach: Callable[[Token[Context]], None] = otel_context.detach
current_context: Callable[[], Context] = otel_context.get_current

SAMPLED = TraceFlags(TraceFlags.SAMPLED)
SPAN_KEY = next(iter(set_span_in_context(INVALID_SPAN, Context())))
"""Key under which a context holds its span."""


class Ids:
    """Random non-zero ids from a generator of their own: the program's `random` is not touched."""

    def __init__(self) -> None:
        self._bits = random.Random(random.SystemRandom().getrandbits(256)).getrandbits

    def span_id(self) -> int:
        """A 64-bit span id."""
        return self._bits(64) or self.span_id()

    def trace_id(self) -> int:
        """A 128-bit trace id."""
        return self._bits(128) or self.trace_id()


def context_with(span: Span, around: Context) -> Context:
    """The context `around` with `span` as the current one."""
    if not around or (len(around) == 1 and SPAN_KEY in around):
        return Context({SPAN_KEY: span})
    return Context({**around, SPAN_KEY: span})


def surrounding() -> tuple[int, int]:
    """Trace id and span id of the span that is current; zeros where there is none."""
    found = get_current_span().get_span_context()
    return (found.trace_id, found.span_id) if found.is_valid else (0, 0)


def traceparent(trace_id: int, span_id: int) -> str:
    """W3C traceparent header of a span."""
    carrier: dict[str, str] = {}
    span = NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=False, trace_flags=SAMPLED))
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span, Context()))
    return carrier.get("traceparent", "")


def parse_traceparent(header: str) -> tuple[int, int]:
    """Trace id and span id of a W3C traceparent header; zeros for an empty or malformed one."""
    found = get_current_span(
        TraceContextTextMapPropagator().extract({"traceparent": header}, Context())
    ).get_span_context()
    return (found.trace_id, found.span_id) if found.is_valid else (0, 0)
