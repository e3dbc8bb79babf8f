"""OTLP files as traces: which files are some, and the tables that they become."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow

from rose_trace.interop.packages import needs_extra
from rose_trace.parquet import ProcessRows, TraceError, TraceInfo, beside, producer, write_sorted
from rose_trace.schema import SCHEMA_VERSION, SPANS

pa: Any = pyarrow  # its type stubs are incomplete
HEAD_BYTES = 4_096  # ours: enough to see how an object begins
BATCH_ROWS = 65_536  # ours
JSON = re.compile(rb'\s*(\xef\xbb\xbf)?\s*\{\s*"resource(Spans|Metrics|Logs)"')


def is_otlp(file: Path) -> bool:
    """Whether a file is OpenTelemetry's, told by its contents.

    Args:
        file: The file; one that cannot be read is none.

    Returns:
        Whether it begins like OTLP/JSON, or like its protobuf messages.
    """
    try:
        with file.open("rb") as opened:
            head = opened.read(HEAD_BYTES)
        if head.startswith(b"\x1f\x8b"):
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES)
    except (OSError, zlib.error):
        return False
    if JSON.match(head):
        return True
    # Field 1 of a message, or the length of one before it; no text begins like either.
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in {b"{", b"["}
    framed = head[:1] == b"\0" and head[4:5] == b"\n"
    return framed or (head[:1] == b"\n" and not text)


def import_otlp(file: Path, trace: Path) -> TraceInfo:
    """Write an OTLP file as a trace. The same file gives the same trace.

    Args:
        file: OTLP/JSON or protobuf, gzipped or not.
        trace: Where the spans go.

    Returns:
        What was written; its ``activity`` holds the notes of the import.

    Raises:
        TraceError: If the file cannot be read, holds no spans or spans that make no sense, or the trace
            cannot be written.
    """
    with needs_extra():
        from rose_trace.interop.otlp import read_otlp
        from rose_trace.interop.otlp_rows import otlp_spans
    messages = read_otlp(file)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    try:
        found = otlp_spans(messages, digest[:32])
        batches = _batches(found.rows)
    except (ValueError, TypeError, OverflowError, pyarrow.ArrowException) as error:
        raise TraceError(
            f"{file}: expected spans with ids and times as OpenTelemetry has them, got {error}. It is "
            "corrupt; export it again."
        ) from error
    if not found.rows:
        raise TraceError(
            f"{file}: expected OTLP traces, got no span. Export traces, not metrics or logs."
        )
    runs = set(found.runs) | {row["run"] for row in found.rows}
    counted = Counter((row["process"], row["pid"]) for row in found.rows)
    processes: list[ProcessRows] = []
    for (name, pid), count in sorted(counted.items()):
        rows = {"spans": count, "activity": 0}
        processes.append(ProcessRows(name, pid, rows, rows, 0, [], None))
    about: dict[str, Any] = {"source": "none", "rejected": {}, "notes": found.notes}
    info = TraceInfo(
        runs.pop() if len(runs) == 1 else digest[:32],
        SCHEMA_VERSION,
        {**producer(), "imported_from": f"OTLP of {', '.join(sorted(found.services))}"},
        not found.reasons,
        found.reasons,
        {"spans": len(found.rows), "activity": 0},
        processes,
        about,
    )
    try:
        for table, rows in (("activity", []), ("spans", batches)):
            write_sorted(beside(trace, table), table, rows, info)
    except (OSError, pyarrow.ArrowException) as error:
        raise TraceError(
            f"{trace}: expected to write the trace there, got {error}. Choose another place."
        ) from error
    return info


def _batches(rows: list[dict[str, Any]]) -> list[Any]:
    """Batches with schema `SPANS`. Shape: one row per span."""
    fields: list[Any] = list(SPANS)
    words = {f.name for f in fields if pa.types.is_dictionary(f.type)}
    plain = pa.schema([f.with_type(pa.string()) if f.name in words else f for f in fields])
    tables = [
        pa.Table.from_pylist(rows[begin : begin + BATCH_ROWS], schema=plain).cast(SPANS)
        for begin in range(0, len(rows), BATCH_ROWS)
    ]
    return [batch for table in tables for batch in table.combine_chunks().to_batches()]
