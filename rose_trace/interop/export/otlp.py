"""OpenTelemetry's own format, as protobuf or JSON: messages of a few thousand spans, one after the other.

Activity is not in it. Data references and states are attributes, not links: a link names a span, and
viewers draw it as a cause.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any

from google.protobuf import json_format
from opentelemetry.proto.trace.v1 import trace_pb2

from rose_trace.interop.export.rows import BATCH_ROWS, Row, batches
from rose_trace.interop.otlp_attributes import SCOPE, attributes_of
from rose_trace.interop.otlp_values import key_values
from rose_trace.parquet import TraceError, TraceInfo

pb: Any = trace_pb2
SAMPLED = 1
IDS = {"traceId", "spanId", "parentSpanId"}
"""Fields that are hexadecimal in JSON, unlike other bytes of protobuf."""


def messages(trace: Path, info: TraceInfo) -> Iterator[tuple[Any, int]]:
    """A trace as OTLP messages, each with the spans of some rows.

    Args:
        trace: The spans file.
        info: What it says about itself.

    Yields:
        ``TracesData`` and how many references and states did not fit into their attributes.

    Raises:
        TraceError: If the file cannot be read, or an id in it is none.
    """
    rows = (row for batch in batches(trace, "spans") for row in batch.to_pylist())
    while some := list(islice(rows, BATCH_ROWS)):
        data = pb.TracesData()
        left_out = 0
        by_process: dict[tuple[str, str, int], dict[str, list[Row]]] = defaultdict(dict)
        for row in some:
            process = (row["run"] or "", row["process"] or "", row["pid"] or 0)
            by_process[process].setdefault(_scope(row), []).append(row)
        for process, by_scope in by_process.items():
            resource_spans = data.resource_spans.add()
            resource_spans.resource.attributes.extend(key_values(_resource(process, info)))
            for scope, mine in by_scope.items():
                scope_spans = resource_spans.scope_spans.add()
                scope_spans.scope.name = scope
                if scope == SCOPE:
                    scope_spans.scope.version = info.producer.get("rose", "")
                for row in mine:
                    try:
                        left_out += _fill(scope_spans.spans.add(), row)
                    except (AttributeError, KeyError, TypeError, ValueError) as error:
                        raise TraceError(
                            f"{trace}: expected spans with ids and times as OpenTelemetry has them, got one of "
                            f"{row['path']} without ({error}). Record it again."
                        ) from error
        yield data, left_out


def write_protobuf(file: IO[bytes], data: Any) -> None:
    """Append a message; messages one after the other are one message with the spans of all."""
    file.write(data.SerializeToString())


class JsonWriter:
    """Writes messages as one object of OTLP/JSON.

    Args:
        file: Where they go.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._separator = b'{"resourceSpans":[\n'

    def write(self, data: Any) -> None:
        """Append a message."""
        for item in to_json(data).get("resourceSpans", ()):
            self._file.write(self._separator + json.dumps(item, separators=(",", ":")).encode())
            self._separator = b",\n"

    def close(self) -> None:
        """Write the end of the file."""
        empty = self._separator != b",\n"
        self._file.write((self._separator if empty else b"\n") + b"]}\n")


def to_json(data: Any) -> dict[str, Any]:
    """A message in OTLP's JSON: hexadecimal ids, enumerations as numbers, 64-bit integers as strings."""
    found = json_format.MessageToDict(data, use_integers_for_enums=True)
    for resource_spans in found.get("resourceSpans", ()):
        for scope_spans in resource_spans.get("scopeSpans", ()):
            for span in scope_spans.get("spans", ()):
                for item in (span, *span.get("links", ())):
                    for name in IDS & item.keys():
                        item[name] = base64.b64decode(item[name]).hex()
    return found


def _scope(row: Row) -> str:
    """Instrumentation scope: ours, or the one that the key of another's span begins with."""
    if row["kind"] != "foreign":
        return SCOPE
    return (row["key"] or "").removesuffix(row["node"] or "").removesuffix(":")


def _resource(process: tuple[str, str, int], info: TraceInfo) -> dict[str, Any]:
    run, name, pid = process
    found: dict[str, Any] = {
        "service.name": "rose",
        "service.instance.id": f"{run}/{name}/{pid}",
        "process.pid": pid,
        "rose.process": name,
        "rose.run": run,
        "rose.spans": info.rows.get("spans", 0),
        "rose.complete": info.complete,
    }
    return found if info.complete else {**found, "rose.reasons": info.reasons}


def _fill(span: Any, row: Row) -> int:
    """Fill a span from a row; returns how many references and states did not fit."""
    attributes, left_out = attributes_of(row)
    span.trace_id = bytes.fromhex(row["trace_id"]).rjust(16, b"\0")
    span.span_id = row["span_id"].to_bytes(8, "big")
    if row["parent_id"]:
        span.parent_span_id = row["parent_id"].to_bytes(8, "big")
    span.flags = SAMPLED
    span.name = row["node"] or ""
    span.kind = pb.Span.SPAN_KIND_INTERNAL
    span.start_time_unix_nano = row["start_ns"]
    span.end_time_unix_nano = row["end_ns"]
    span.attributes.extend(key_values(attributes))
    span.dropped_attributes_count = 0
    failed = row["status"] == "error"
    if failed:
        span.status.code = pb.Status.STATUS_CODE_ERROR
        span.status.message = row["error"] or ""
    if row["kind"] == "foreign":
        _restore(span, dict(row["attributes"] or ()), failed)
    return left_out


def _restore(span: Any, said: Mapping[str, str], failed: bool) -> None:
    """Give a span of other instrumentation back what stands in its attributes under ``otel.``."""
    kind = f"SPAN_KIND_{said.get('otel.kind', 'internal').upper()}"
    if kind in pb.Span.SpanKind.keys():  # noqa: SIM118 - a wrapper of protobuf, not a mapping
        span.kind = pb.Span.SpanKind.Value(kind)
    span.trace_state = said.get("otel.trace_state", "")
    if failed:
        span.status.message = said.get("otel.status_description", "")
    for item in json.loads(said.get("otel.events", "[]")):
        event = span.events.add(name=item["name"], time_unix_nano=item["time_ns"])
        event.attributes.extend(key_values(item["attributes"]))
    for item in json.loads(said.get("otel.links", "[]")):
        link = span.links.add(
            trace_id=bytes.fromhex(item["trace_id"]), span_id=bytes.fromhex(item["span_id"])
        )
        link.attributes.extend(key_values(item["attributes"]))
