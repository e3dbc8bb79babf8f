from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rose_trace as rose
from rose_trace import otel

Rows = list[dict[str, Any]]
Recorded = Callable[[Callable[[], Any]], Rows]


@pytest.fixture
def exported() -> tuple[trace.Tracer, Callable[[], dict[str, ReadableSpan]]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("another-library"), lambda: {
        s.name: s for s in exporter.get_finished_spans()
    }


def test_spans_of_other_libraries_nest(
    recorded: Recorded, exported: tuple[trace.Tracer, Callable[[], dict[str, ReadableSpan]]]
) -> None:
    tracer, spans = exported

    @rose.node(pure=True)
    def inner() -> None:
        tracer.start_span("inside inner").end()

    @rose.node
    def outer() -> None:
        with tracer.start_as_current_span("around inner"):
            inner()
        carried = context.get_current()

        def elsewhere() -> None:  # the way instrumentation carries context into threads
            token = context.attach(carried)
            tracer.start_span("in a thread").end()
            context.detach(token)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    def program() -> None:
        outer()
        assert not trace.get_current_span().get_span_context().is_valid

    rows = {r["node"]: r for r in recorded(program)}
    found = spans()
    assert len(found) == 3
    for name, parent in (
        ("around inner", "outer"),
        ("inside inner", "inner"),
        ("in a thread", "outer"),
    ):
        span = found[name]
        assert span.parent is not None
        assert span.parent.span_id == rows[parent]["span_id"]
        assert f"{span.parent.trace_id:032x}" == rows[parent]["trace_id"]


def test_a_recording_inside_a_span_is_part_of_its_trace(
    recorded: Recorded, exported: tuple[trace.Tracer, Callable[[], dict[str, ReadableSpan]]]
) -> None:
    tracer, spans = exported

    @rose.node(pure=True)
    def work() -> object:
        return baggage.get_baggage("key")

    def program() -> None:
        with tracer.start_as_current_span("job"):
            token = context.attach(baggage.set_baggage("key", "value"))
            assert work() == "value"
            context.detach(token)

    [row] = recorded(program)
    job = spans()["job"].get_span_context()
    assert job is not None
    assert row["parent_id"] == job.span_id
    assert row["trace_id"] == f"{job.trace_id:032x}"


def test_roots_outside_any_span_start_traces_of_their_own(recorded: Recorded) -> None:
    @rose.node(pure=True)
    def work() -> None: ...

    rows = recorded(lambda: (work(), work()))
    assert len({r["trace_id"] for r in rows}) == 2
    assert [r["parent_id"] for r in rows] == [0, 0]


def test_traceparent_round_trip() -> None:
    header = otel.traceparent(0xAB, 0xCD)
    assert header == f"00-{0xAB:032x}-{0xCD:016x}-01"
    assert otel.parse_traceparent(header) == (0xAB, 0xCD)
    for broken in ("", "00-zz-1-01", "00-" + "0" * 32 + "-" + "1" * 16 + "-01"):
        assert otel.parse_traceparent(broken) == (0, 0)


def test_the_programs_random_numbers_are_not_touched(recorded: Recorded) -> None:
    @rose.node(pure=True)
    def work() -> float:
        return random.random()

    random.seed(3)
    native = [work() for _ in range(5)]
    random.seed(3)
    traced: list[float] = []
    recorded(lambda: traced.extend(work() for _ in range(5)))
    assert traced == native
