"""Parts of a run merged to one trace: rows reconciled with what every process said it wrote."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow

from rose_trace.parquet import ProcessRows, TraceError, TraceInfo, beside, write_sorted

pa: Any = pyarrow  # its type stubs are incomplete


def merge(parts: Path, path: Path) -> TraceInfo:
    """Merge the parts of a run, of a killed one too, and remove them.

    Args:
        parts: Parts directory.
        path: Where the spans go; activity goes beside.

    Returns:
        What was written.

    Raises:
        TraceError: If there are no readable parts, or the result cannot be written.
    """
    try:
        header = json.loads((parts / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{parts}: expected the parts of a recording, got {error}. Check the path; a finished recording has none."
        ) from error
    reasons: list[str] = []
    batches: dict[str, list[Any]] = {"spans": [], "activity": []}
    processes, running = _read_parts(parts, batches, reasons)
    rows = {table: sum(batch.num_rows for batch in found) for table, found in batches.items()}
    info = TraceInfo(
        header["run"],
        header["schema_version"],
        header["producer"],
        not reasons,
        reasons,
        rows,
        processes,
        header.get("activity", {}),
    )
    try:
        for table, found in batches.items():
            write_sorted(beside(path, table), table, found, info)
        if not running:
            batches.clear()
            shutil.rmtree(parts)
    except (OSError, pa.ArrowException) as error:
        raise TraceError(
            f"{path}: expected to merge {parts}, got {error}. The parts are kept; "
            f"run: rose-trace recover {path}"
        ) from error
    return info


def _read_parts(
    parts: Path, batches: dict[str, list[Any]], reasons: list[str]
) -> tuple[list[ProcessRows], bool]:
    """Read every stream; returns what each process contributed and whether one is still writing."""
    processes: list[ProcessRows] = []
    running = False
    stems = sorted({file.name.rsplit(".", 2)[0] for file in parts.glob("*.arrow")})
    stems += sorted({file.stem for file in parts.glob("*.json")} - set(stems) - {"run"})
    for stem in stems:
        rows: dict[str, int] = {}
        truncated = False
        for table, found in batches.items():
            stream = parts / f"{stem}.{table}.arrow"
            rows[table] = 0
            if stream.exists():
                for batch in _read_stream(stream):
                    if batch is None:
                        truncated = True
                        break
                    rows[table] += batch.num_rows
                    found.append(batch)
        role, pid, _ = stem.rsplit("-", 2)
        try:
            manifest: dict[str, Any] = json.loads(
                (parts / f"{stem}.json").read_text(encoding="utf-8")
            )
        except (OSError, ValueError):
            manifest = {
                "process": role,
                "pid": int(pid),
                "rows": None,
                "lost": 0,
                "clocks": [],
                "failure": None,
            }
            alive = Path(f"/proc/{pid}").exists() and int(pid) != os.getpid()
            running |= alive
            reasons.append(
                f"process {role} (pid {pid}) {'is still running' if alive else 'ended without closing its trace'}"
                + (", its last batch is cut off" if truncated else "")
            )
        item = ProcessRows(
            manifest["process"],
            manifest["pid"],
            rows,
            manifest["rows"],
            manifest["lost"],
            manifest["clocks"],
            manifest["failure"],
        )
        processes.append(item)
        where = f"process {item.process} (pid {item.pid})"
        if item.expected is not None and item.expected != rows:
            reasons.append(f"{where} wrote {item.expected} rows, {rows} can be read")
        if item.lost:
            reasons.append(f"{where} lost {item.lost} rows")
        if item.failure:
            reasons.append(f"{where} stopped recording: {item.failure}")
    return processes, running


def _read_stream(stream: Path) -> Iterator[Any]:
    """Batches of a stream; ``None`` last where it is cut off."""
    try:
        reader = pa.ipc.open_stream(pa.memory_map(str(stream)))
        while True:
            yield reader.read_next_batch()
    except StopIteration:
        return
    except (OSError, pa.ArrowException):
        yield None
