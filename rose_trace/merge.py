"""Parts of a run merged to one trace: rows reconciled with what every process said it wrote.

Whatever the moment of a kill, no row is only in a file that is about to go: parts are kept until the
trace is whole under its name, then leave their name in one step, and only then are deleted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow

from rose_trace.memory import together
from rose_trace.parquet import (
    ProcessRows,
    TraceError,
    TraceInfo,
    beside,
    read_metadata,
    write_sorted,
)
from rose_trace.schema import SCHEMA_VERSION, TABLES

pa: Any = pyarrow  # its type stubs are incomplete

_STEM = re.compile(r"(?P<role>.+)-(?P<pid>\d+)-\d+")


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
    header = _read_header(parts)
    reasons: list[str] = []
    batches: dict[str, list[Any]] = {"spans": [], "activity": []}
    said = _Said()
    processes, running = _read_parts(parts, batches, reasons, said)
    owner = header["pid"]
    if owner != os.getpid() and not any(p.pid == owner for p in processes):
        reasons.append(f"process main (pid {owner}) ended without closing its trace")
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
        header.get("steps"),
        said.unfinished,
        together(said.memory),
    )
    try:
        _forget_probes(path, info.run)
        for table in ("activity", "spans"):  # where there are spans there is all of it
            write_sorted(beside(path, table), table, batches[table], info)
        if not running:
            batches.clear()
            _remove(parts)
    except (OSError, pa.ArrowException) as error:
        raise TraceError(
            f"{path}: expected to merge {parts}, got {error}. The parts are kept; "
            f"run: rose-trace recover {path}"
        ) from error
    return info


def _read_header(parts: Path) -> dict[str, Any]:
    """What the recording process wrote before anything else.

    Raises:
        TraceError: If it is not there, broken, or of another version.
    """
    try:
        header: Any = json.loads((parts / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{parts}: expected the parts of a recording, got {error}. Check the path; a finished recording has none."
        ) from error
    kinds = {"run": str, "schema_version": int, "producer": dict, "pid": int}
    told = cast("dict[str, Any]", header) if isinstance(header, dict) else {}
    broken = [key for key, kind in kinds.items() if not isinstance(told.get(key), kind)]
    if broken:
        raise TraceError(
            f"{parts}: expected run.json to say {', '.join(kinds)}, got no usable {', '.join(broken)}. It is not "
            "the directory of a recording, or is damaged; restore run.json from another copy."
        )
    if told["schema_version"] != SCHEMA_VERSION:
        raise TraceError(
            f"{parts}: expected parts of version {SCHEMA_VERSION}, got {told['schema_version']}. Recover them with "
            "the Rose that wrote them."
        )
    return told


def _forget_probes(path: Path, run: str) -> None:
    """Remove what was measured for another run's trace at this path, which is about to be replaced."""
    probes = beside(path, "probes")
    if probes.exists():
        try:
            stale = read_metadata(probes).run != run
        except TraceError:
            stale = True
        if stale:
            probes.unlink()


def _remove(parts: Path) -> None:
    """Remove merged parts: a kill in between leaves none that a recovery would take for all of them."""
    merged = parts.with_name(f".{parts.name}.merged-{os.getpid()}")
    parts.rename(merged)
    shutil.rmtree(merged, ignore_errors=True)


@dataclass(slots=True)
class _Said:
    """What processes have said at their ends, beside their rows.

    Attributes:
        unfinished: What was open then, by node path.
        memory: Memory of each.
    """

    unfinished: dict[str, int] = field(default_factory=dict[str, int])
    memory: list[Mapping[str, int]] = field(default_factory=list[Mapping[str, int]])


def _read_parts(
    parts: Path, batches: dict[str, list[Any]], reasons: list[str], said: _Said
) -> tuple[list[ProcessRows], bool]:
    """Read every stream.

    Returns:
        What each process contributed, and whether one is still writing.
    """
    processes: list[ProcessRows] = []
    running = False
    found = {file.name.rsplit(".", 2)[0] for file in parts.glob("*.arrow")}
    manifests = {file.stem for file in parts.glob("*.json")} - found - {"run"}
    for stem in (*sorted(found), *sorted(manifests)):
        named = _STEM.fullmatch(stem)
        if named is None:
            reasons.append(f"{stem} in {parts.name} is of other origin")
            continue
        rows, cut = _read_streams(parts, stem, batches)
        item = _read_manifest(parts / f"{stem}.json", rows, said)
        if item is None:
            role, pid = named["role"], int(named["pid"])
            item = ProcessRows(role, pid, rows, None, 0, [], None)
            alive = pid != os.getpid() and _alive(pid)
            running |= alive
            reasons.append(
                f"process {role} (pid {pid}) {'is still running' if alive else 'ended without closing its trace'}"
                + (", its last batch is cut off" if cut else "")
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


def _read_streams(
    parts: Path, stem: str, batches: dict[str, list[Any]]
) -> tuple[dict[str, int], bool]:
    """Read the streams of one process; returns its rows per table, and whether a stream is cut off."""
    rows = dict.fromkeys(batches, 0)
    cut = False
    for table, found in batches.items():
        stream = parts / f"{stem}.{table}.arrow"
        if stream.exists():
            for batch in _read_stream(stream, TABLES[table]):
                if batch is None:
                    cut = True
                    break
                rows[table] += batch.num_rows
                found.append(batch)
    return rows, cut


def _read_manifest(file: Path, rows: dict[str, int], said: _Said) -> ProcessRows | None:
    """What a process said at its end; ``None`` where it did not get to, or what it said is damaged."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        expected = {table: int(told["rows"][table]) for table in rows}
        failure = None if told["failure"] is None else str(told["failure"])
        open_then = {str(path): int(count) for path, count in told.get("unfinished", {}).items()}
        for path, count in open_then.items():
            said.unfinished[path] = said.unfinished.get(path, 0) + count
        said.memory.append({str(k): int(v) for k, v in told.get("memory", {}).items()})
        return ProcessRows(
            str(told["process"]),
            int(told["pid"]),
            rows,
            expected,
            int(told["lost"]),
            told["clocks"],
            failure,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _alive(pid: int) -> bool:
    """Whether a process can still write; one that waits to be reaped cannot."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _read_stream(stream: Path, schema: Any) -> Iterator[Any]:
    """Batches of a stream; ``None`` last where it is cut off, damaged or has other columns."""
    if not stream.stat().st_size:  # its process recorded, and had not written yet
        return
    try:
        reader = pa.ipc.open_stream(pa.memory_map(str(stream)))
        if not reader.schema.equals(schema):
            yield None
            return
        while True:
            batch = reader.read_next_batch()
            batch.validate(full=True)
            yield batch
    except StopIteration:
        return
    except (OSError, pa.ArrowException):
        yield None
