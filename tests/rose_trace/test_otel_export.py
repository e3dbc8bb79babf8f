from __future__ import annotations

import http.server
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import rose_trace as rose
from rose_trace import otel_export
from rose_trace.parquet import read_metadata, read_spans

ROOT = Path(__file__).parents[2]


@rose.node(pure=True)
def work(x: int) -> int:
    if x < 0:
        raise ValueError(x)
    return x + 1


@rose.node
def outer(x: int) -> int:
    return work(work(x))


@pytest.fixture
def received() -> Generator[tuple[str, list[Any]]]:
    """Address of an OTLP/HTTP receiver, and the requests that it has decoded."""
    requests: list[Any] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", requests
    server.shutdown()
    thread.join()
    server.server_close()


def _memory() -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "trainer"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def test_invocations_reach_the_provider_with_their_own_ids_and_times(tmp_path: Path) -> None:
    provider, exporter = _memory()
    tracer = provider.get_tracer("client")
    path = tmp_path / "t.parquet"
    with rose.record(path, activity="none", export=True, provider=provider) as recording:
        with tracer.start_as_current_span("job"):
            for i in rose.iterations("steps", [1, 2]):
                outer(i)
        with pytest.raises(ValueError, match="-1"):
            work(-1)
    rows = {r["span_id"]: r for r in read_spans(path).to_pylist()}
    found: dict[int, ReadableSpan] = {}
    for span in exporter.get_finished_spans():
        assert span.context is not None
        assert span.context.span_id not in found, "exported twice"
        found[span.context.span_id] = span
    assert found.keys() == rows.keys()
    assert len(rows) == 9
    for span_id, row in rows.items():
        span = found[span_id]
        assert span.context is not None
        assert span.name == row["node"]
        assert f"{span.context.trace_id:032x}" == row["trace_id"]
        assert (span.parent.span_id if span.parent else 0) == row["parent_id"]
        assert (span.start_time, span.end_time) == (row["start_ns"], row["end_ns"])
        assert span.resource.attributes["service.name"] == "trainer"
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.name == (
            "client" if row["kind"] == "foreign" else "rose_trace"
        )
        if row["kind"] != "foreign":
            assert span.attributes is not None
            assert span.attributes["rose.path"] == row["path"]
            assert tuple(span.attributes.get("rose.iteration", ())) == tuple(row["iteration"])  # type: ignore[arg-type]
            assert span.attributes["thread.id"] == row["thread"]
    [failed] = [s for s in found.values() if s.status.status_code is StatusCode.ERROR]
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ValueError"
    assert recording.export is not None
    assert recording.export.handed == 8
    assert recording.export.passed_over == recording.export.dropped == 0


def test_a_receiver_decodes_what_the_otlp_exporter_sends(
    tmp_path: Path, received: tuple[str, list[Any]]
) -> None:
    address, requests = received
    provider = TracerProvider(resource=Resource.create({"service.name": "trainer"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=address)))
    path = tmp_path / "t.parquet"
    with rose.record(path, activity="none", export=True, provider=provider) as recording:
        for i in range(2_000):  # 6,000 spans: three times what the batch processor holds
            outer(i)
    rows = {r["span_id"]: r for r in read_spans(path).to_pylist()}
    assert len(rows) == 6_000
    got: dict[int, Any] = {}
    for request in requests:
        for of_resource in request.resource_spans:
            names = {a.key: a.value.string_value for a in of_resource.resource.attributes}
            assert names["service.name"] == "trainer"
            for of_scope in of_resource.scope_spans:
                assert of_scope.scope.name == "rose_trace"
                got |= {int.from_bytes(span.span_id, "big"): span for span in of_scope.spans}
    assert got.keys() == rows.keys()
    for span_id, row in rows.items():
        span = got[span_id]
        assert span.trace_id.hex() == row["trace_id"]
        assert int.from_bytes(span.parent_span_id, "big") == row["parent_id"]
        assert span.start_time_unix_nano == row["start_ns"]
        assert span.end_time_unix_nano == row["end_ns"]
        assert span.name == row["node"]
    assert recording.export is not None
    assert (recording.export.handed, recording.export.dropped) == (6_000, 0)
    provider.shutdown()


