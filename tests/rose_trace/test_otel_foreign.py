from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import SynchronousMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

import rose_trace as rose
from rose_trace import otel_foreign
from rose_trace.parquet import read_metadata, read_spans

ROOT = Path(__file__).parents[2]

Rows = list[dict[str, Any]]


def _record(path: Path, program: Callable[[], Any], provider: TracerProvider | None = None) -> Rows:
    with rose.record(path, activity="none", provider=provider) as recording:
        program()
    assert recording.info is not None
    assert recording.info.complete, recording.info.reasons
    return read_spans(path).to_pylist()


def test_spans_inside_around_and_beside_invocations_are_rows(tmp_path: Path) -> None:
    provider = TracerProvider()
    tracer = provider.get_tracer("client")

    @rose.node(pure=True)
    def inner() -> None:
        tracer.start_span("query").end()

    @rose.node
    def outer() -> None:
        with tracer.start_as_current_span("GET /items"):
            inner()
            tracer.start_span("parse").end()
        carried = context.get_current()

        def elsewhere() -> None:
            token = context.attach(carried)
            tracer.start_span("in a thread").end()
            context.detach(token)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    def program() -> None:
        with tracer.start_as_current_span("job"):
            for _ in rose.iterations("steps", range(2)):
                outer()

    rows = _record(tmp_path / "t.parquet", program, provider)
    by_id = {r["span_id"]: r for r in rows}
    foreign = [r for r in rows if r["kind"] == "foreign"]
    assert {(r["node"], r["path"], tuple(r["iteration"])) for r in foreign} == {
        ("job", "job", ()),
        *(
            (name, f"steps/outer/{path}", (i,))
            for i in range(2)
            for name, path in (
                ("GET /items", "GET |items"),
                ("query", "inner/query"),
                ("parse", "GET |items/parse"),
                ("in a thread", "in a thread"),
            )
        ),
    }
    assert len(foreign) == 9
    for row in foreign:
        parent = by_id.get(row["parent_id"])
        if row["node"] == "job":
            assert row["parent_id"] == 0
            continue
        assert parent is not None
        assert parent["start_ns"] <= row["start_ns"] <= row["end_ns"] <= parent["end_ns"]
        assert parent["trace_id"] == row["trace_id"]
    assert {by_id[r["parent_id"]]["node"] for r in foreign if r["node"] == "query"} == {"inner"}
    assert {by_id[r["parent_id"]]["node"] for r in foreign if r["node"] == "in a thread"} == {
        "outer"
    }
    assert {r["pid"] for r in foreign} == {os.getpid()}
    main = threading.get_native_id()
    assert {r["thread"] == main for r in foreign if r["node"] == "in a thread"} == {False}
    assert {r["thread"] for r in foreign if r["node"] != "in a thread"} == {main}
    assert {r["key"] for r in foreign if r["node"] == "parse"} == {"client:parse"}
    [job] = [r for r in rows if r["node"] == "job"]
    [loop] = [r for r in rows if r["kind"] == "loop"]
    assert (loop["parent_id"], loop["trace_id"]) == (job["span_id"], job["trace_id"])


def test_status_attributes_events_and_links_are_kept(tmp_path: Path) -> None:
    provider = TracerProvider()
    tracer = provider.get_tracer("client")
    other = tracer.start_span("other")

    def program() -> None:
        link = Link(other.get_span_context(), {"why": "batch"})
        try:
            with tracer.start_as_current_span("call", kind=SpanKind.CLIENT, links=[link]) as span:
                span.set_attributes({"text": "a", "number": 3, "list": ["x", "y"], "yes": True})
                raise ValueError("no")
        except ValueError:
            pass
        with tracer.start_as_current_span("told") as span:
            span.set_status(Status(StatusCode.ERROR, "it said so"))
        tracer.start_span("times", start_time=5_000).end(end_time=7_000)
        other.end()

    rows = {r["node"]: r for r in _record(tmp_path / "t.parquet", program, provider)}
    call = dict(rows["call"]["attributes"])
    assert (rows["call"]["status"], rows["call"]["error"]) == ("error", "ValueError")
    assert call["text"] == "a"
    assert [json.loads(call[key]) for key in ("number", "list", "yes")] == [3, ["x", "y"], True]
    assert call["otel.kind"] == "client"
    [event] = json.loads(call["otel.events"])
    assert event["name"] == "exception"
    assert event["attributes"]["exception.message"] == "no"
    [link] = json.loads(call["otel.links"])
    assert link["span_id"] == f"{other.get_span_context().span_id:016x}"
    assert link["attributes"] == {"why": "batch"}
    assert (rows["told"]["status"], rows["told"]["error"]) == ("error", "error")
    assert dict(rows["told"]["attributes"])["otel.status_description"] == "it said so"
    assert (rows["times"]["start_ns"], rows["times"]["end_ns"]) == (5_000, 7_000)
    assert rows["other"]["status"] == "ok"  # began before the recording, ended inside


