"""Rows of the spans table from OTLP messages; what Rose exported comes back as it was.

Spans of other instrumentation become rows of kind ``foreign``, below the span that they name as parent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from opentelemetry.proto.trace.v1 import trace_pb2

from rose_trace.interop.nesting import node_name
from rose_trace.interop.otlp_attributes import PROCESS, columns_of
from rose_trace.interop.otlp_values import python_values, text_of

pb: Any = trace_pb2
Row = dict[str, Any]


@dataclass(slots=True)
class OtlpSpans:
    """The spans of a file.

    Attributes:
        rows: One per span, in order of start; columns that are not named are null.
        services: Names of the services.
        runs: Runs of Rose with the number of spans that each said it has.
        reasons: Why spans are missing; empty where none is known to be.
        notes: What a reader of the trace should know.
    """

    rows: list[Row] = field(default_factory=list[Row])
    services: set[str] = field(default_factory=set[str])
    runs: dict[str, int] = field(default_factory=dict[str, int])
    reasons: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


def otlp_spans(messages: Iterable[Any], default_run: str) -> OtlpSpans:
    """Rows of messages.

    Args:
        messages: ``TracesData`` messages.
        default_run: Run of spans that Rose did not record.

    Returns:
        The spans; one that was delivered twice stands once.

    Raises:
        ValueError: If a span has no valid ids or times, or an attribute of ours makes no sense.
    """
    found = OtlpSpans()
    seen: set[tuple[str, int]] = set()
    counts: Counter[str] = Counter()
    for data in messages:
        for resource_spans in data.resource_spans:
            process = _process(resource_spans.resource, default_run, found)
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    row = _row(span, scope_spans.scope.name, process)
                    counts["dropped"] += span.dropped_attributes_count + span.dropped_events_count
                    if (row["trace_id"], row["span_id"]) in seen:
                        counts["twice"] += 1
                        continue
                    seen.add((row["trace_id"], row["span_id"]))
                    found.rows.append(row)
    _end_unfinished(found)
    found.rows.sort(key=lambda row: (row["start_ns"], -row["end_ns"]))
    _place(found)
    _account(found, counts)
    return found


def _process(resource: Any, default_run: str, found: OtlpSpans) -> Row:
    said = python_values(resource.attributes)
    service = str(said.get("service.name") or "unknown_service")
    found.services.add(service)
    pid = said.get("process.pid")
    run = said.get("rose.run")
    if isinstance(run, str):
        if isinstance(said.get("rose.spans"), int):
            found.runs[run] = max(found.runs.get(run, 0), said["rose.spans"])
        reasons: Any = said.get("rose.reasons")
        listed = cast("list[Any]", reasons) if isinstance(reasons, list) else []
        told = [str(reason) for reason in listed]
        found.reasons += [reason for reason in told if reason not in found.reasons]
    return {
        "run": run if isinstance(run, str) else default_run,
        "process": str(said.get(PROCESS) or service),
        "pid": pid if isinstance(pid, int) and 0 <= pid < 2**31 else 0,
    }


def _row(span: Any, scope: str, process: Row) -> Row:
    if len(span.trace_id) != 16 or len(span.span_id) != 8 or not any(span.span_id):
        raise ValueError(
            f"{span.name!r} with ids of {len(span.trace_id)} and {len(span.span_id)} bytes"
        )
    if len(span.parent_span_id) not in {0, 8}:
        raise ValueError(f"{span.name!r} with a parent's id of {len(span.parent_span_id)} bytes")
    start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
    if end_ns and end_ns < start_ns:
        raise ValueError(f"{span.name!r} that ends {start_ns - end_ns} ns before it starts")
    said = python_values(span.attributes)
    failed = span.status.code == pb.Status.STATUS_CODE_ERROR
    row: Row = {
        **process,
        "trace_id": span.trace_id.hex(),
        "span_id": int.from_bytes(span.span_id, "big"),
        "parent_id": int.from_bytes(span.parent_span_id, "big"),
        "start_ns": start_ns,
        "end_ns": end_ns,
        "status": "error" if failed else "ok",
    }
    if isinstance(said.get(PROCESS), str):
        row["process"] = said.pop(PROCESS)
    if "rose.kind" in said:
        row |= {"node": span.name, **columns_of(said)}
        if row["kind"] != "foreign":
            return row
    else:
        row |= _foreign(said)
    row |= {"node": span.name, "key": f"{scope}:{span.name}"}
    row["attributes"] = [*row["attributes"], *_more(span)]
    row["error"] = _error(span, said) if failed else None
    return row


def _foreign(said: dict[str, Any]) -> Row:
    """Columns of a span that knows nothing of Rose; its path follows from its parent."""
    thread = said.pop("thread.id") if isinstance(said.get("thread.id"), int) else None
    return {
        "kind": "foreign",
        "thread": thread,
        "iteration": [],
        "group": -1,
        "groups": 1,
        "inputs": [],
        "outputs": [],
        "states": [],
        "attributes": [(key, text_of(value)) for key, value in said.items()],
    }


def _more(span: Any) -> list[tuple[str, str]]:
    """What else a span says, as attributes with the reserved prefix."""
    kind = pb.Span.SpanKind.Name(span.kind) if span.kind in pb.Span.SpanKind.values() else ""
    found = [("otel.kind", kind.removeprefix("SPAN_KIND_").lower() or str(span.kind))]
    if span.status.message:
        found.append(("otel.status_description", span.status.message))
    if span.trace_state:
        found.append(("otel.trace_state", span.trace_state))
    events = [
        {"name": e.name, "time_ns": e.time_unix_nano, "attributes": python_values(e.attributes)}
        for e in span.events
    ]
    links = [
        {
            "trace_id": link.trace_id.hex(),
            "span_id": link.span_id.hex(),
            "attributes": python_values(link.attributes),
        }
        for link in span.links
    ]
    if events:
        found.append(("otel.events", text_of(events)))
    if links:
        found.append(("otel.links", text_of(links)))
    return found


def _error(span: Any, said: dict[str, Any]) -> str:
    """Type of the exception that a span recorded last; ``error`` where it recorded none."""
    for event in reversed(span.events):
        attributes = python_values(event.attributes)
        if "exception.type" in attributes:
            return str(attributes["exception.type"])
    return str(said.get("error.type", "error"))


def _end_unfinished(found: OtlpSpans) -> None:
    """Spans without an end last to the last moment in the file."""
    open_rows = [row for row in found.rows if row["end_ns"] == 0 and row["start_ns"] > 0]
    last_ns = max((max(row["start_ns"], row["end_ns"]) for row in found.rows), default=0)
    for row in open_rows:
        row["end_ns"] = last_ns
        row["attributes"] = [*row.get("attributes", ()), ("unfinished", "true")]
    if open_rows:
        found.notes.append(f"{len(open_rows)} spans without an end last to the end of the file")


def _place(found: OtlpSpans) -> None:
    """Paths and ordinals of rows that have none yet.

    Raises:
        ValueError: If a span is its own ancestor.
    """
    by_id = {(row["trace_id"], row["span_id"]): row for row in found.rows}
    ordinals: dict[tuple[str, int, str], int] = defaultdict(int)
    lost = 0
    for row in found.rows:
        lost += row["parent_id"] != 0 and (row["trace_id"], row["parent_id"]) not in by_id
        chain: list[Row] = []
        outer: Row | None = row
        while outer is not None and "path" not in outer:
            if len(chain) > len(found.rows):
                raise ValueError(f"{row['node']!r} that is its own ancestor")
            chain.append(outer)
            outer = by_id.get((outer["trace_id"], outer["parent_id"]))
        path = outer["path"] if outer is not None else ""
        for item in reversed(chain):
            name = node_name(item["node"])
            path = item["path"] = f"{path}/{name}" if path else name
        if "ordinal" not in row:
            key = (row["trace_id"], row["parent_id"], row["node"])
            row["ordinal"] = ordinals[key]
            ordinals[key] += 1
    if lost:
        found.notes.append(f"{lost} spans name a parent that is not in the file")


def _account(found: OtlpSpans, counts: Counter[str]) -> None:
    if counts["twice"]:
        found.notes.append(f"{counts['twice']} spans were delivered more than once")
    if counts["dropped"]:
        found.notes.append(
            f"{counts['dropped']} attributes or events were dropped by whoever wrote the file"
        )
    left_out = sum(dict(row["attributes"]).get("left_out") is not None for row in found.rows)
    if left_out:
        found.notes.append(
            f"{left_out} invocations had more data references than fit into an attribute"
        )
    have = Counter(row["run"] for row in found.rows)
    for run, expected in found.runs.items():
        if have[run] < expected:
            found.reasons.append(f"{have[run]} of {expected} spans of run {run} are in the file")
