from __future__ import annotations

import base64
import gzip
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1 import trace_pb2

import rose_trace as rose
from rose_trace.interop import ImportSettings, import_trace
from rose_trace.interop.export import export_trace
from rose_trace.interop.otlp_attributes import LIMIT_CHARACTERS
from rose_trace.parquet import TraceError, read_metadata, read_spans
from tests.properties import examples
from tests.rose_trace.interop.random_traces import T0, RandomProgram, Row, write_trace

pb: Any = trace_pb2
TRACE_ID = "5b8efff798038103d269b633813fc60c"
IDS = {"traceId": 16, "spanId": 8, "parentSpanId": 8}


def span(number: int, name: str, parent: int = 0, **more: Any) -> Row:
    """A span as OTLP/JSON has it."""
    found = {"traceId": TRACE_ID, "spanId": f"{number:016x}", "name": name, "kind": 3}
    found |= {"parentSpanId": f"{parent:016x}"} if parent else {}
    times = {"startTimeUnixNano": str(T0 + number), "endTimeUnixNano": str(T0 + 100 - number)}
    return {**found, **times, **more}


def attribute(key: str, **value: Any) -> Row:
    return {"key": key, "value": value}


def resource_spans(*spans: Row, scope: str = "lib.http", **attributes: str) -> Row:
    said = {"service.name": "shop", **attributes}
    resource = {"attributes": [attribute(k, stringValue=v) for k, v in said.items()]}
    return {"resource": resource, "scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}]}


def otlp(path: Path, *spans: Row, **attributes: str) -> Path:
    path.write_text(json.dumps({"resourceSpans": [resource_spans(*spans, **attributes)]}))
    return path


def imported(file: Path) -> list[Row]:
    trace = file.with_name("imported.parquet")
    import_trace(file, trace)
    return read_spans(trace).to_pylist()


def export(trace: Path, name: str) -> Path:
    path = trace.with_name(name)
    export_trace(trace, path)
    return path


def decoded(path: Path) -> Any:
    """A file by the official messages; ids from hexadecimal, which is all that OTLP/JSON adds."""
    if path.suffix == ".pb":
        return pb.TracesData.FromString(path.read_bytes())

    def with_base64(item: Any) -> Any:
        if isinstance(item, list):
            return [with_base64(each) for each in cast("list[Any]", item)]
        if not isinstance(item, dict):
            return item
        found = {key: with_base64(each) for key, each in cast("Row", item).items()}
        for name in IDS.keys() & found.keys():
            raw = bytes.fromhex(found[name])
            assert len(raw) == IDS[name]
            found[name] = base64.b64encode(raw).decode()
        return found

    data = with_base64(json.loads(path.read_text()))
    return json_format.Parse(json.dumps(data), pb.TracesData())


def spans_of(data: Any) -> Iterator[tuple[Any, Any, Any]]:
    for some in data.resource_spans:
        for scoped in some.scope_spans:
            for item in scoped.spans:
                yield some.resource, scoped.scope, item


def same(rows: list[Row]) -> list[Row]:
    """Rows in an order that does not depend on the file; attributes without theirs."""
    kept = [{**row, "attributes": sorted(row["attributes"])} for row in rows]
    return sorted(kept, key=lambda row: row["span_id"])


# --- what is exported ---------------------------------------------------------------------------


@examples(25, 10, HealthCheck.function_scoped_fixture)
@given(seed=st.integers(0, 2**32 - 1))
def test_both_formats_hold_every_span_and_come_back_as_they_were(seed: int, tmp_path: Path) -> None:
    program = RandomProgram(Random(seed))
    trace = write_trace(tmp_path / "t.parquet", program.rows)
    rows = read_spans(trace).to_pylist()
    files = [export(trace, "t.otlp.json"), export(trace, "t.otlp.pb")]
    messages = [decoded(file) for file in files]
    assert messages[0] == messages[1]
    by_id = {row["span_id"]: row for row in rows}
    found = list(spans_of(messages[0]))
    assert len(found) == len(rows)
    for resource, scope, item in found:
        row = by_id[int.from_bytes(item.span_id, "big")]
        said = {a.key: a.value for a in item.attributes}
        assert item.trace_id.hex() == row["trace_id"]
        assert int.from_bytes(item.parent_span_id, "big") == row["parent_id"]
        assert (item.name, item.start_time_unix_nano, item.end_time_unix_nano) == (
            row["node"],
            row["start_ns"],
            row["end_ns"],
        )
        foreign = row["kind"] == "foreign"
        assert scope.name == ("lib.x" if foreign else "rose_trace")
        assert said["rose.path"].string_value == row["path"]
        assert (item.status.code == pb.Status.STATUS_CODE_ERROR) == (row["status"] == "error")
        assert not any(key.startswith("otel.") for key in said)
        assert len(said) == len(item.attributes)  # no name twice
        if foreign:
            assert item.kind in {pb.Span.SPAN_KIND_INTERNAL, pb.Span.SPAN_KIND_SERVER}
            assert bool(item.links) == (row["status"] == "ok")
        else:
            assert item.kind == pb.Span.SPAN_KIND_INTERNAL
            assert not item.links
        process = {a.key: a.value for a in resource.attributes}
        assert process["service.name"].string_value == "rose"
        assert process["process.pid"].int_value == row["pid"]
    if rows:
        for file in files:
            assert same(imported(file)) == same(rows)


def test_json_writes_ids_as_hexadecimal_and_large_numbers_as_text(tmp_path: Path) -> None:
    program = RandomProgram(Random(8))
    trace = write_trace(tmp_path / "t.parquet", program.rows)
    data = json.loads(export(trace, "t.otlp.json").read_text())
    (item, *_) = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert item["traceId"] == program.trace_id
    assert isinstance(item["startTimeUnixNano"], str)
    assert isinstance(item["kind"], int)
    names = {a["key"] for a in item["attributes"]}
    spaces = {name.rsplit(".", 1)[0] for name in names if "." in name}
    assert not names & spaces, "a name is also a namespace"


def test_a_recorded_program_comes_back(tmp_path: Path) -> None:
    @rose.component
    class Policy:
        @rose.node(updates="weights")
        def learn(self, x: list[int]) -> list[int]:
            return x

        @rose.node(reads="weights")
        def act(self, x: list[int]) -> list[int]:
            if len(x) > 2:
                raise ValueError("long")
            return [*x, 1]

    with rose.program():
        policy: Any = Policy()
    trace = tmp_path / "t.parquet"
    with rose.record(trace, activity="none"):
        for _ in rose.iterations("train", range(2)):
            policy.learn(policy.act([1]))
        with pytest.raises(ValueError, match="long"):
            policy.act([1, 2, 3])
    rows = read_spans(trace).to_pylist()
    assert any(row["states"] for row in rows)
    assert any(row["error"] == "ValueError" for row in rows)
    info = read_metadata(trace)
    for name in ("t.otlp.json.gz", "t.otlp.pb"):
        assert same(imported(export(trace, name))) == same(rows)
        again = read_metadata(tmp_path / "imported.parquet")
        assert (again.run, again.complete, again.reasons) == (info.run, True, [])
        assert again.rows == {"spans": len(rows), "activity": 0}


def test_references_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    (row, *_) = [r for r in RandomProgram(Random(2)).rows if r["kind"] == "exec" and r["outputs"]]
    row |= {"inputs": row["outputs"][:1] * 2_000, "outputs": [], "parent_id": 0, "states": []}
    trace = write_trace(tmp_path / "t.parquet", [row])
    done = export_trace(trace, tmp_path / "t.otlp.pb")
    (item,) = [s for _, _, s in spans_of(decoded(tmp_path / "t.otlp.pb"))]
    said = {a.key: a.value for a in item.attributes}
    assert len(said["rose.inputs"].string_value) <= LIMIT_CHARACTERS
    (back,) = imported(tmp_path / "t.otlp.pb")
    assert 100 < len(back["inputs"]) < 2_000
    assert len(back["inputs"]) + done.left_out == 2_000
    assert said["rose.left_out"].int_value == done.left_out
    notes = read_metadata(tmp_path / "imported.parquet").activity["notes"]
    assert notes == ["1 invocations had more data references than fit into an attribute"]


def test_losses_travel_along(tmp_path: Path) -> None:
    rows = RandomProgram(Random(11)).rows
    assert len(rows) > 2
    trace = write_trace(tmp_path / "t.parquet", rows, reasons=["process w lost 2 rows"])
    imported(export(trace, "t.otlp.json"))
    again = read_metadata(tmp_path / "imported.parquet")
    assert (again.complete, again.reasons) == (False, ["process w lost 2 rows"])
    # Spans that somebody dropped on the way are missed.
    data = decoded(tmp_path / "t.otlp.json")
    del data.resource_spans[0].scope_spans[0].spans[0]
    (tmp_path / "less.pb").write_bytes(data.SerializeToString())
    imported(tmp_path / "less.pb")
    assert read_metadata(tmp_path / "imported.parquet").reasons == [
        "process w lost 2 rows",
        f"{len(rows) - 1} of {len(rows)} spans of run r1 are in the file",
    ]


# --- what others wrote --------------------------------------------------------------------------


def test_spans_of_other_instrumentation(tmp_path: Path) -> None:
    event = {
        "timeUnixNano": str(T0 + 5),
        "name": "exception",
        "attributes": [attribute("exception.type", stringValue="OSError")],
    }
    file = otlp(
        tmp_path / "s.json",
        span(2, "GET /items", 1, kind=2, status={"code": 2, "message": "gone"}, events=[event]),
        span(1, "checkout", attributes=[
            attribute("thread.id", intValue="17"),
            attribute("ratio", doubleValue=0.5),
            attribute("tags", arrayValue={"values": [{"stringValue": "a"}, {"boolValue": True}]}),
            attribute("nothing"),
        ]),
        span(3, "db", 99, traceState="k=v", links=[{"traceId": TRACE_ID, "spanId": f"{1:016x}"}]),
        **{"service.version": "1", "process.pid": "no number"},
    )  # fmt: skip
    outer, inner, orphan = imported(file)
    assert (outer["kind"], outer["node"], outer["path"], outer["key"]) == (
        "foreign",
        "checkout",
        "checkout",
        "lib.http:checkout",
    )
    assert (outer["trace_id"], outer["span_id"], outer["parent_id"]) == (TRACE_ID, 1, 0)
    assert (outer["process"], outer["pid"], outer["thread"]) == ("shop", 0, 17)
    assert (outer["start_ns"], outer["end_ns"]) == (T0 + 1, T0 + 99)
    assert outer["attributes"] == [
        ("ratio", "0.5"),
        ("tags", '["a",true]'),
        ("nothing", "null"),
        ("otel.kind", "client"),
    ]
    assert (inner["path"], inner["parent_id"]) == ("checkout/GET |items", 1)
    assert (inner["status"], inner["error"]) == ("error", "OSError")
    said = dict(inner["attributes"])
    assert (said["otel.kind"], said["otel.status_description"]) == ("server", "gone")
    assert json.loads(said["otel.events"])[0]["time_ns"] == T0 + 5
    assert orphan["path"] == "db"
    assert dict(orphan["attributes"])["otel.trace_state"] == "k=v"
    info = read_metadata(tmp_path / "imported.parquet")
    assert info.activity["notes"] == ["1 spans name a parent that is not in the file"]
    assert info.producer["imported_from"] == "OTLP of shop"
    # Out and in again: nothing is lost.
    assert same(imported(export(tmp_path / "imported.parquet", "again.pb"))) == same(
        [outer, inner, orphan]
    )


def test_the_collectors_files(tmp_path: Path) -> None:
    lines: list[Row] = [
        {"resourceMetrics": []},
        {"resourceSpans": [resource_spans(span(2, "inner", 1))]},
        {"resourceSpans": [resource_spans(span(1, "outer"), span(2, "inner", 1))]},
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "lines.json").write_text(text)
    assert [row["path"] for row in imported(tmp_path / "lines.json")] == ["outer", "outer/inner"]
    notes = read_metadata(tmp_path / "imported.parquet").activity["notes"]
    assert notes == ["1 spans were delivered more than once"]
    (tmp_path / "lines.json.gz").write_bytes(gzip.compress(text.encode()))
    assert len(imported(tmp_path / "lines.json.gz")) == 2
    # Protobuf: each message after its length.
    file = otlp(tmp_path / "one.json", span(1, "outer"))
    one = decoded(file).SerializeToString()
    framed = b"".join(len(each).to_bytes(4, "big") + each for each in (one, one))
    (tmp_path / "framed.pb").write_bytes(framed)
    assert [row["path"] for row in imported(tmp_path / "framed.pb")] == ["outer"]
    (tmp_path / "framed.pb").write_bytes(framed[:-1])
    assert "of which" in refusal(tmp_path / "framed.pb")


def test_spans_without_an_end_and_attributes_that_were_dropped(tmp_path: Path) -> None:
    file = otlp(
        tmp_path / "s.json",
        span(1, "open", endTimeUnixNano="0", droppedAttributesCount=3),
        span(2, "done"),
    )
    opened, _ = imported(file)
    assert opened["end_ns"] == T0 + 98
    assert ("unfinished", "true") in opened["attributes"]
    assert read_metadata(tmp_path / "imported.parquet").activity["notes"] == [
        "1 spans without an end last to the end of the file",
        "3 attributes or events were dropped by whoever wrote the file",
    ]


def test_the_sdks_own_exporter_is_understood(tmp_path: Path) -> None:
    encoder = pytest.importorskip("opentelemetry.exporter.otlp.proto.common.trace_encoder")
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "svc", "process.pid": 41}))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("my.lib")
    with tracer.start_as_current_span("outer") as outer:
        outer.set_attribute("n", 3)
        with pytest.raises(LookupError), tracer.start_as_current_span("inner"):
            raise LookupError
    request = encoder.encode_spans(kept.get_finished_spans())
    (tmp_path / "sdk.pb").write_bytes(request.SerializeToString())
    first, second = imported(tmp_path / "sdk.pb")
    assert (first["path"], second["path"]) == ("outer", "outer/inner")
    assert first["span_id"] == outer.get_span_context().span_id
    assert first["trace_id"] == f"{outer.get_span_context().trace_id:032x}"
    assert (first["process"], first["pid"], first["key"]) == ("svc", 41, "my.lib:outer")
    assert (second["status"], second["error"]) == ("error", "LookupError")
    assert logging.getLogger("rose_trace").disabled is False