def test_no_span_is_lost_from_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        otel_foreign, "LIMIT_ROWS", 64
    )  # threads write their own beside the flusher
    provider = TracerProvider()
    tracer = provider.get_tracer("client")

    @rose.node(pure=True)
    def work() -> None:
        tracer.start_span("inside").end()

    def many() -> None:
        for _ in range(500):
            work()

    def program() -> None:
        threads = [threading.Thread(target=many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    rows = _record(tmp_path / "t.parquet", program, provider)
    works = {r["span_id"] for r in rows if r["node"] == "work"}
    inside = [r["parent_id"] for r in rows if r["node"] == "inside"]
    assert len(rows) == 4_000
    assert len(inside) == 2_000
    assert set(inside) == works


def test_a_provider_gets_one_processor_which_is_inert_between_recordings(tmp_path: Path) -> None:
    processors = SynchronousMultiSpanProcessor()
    provider = TracerProvider(active_span_processor=processors)
    tracer = provider.get_tracer("client")
    construct = TracerProvider.__init__
    for number in range(2):
        rows = _record(
            tmp_path / f"{number}.parquet", lambda: tracer.start_span("a").end(), provider
        )
        assert [r["node"] for r in rows] == ["a"]
        tracer.start_span("between").end()
    assert processors._span_processors == (otel_foreign.PROCESSOR,)
    assert TracerProvider.__init__ is construct
    assert not otel_foreign.PROCESSOR._open
    assert not otel_foreign.PROCESSOR._ended


def test_a_provider_made_while_recording_is_seen(tmp_path: Path) -> None:
    def program() -> None:
        tracer = TracerProvider().get_tracer("late")
        tracer.start_span("late").end()
        TracerProvider(sampler=ALWAYS_OFF).get_tracer("off").start_span("not sampled").end()
        trace.NoOpTracerProvider().get_tracer("none").start_span("nothing").end()

    assert [r["node"] for r in _record(tmp_path / "t.parquet", program)] == ["late"]


def test_a_failure_to_write_is_counted_and_the_program_goes_on(tmp_path: Path) -> None:
    provider = TracerProvider()
    tracer = provider.get_tracer("client")
    path = tmp_path / "t.parquet"

    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with rose.record(path, activity="none", provider=provider) as recording:
        span: Any = tracer.start_span("a")
        span._name = Unprintable()  # what a broken instrumentation could leave behind
        span.end()
    assert recording.info is not None
    assert not recording.info.complete
    assert "lost 1 rows" in " ".join(recording.info.reasons)


def _run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_global_provider_of_a_whole_program(tmp_path: Path, when: str) -> None:
    path = tmp_path / "t.parquet"
    use = "import rose_trace as rose"
    provide = (
        "from opentelemetry import trace; from opentelemetry.sdk.trace import TracerProvider; "
        "trace.set_tracer_provider(TracerProvider())"
    )
    first, second = (provide, use) if when == "before" else (use, provide)
    code = f"""
        {first}
        {second}

        @rose.node
        def work():
            with trace.get_tracer("client").start_as_current_span("inside"): pass

        work()
        """
    _run(code, ROSE_TRACE=str(path), ROSE_ACTIVITY="none")
    rows = {r["node"]: r for r in read_spans(path).to_pylist()}
    assert set(rows) == {"work", "inside"}
    assert rows["inside"]["parent_id"] == rows["work"]["span_id"]
    assert read_metadata(path).complete


def test_without_the_sdk_it_is_not_imported(tmp_path: Path) -> None:
    code = """
        import sys
        import rose_trace as rose
        with rose.record(sys.argv[1] if len(sys.argv) > 1 else "%s", activity="none"):
            rose.node(lambda: None)()
        print("opentelemetry.sdk.trace" in sys.modules)
    """
    assert _run(code % (tmp_path / "t.parquet")).strip() == "False"
