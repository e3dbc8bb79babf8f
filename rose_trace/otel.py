"""OpenTelemetry at the edge of the trace: real ids, and the real context while an invocation runs.

Spans that other libraries start inside an invocation become its children, and a recording inside
somebody's span becomes part of that trace.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
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

from rose_trace.pytree import class_of

RUNTIME = "_RUNTIME_CONTEXT"
"""Where OpenTelemetry keeps the one runtime context of a process."""


def _context_variable() -> ContextVar[Context] | None:
    runtime = getattr(otel_context, RUNTIME, None)
    found: Any = getattr(runtime, "_current_context", None)
    usual = type(runtime) is ContextVarsRuntimeContext and class_of(found) is ContextVar
    return found if usual else None


def _context_functions() -> tuple[
    Callable[[Context], Token[Context]], Callable[[Token[Context]], None], Callable[[], Context]
]:
    """Attach, detach and read the current context."""
    if variable is not None:
        return variable.set, variable.reset, variable.get
    return otel_context.attach, otel_context.detach, otel_context.get_current


otel_context.get_current()  # loads the runtime context
variable = _context_variable()
"""The one context variable that the usual runtime context wraps, three times cheaper to use directly.

``None`` with any other runtime context, where OpenTelemetry's own functions serve."""
attach, detach, current_context = _context_functions()

SCOPE_NAME = "rose_trace"
"""Instrumentation scope of exported invocations."""

SAMPLED = TraceFlags(TraceFlags.SAMPLED)
SPAN_KEY = next(iter(set_span_in_context(INVALID_SPAN, Context())))
"""Key under which a context holds its span."""


class Ids:
    """Random ids from a generator of their own: the program's `random` is not touched.

    Attributes:
        span_bits: Gives 64 random bits; a span id once zero is replaced.
    """

    def __init__(self) -> None:
        self._bits = random.Random(random.SystemRandom().getrandbits(256)).getrandbits
        self.span_bits: Callable[[], int] = functools.partial(self._bits, 64)

    def trace_id(self) -> int:
        """A 128-bit trace id."""
        return self._bits(128) or 1


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