class _Blocked(SpanExporter):
    """An exporter whose collector does not answer before it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.entered.set()
        self.go.wait(60)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


@pytest.mark.slow
def test_a_blocked_exporter_loses_spans_and_says_so_but_the_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otel_export, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(otel_export, "BACKLOG_ROWS", 1_000)
    blocked = _Blocked()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(blocked))
    path = tmp_path / "t.parquet"
    with rose.record(path, activity="none", export=True, provider=provider) as recording:
        for i in range(4_000):
            work(i)
    assert read_metadata(path).complete
    assert read_spans(path).num_rows == 4_000
    assert recording.export is not None
    assert blocked.entered.wait(60)
    assert 0 < recording.export.handed < 4_000
    assert recording.export.passed_over > 0
    assert "Live export: expected to hand over every invocation" in caplog.text
    assert "The trace file has them all" in caplog.text
    blocked.go.set()
    provider.shutdown()


def test_spans_that_find_a_full_queue_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = _Blocked()
    provider = TracerProvider()
    provider.add_span_processor(
        BatchSpanProcessor(blocked, max_queue_size=4, max_export_batch_size=1)
    )
    tracer = provider.get_tracer("client")
    tracer.start_span("first").end()
    assert blocked.entered.wait(60)  # the processor's thread is busy and its queue empty
    for _ in range(4):
        tracer.start_span("fills the queue").end()
    export = otel_export.LiveExport(provider)
    with rose.record(tmp_path / "t.parquet", activity="none"):
        work(1)
    export._provider.force_flush = lambda: True  # not waiting for the blocked exporter
    export.add(read_spans(tmp_path / "t.parquet").to_batches()[0])
    export.close(seconds=60)
    assert (export.handed, export.dropped) == (1, 1)
    assert "1 that found the queue of its batch processor full" in caplog.text
    blocked.go.set()
    provider.shutdown()


def test_a_processor_that_raises_does_not_reach_the_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Raising(SimpleSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise RuntimeError("mine")

    provider = TracerProvider()
    provider.add_span_processor(Raising(InMemorySpanExporter()))
    path = tmp_path / "t.parquet"
    with rose.record(path, activity="none", export=True, provider=provider) as recording:
        assert outer(1) == 3
    assert read_metadata(path).complete
    assert recording.export is not None
    assert (recording.export.handed, recording.export.passed_over) == (0, 3)
    assert "expected the provider to take spans, got an exception" in caplog.text


def test_off_by_default_and_without_a_provider_nothing_is_installed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    provider, exporter = _memory()
    with rose.record(tmp_path / "a.parquet", activity="none", provider=provider) as recording:
        outer(1)
    assert recording.export is None
    assert not exporter.get_finished_spans()
    with rose.record(tmp_path / "b.parquet", activity="none", export=True) as recording:
        outer(1)
    assert recording.export is not None
    assert (recording.export.handed, recording.export.passed_over) == (0, 3)
    assert "3 that the provider was not there or not fast enough for" in caplog.text
    assert not exporter.get_finished_spans()


PROGRAM = """
    import os, subprocess, sys
    import rose_trace as rose
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if __name__ == "__main__":
        trace.set_tracer_provider(TracerProvider())  # made after the recording: ends after it
        exporter = OTLPSpanExporter(endpoint=sys.argv[1])
        trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(exporter))

        @rose.node
        def parent():
            if len(sys.argv) < 3:
                subprocess.run([sys.executable, *sys.orig_argv[1:], "child"], check=True)

        parent()
"""


def test_a_whole_program_and_its_children_export_before_their_providers_end(
    tmp_path: Path, received: tuple[str, list[Any]]
) -> None:
    address, requests = received
    path = tmp_path / "t.parquet"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), address],
        cwd=ROOT,
        env={
            **os.environ,
            "ROSE_TRACE": str(path),
            "ROSE_ACTIVITY": "none",
            "ROSE_TRACE_EXPORT": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {r["span_id"]: r for r in read_spans(path).to_pylist()}
    assert sorted(r["process"].split("-")[0] for r in rows.values()) == ["child", "main"]
    spans = [
        span
        for request in requests
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]
    assert {int.from_bytes(span.span_id, "big") for span in spans} == rows.keys()
    assert len(spans) == 2
