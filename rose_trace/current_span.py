"""The current OpenTelemetry span, without attaching one per invocation.

The hot path makes an invocation the current frame and no more: setting a second context variable costs
about a seventh of an invocation, and hardly any has somebody inside who asks for the span. Who asks gets it:
an invocation is the current span as long as the context that was current when it opened still is.
"""

from __future__ import annotations

from contextvars import ContextVar, Token

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

from rose_trace import frames, otel
from rose_trace.invocation import Invocation


class InvocationContext(ContextVarsRuntimeContext):
    """OpenTelemetry's usual runtime context, on the same variable, that knows open invocations.

    Args:
        variable: The variable of the usual one.
    """

    def __init__(self, variable: ContextVar[Context]) -> None:
        self._current_context = variable

    def get_current(self) -> Context:
        """The context of the innermost span, which may be an invocation."""
        around = self._current_context.get()
        inv = _opened_in(around)
        return around if inv is None else otel.context_with(inv, around)

    def attach(self, context: Context) -> Token[Context]:
        """Make a context the current one, even if it is the one around the present invocation."""
        around = self._current_context.get()
        same = context is around and _opened_in(around) is not None
        return self._current_context.set(Context(context) if same else context)


def _opened_in(around: Context) -> Invocation | None:
    """The present invocation, if nothing was attached since it opened."""
    frame = frames.current.get()
    return frame if isinstance(frame, Invocation) and frame.around is around else None


def install() -> None:
    """Let OpenTelemetry ask for invocations, from now on; without recording it finds none."""
    usual = type(getattr(otel_context, otel.RUNTIME, None)) is ContextVarsRuntimeContext
    if otel.variable is not None and usual:
        setattr(otel_context, otel.RUNTIME, InvocationContext(otel.variable))
