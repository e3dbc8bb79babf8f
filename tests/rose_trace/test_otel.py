from __future__ import annotations

import asyncio
import contextvars
import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rose_trace as rose
from rose_trace import otel
from rose_trace.parquet import read_metadata, read_spans

ROOT = Path(__file__).parents[2]

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


def test_an_invocation_is_the_current_span_only_where_it_is_innermost(
    recorded: Recorded, exported: tuple[trace.Tracer, Callable[[], dict[str, ReadableSpan]]]
) -> None:
    tracer, spans = exported

    @rose.node(pure=True)
    def inner() -> None:
        tracer.start_span("inside inner").end()

    @rose.node
    def middle(around: context.Context) -> None:
        tracer.start_span("inside middle").end()
        tracer.start_span("inside middle, told", context=context.get_current()).end()
        with tracer.start_as_current_span("foreign"):
            inner()
            tracer.start_span("inside foreign").end()
        tracer.start_span("after foreign").end()
        for name, wanted in (("as outside", around), ("as here", context.get_current())):
            token = context.attach(wanted)
            tracer.start_span(name).end()
            inner()
            context.detach(token)
        tracer.start_span("detached").end()
        copied = contextvars.copy_context()

        def elsewhere() -> None:
            copied.run(lambda: tracer.start_span("copied").end())
            tracer.start_span("of nobody").end()

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    @rose.node
    def outer() -> None:
        middle(context.get_current())
        tracer.start_span("inside outer").end()

    def program() -> None:
        outer()
        assert not trace.get_current_span().get_span_context().is_valid

    rows = {row["node"]: row["span_id"] for row in recorded(program)}
    found = spans()

    def parent(name: str) -> int:
        span = found[name].parent
        return 0 if span is None else span.span_id

    foreign = found["foreign"].get_span_context()
    assert foreign is not None
    middles = ("inside middle", "inside middle, told", "after foreign", "as here", "detached")
    assert {parent(name) for name in (*middles, "foreign", "copied")} == {rows["middle"]}
    assert parent("inside foreign") == foreign.span_id
    assert {parent("inside outer"), parent("as outside")} == {rows["outer"]}
    assert parent("of nobody") == 0


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


def _run(code: str, *arguments: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=ROOT,
        env={**os.environ, "ROSE_ACTIVITY": "none", **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


STARTS_A_CHILD = """
    import os, subprocess, sys
    import rose_trace as rose
    from opentelemetry import propagate

    @rose.node
    def work():
        if sys.argv[1] == "child":
            return
        env = dict(os.environ)
        if sys.argv[1] == "told":
            carrier = {}
            propagate.inject(carrier)
            env["TRACEPARENT"] = carrier["traceparent"]
        subprocess.run([sys.executable, *sys.orig_argv[1:-1], "child"], env=env, check=True)

    work()
"""


def _parent_and_child(path: Path, how: str, **environment: str) -> tuple[Any, Any]:
    _run(STARTS_A_CHILD, how, ROSE_TRACE=str(path), **environment)
    assert read_metadata(path).complete
    rows = read_spans(path).to_pylist()
    assert [r["node"] for r in rows] == ["work", "work"]
    assert {r["run"] for r in rows} == {read_metadata(path).run}
    parent, child = sorted(rows, key=lambda r: r["process"] != "main")
    assert child["process"] == f"child-{child['pid']}"
    return parent, child


def test_a_plain_subprocess_records_into_the_same_file(tmp_path: Path) -> None:
    parent, child = _parent_and_child(tmp_path / "t.parquet", "plain")
    assert child["parent_id"] == 0
    assert child["trace_id"] != parent["trace_id"]


def test_a_subprocess_that_is_given_a_traceparent_continues_the_invocation(tmp_path: Path) -> None:
    parent, child = _parent_and_child(tmp_path / "t.parquet", "told")
    assert (child["parent_id"], child["trace_id"]) == (parent["span_id"], parent["trace_id"])


def test_a_whole_program_continues_the_trace_of_what_started_it(tmp_path: Path) -> None:
    header = otel.traceparent(0xAB, 0xCD)
    parent, child = _parent_and_child(tmp_path / "t.parquet", "plain", TRACEPARENT=header)
    for row in (parent, child):
        assert (row["trace_id"], row["parent_id"]) == (f"{0xAB:032x}", 0xCD)


def test_work_in_another_thread_is_a_root_unless_its_context_is_carried(recorded: Recorded) -> None:
    @rose.node(pure=True)
    def work(how: str) -> str:
        return how

    @rose.node
    def outer() -> None:
        copied = contextvars.copy_context()
        for run in (lambda: work("thread"), lambda: copied.run(work, "thread, carried")):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work, "pool").result()
            pool.submit(contextvars.copy_context().run, work, "pool, carried").result()

            async def main() -> None:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(pool, work, "run_in_executor")
                await asyncio.to_thread(work, "to_thread")

            asyncio.run(main())

    rows = recorded(outer)
    [caller] = [r for r in rows if r["node"] == "outer"]
    works = [r for r in rows if r["node"] == "work"]
    carried = [r["parent_id"] == caller["span_id"] for r in works]
    assert carried == [False, True, False, True, False, True]
    for row, inside in zip(works, carried, strict=True):
        assert row["path"] == ("outer/work" if inside else "work")
        assert (row["trace_id"] == caller["trace_id"]) == inside
        assert inside or row["parent_id"] == 0