# --- refusals -----------------------------------------------------------------------------------


def refusal(file: Path) -> str:
    trace = file.with_name("refused.parquet")
    with pytest.raises(TraceError) as raised:
        import_trace(file, trace)
    assert not trace.exists()
    message = str(raised.value)
    assert message.startswith(f"{file}: expected ")
    assert "\n" not in message
    return message.removeprefix(f"{file}: expected ")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.98])
@pytest.mark.parametrize("name", ["t.otlp.json", "t.otlp.json.gz", "t.otlp.pb"])
def test_truncated_files(name: str, part: float, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", RandomProgram(Random(11)).rows)
    file = export(trace, name)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * part)])
    assert "It is truncated" in refusal(file)


def test_files_without_spans_and_of_other_kinds(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for text in ('{"resourceSpans": []}', '{"resourceMetrics": [{}]}', '{"resourceLogs": [{}]}'):
        file.write_text(text)
        assert refusal(file) == ("OTLP traces, got no span. Export traces, not metrics or logs.")
    file.write_text('{"resourceSpans": []} 7')
    assert refusal(file).startswith("traces as OTLP/JSON has them, got 7 in place of an object")
    file.write_text('{"resourceSpans": [' + "[" * 200_000)
    assert refusal(file).startswith(("OTLP/JSON, got ", "traces as OTLP/JSON has them, got "))
    (tmp_path / "x.pftrace").write_bytes(b"\x0a\x04\x50\x01\x18\x02")
    assert refusal(tmp_path / "x.pftrace").startswith("OTLP traces")
    (tmp_path / "x.txt").write_text("\nnot a trace at all\n")
    assert refusal(tmp_path / "x.txt").startswith("OTLP traces as protobuf, got ")
    with pytest.raises(TraceError, match="expected no pattern for iterations, got 'step'"):
        import_trace(otlp(file, span(1, "a")), tmp_path / "t.parquet", ImportSettings("step"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"traceId": "5b8e"}, "traceId '5b8e' in place of 32 hexadecimal digits"),
        ({"traceId": "g" * 32}, "non-hexadecimal"),
        ({"spanId": 7}, "spanId 7 in place of 16"),
        ({"spanId": ""}, "'a' with ids of 16 and 0 bytes"),
        ({"spanId": "0" * 16}, "'a' with ids of 16 and 8 bytes"),
        ({"startTimeUnixNano": "soon"}, "startTimeUnixNano"),
        ({"startTimeUnixNano": str(2**64 - 1), "endTimeUnixNano": "0"}, ""),
        ({"endTimeUnixNano": "5"}, "before it starts"),
        ({"name": 7}, "name"),
        ({"attributes": 3}, "attributes"),
        ({"attributes": [{"key": "rose.kind", "value": {"intValue": "3"}}]}, "rose.kind is 3"),
        (
            {"attributes": [attribute("rose.kind", stringValue="exec"), attribute("rose.inputs", stringValue="[7")]},
            "",
        ),
        (
            {"attributes": [attribute("rose.kind", stringValue="exec"), attribute("rose.inputs", stringValue="[7]")]},
            "rose.inputs is 7",
        ),
        (
            {
                "attributes": [
                    attribute("rose.kind", stringValue="exec"),
                    attribute("rose.states", stringValue='[{"state":"s","access":"read","version":"x"}]'),
                ]
            },
            "",
        ),
        ({"parentSpanId": f"{1:016x}"}, "its own ancestor"),
    ],
)  # fmt: skip
def test_spans_that_make_no_sense(change: Row, words: str, tmp_path: Path) -> None:
    file = otlp(tmp_path / "s.json", span(1, "a") | change)
    assert words in refusal(file)


def is_imported(file: Path) -> bool:
    try:
        import_trace(file, file.with_name("t.parquet"))
    except TraceError:
        return False
    return True


def test_every_odd_field_imports_or_is_refused(tmp_path: Path) -> None:
    event: Row = {"timeUnixNano": "5", "name": "e", "attributes": []}
    whole = span(
        1, "a", 2, attributes=[attribute("n", intValue="1")], events=[event], status={"code": 1}
    )
    odd: list[Any] = [None, [], {}, 2**70, "x", [[]], -1]
    outcomes: list[bool] = []
    for name in whole:
        for value in odd:
            file = otlp(tmp_path / "s.json", whole | {name: value})
            outcomes.append(is_imported(file))
    assert {True, False} <= set(outcomes)
    others: list[Any] = [
        [3],
        {"a": 1},
        None,
        [{"scopeSpans": [{"spans": 3}]}],
        [{"scopeSpans": {}}],
    ]
    for other in others:
        (tmp_path / "s.json").write_text(json.dumps({"resourceSpans": other}))
        refusal(tmp_path / "s.json")
