"""`export_trace`: a trace as a file of another tool."""

from __future__ import annotations

import contextlib
import enum
import gzip
import json
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from rose_trace.interop.export.chrome import ChromeWriter
from rose_trace.interop.export.counters import Counters
from rose_trace.interop.export.flows import Flows
from rose_trace.interop.export.rows import batches
from rose_trace.interop.export.slices import read_slices
from rose_trace.interop.export.tracks import Tracks
from rose_trace.interop.packages import needs_extra
from rose_trace.parquet import TraceError, TraceInfo, beside, read_metadata


class ExportFormat(enum.StrEnum):
    """What a trace can be exported as."""

    PERFETTO = "perfetto"
    CHROME = "chrome"
    OTLP_JSON = "otlp-json"
    OTLP_PROTO = "otlp-proto"


SUFFIXES = {
    ".pftrace": ExportFormat.PERFETTO,
    ".perfetto-trace": ExportFormat.PERFETTO,
    ".otlp.json": ExportFormat.OTLP_JSON,
    ".json": ExportFormat.CHROME,
    ".pb": ExportFormat.OTLP_PROTO,
}
"""Format by the end of a file's name, the first that fits; ``.gz`` may follow any."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        format: As what.
        spans: Spans of the trace.
        slices: Stretches on timelines: spans, and what they left on devices; 0 in OTLP.
        samples: Samples of activity; 0 in OTLP.
        flows: Pairs of producer and consumer; 0 in OTLP.
        left_out: Data references and states that did not fit into an attribute; 0 outside OTLP.
        info: What the trace says about itself.
    """

    format: ExportFormat
    spans: int
    slices: int
    samples: int
    flows: int
    left_out: int
    info: TraceInfo


def format_of(path: Path) -> ExportFormat:
    """The format that a file's name asks for.

    Args:
        path: The file.

    Returns:
        The format.

    Raises:
        TraceError: If the name asks for none.

    >>> format_of(Path("a.json.gz")).value
    'chrome'
    """
    name = path.name.lower().removesuffix(".gz")
    for suffix, found in SUFFIXES.items():
        if name.endswith(suffix):
            return found
    raise TraceError(
        f"{path}: expected a name that ends in {', '.join(SUFFIXES)}, got {path.suffix or 'none of them'}. "
        "Rename it, or name a format."
    )


def export_trace(
    trace: str | Path, path: str | Path, format: ExportFormat | None = None
) -> Exported:
    """Write a trace as a file of another tool, gzipped where its name ends in ``.gz``.

    An incomplete trace is exported too, and the file says that it is.

    Args:
        trace: The spans file.
        path: Where to write.
        format: As what; by default what the name of `path` asks for.

    Returns:
        What was written.

    Raises:
        TraceError: If the trace cannot be read, the file cannot be written, or a package that the
            format needs is not installed.
    """
    trace, path = Path(trace), Path(path)
    format = format or format_of(path)
    info = read_metadata(trace)
    if path.resolve() in {
        beside(trace, table).resolve() for table in ("spans", "activity", "probes")
    }:
        raise TraceError(
            f"{path}: expected a file beside the trace, got the trace. Choose another name."
        )
    with _written(path) as file:
        if format in {ExportFormat.OTLP_JSON, ExportFormat.OTLP_PROTO}:
            return _export_otlp(trace, file, format, info)
        return _export_timeline(trace, file, format, info)


@contextlib.contextmanager
def _written(path: Path) -> Generator[IO[bytes]]:
    """A file that appears under its name once it is whole.

    Raises:
        TraceError: If it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.new")
    try:
        with contextlib.ExitStack() as stack:
            raw: IO[bytes] = stack.enter_context(unfinished.open("wb"))
            if path.name.lower().endswith(".gz"):
                packed = gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0)
                raw = cast("IO[bytes]", stack.enter_context(packed))
            yield raw
        os.replace(unfinished, path)
    except OSError as error:
        raise TraceError(
            f"{path}: expected to write the export there, got {error}. Choose another place."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _export_timeline(
    trace: Path, file: IO[bytes], format: ExportFormat, info: TraceInfo
) -> Exported:
    first_ns = _first_ns(trace)
    flows, counters, facts = Flows(trace), Counters(trace), _facts(info)
    tracks = Tracks(flows)
    drawn = tracks.drawn(read_slices(trace))
    if format is ExportFormat.PERFETTO:
        with needs_extra():
            from rose_trace.interop.export.perfetto import PerfettoWriter
        writer = PerfettoWriter(file, first_ns)
        headline = "complete trace" if info.complete else "INCOMPLETE trace: rows were lost"
        writer.about(first_ns, headline, facts)
        writer.slices(drawn)
        writer.counters(counters.points())
    else:
        chrome = ChromeWriter(file, first_ns)
        chrome.slices(drawn)
        chrome.counters(counters.points())
        chrome.close(facts)
    spans = len(flows.spans)
    return Exported(format, spans, tracks.slices, counters.samples, flows.count, 0, info)


def _export_otlp(trace: Path, file: IO[bytes], format: ExportFormat, info: TraceInfo) -> Exported:
    with needs_extra():
        from rose_trace.interop.export.otlp import JsonWriter, messages, write_protobuf
    spans = left_out = 0
    writer = JsonWriter(file) if format is ExportFormat.OTLP_JSON else None
    for data, missing in messages(trace, info):
        if writer is None:
            write_protobuf(file, data)
        else:
            writer.write(data)
        spans += sum(len(s.spans) for r in data.resource_spans for s in r.scope_spans)
        left_out += missing
    if writer is not None:
        writer.close()
    return Exported(format, spans, 0, 0, 0, left_out, info)


def _first_ns(trace: Path) -> int:
    """Start of the first span or sample [Unix ns]; 0 for an empty trace."""
    found: list[int] = []
    for table in ("spans", "activity"):
        if beside(trace, table).exists():
            starts: Any = next(iter(batches(trace, table, ("start_ns",))), None)
            if starts is not None and starts.num_rows:
                found.append(starts.column(0)[0].as_py())
    return min(found, default=0)


def _facts(info: TraceInfo) -> dict[str, str]:
    """What a file says about the trace that it shows."""
    found = {"run": info.run, "complete": "yes" if info.complete else "no"}
    if info.reasons:
        found["reasons"] = "; ".join(info.reasons)
    source = str(info.activity.get("source", "none"))
    found["activity"] = f"{source}, an estimate" if info.activity.get("estimate") else source
    if "resolution_ns" in info.activity:
        found["activity_resolution_ns"] = json.dumps(info.activity["resolution_ns"])
    return found | {f"made_by_{name}": str(version) for name, version in info.producer.items()}
