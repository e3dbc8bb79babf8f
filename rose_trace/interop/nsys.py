"""Nsight Systems, exported with ``nsys export --type sqlite``.

Tables and columns are created only where there is something to put in them, and differ by version: each
is looked for before it is read.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rose_trace.activity import Sample
from rose_trace.interop.profile import BLOCKING, DRAM, Kernel, Profile, ThreadRange, blocking_call
from rose_trace.parquet import TraceError

MAGIC = b"SQLite format 3\0"
RANGES = (59, 60, 70, 71)  # NvtxPushPopRange, NvtxStartEndRange and the same of nvtxt
DRAM_BUSY = re.compile(r"DRAM (?:Read|Write) Bandwidth", re.IGNORECASE)
SM_ACTIVE = re.compile(r"SMs?[ %]*Active\b", re.IGNORECASE)
VARYING = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)
"""What torch.autograd.profiler.emit_nvtx adds to the name of an operator."""


def read_nsys(file: Path) -> Profile:
    """Read ranges, kernels and samples of SM activity.

    Args:
        file: SQLite export.

    Returns:
        What it holds, in Unix time where the export tells when the capture began.

    Raises:
        TraceError: If it is truncated, corrupt or no export of Nsight Systems.
    """
    _check_length(file)
    try:
        with contextlib.closing(_Export(file)) as export:
            if not export.columns("StringIds"):
                raise TraceError(
                    f"{file}: expected an export of Nsight Systems, got a SQLite file without its table "
                    "StringIds. Pass what 'nsys export --type sqlite' wrote."
                )
            return _profile(export)
    except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:
        raise TraceError(
            f"{file}: expected a readable export of Nsight Systems, got {error}. It is truncated or "
            "corrupt; export it again."
        ) from error


def _check_length(file: Path) -> None:
    """Refuse a file shorter than its header says: SQLite notices only what it happens to read.

    Raises:
        TraceError: If it is.
    """
    with file.open("rb") as opened:
        header = opened.read(32)
    page_bytes = int.from_bytes(header[16:18], "big")
    expected_bytes = (65_536 if page_bytes == 1 else page_bytes) * int.from_bytes(
        header[28:32], "big"
    )
    found_bytes = file.stat().st_size
    if len(header) < 32 or found_bytes < expected_bytes:
        raise TraceError(
            f"{file}: expected {expected_bytes} bytes by its header, got {found_bytes}. It is truncated; "
            "export it again."
        )


class _Export:
    """An export, opened for reading; nothing is ever written beside it."""

    def __init__(self, file: Path) -> None:
        self.connection = sqlite3.connect(
            f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True
        )

    def close(self) -> None:
        self.connection.close()

    def columns(self, table: str) -> set[str]:
        """Columns of a table; none where the export lacks it."""
        return {row[1] for row in self.connection.execute(f'PRAGMA table_info("{table}")')}

    def rows(self, table: str, *wanted: str, where: str = "") -> list[tuple[Any, ...]]:
        """Rows of a table with the wanted columns, null where the export lacks one."""
        present = self.columns(table)
        if not present:
            return []
        names = ", ".join(f'"{name}"' if name in present else "NULL" for name in wanted)
        return self.connection.execute(f'SELECT {names} FROM "{table}" {where}').fetchall()


def _profile(export: _Export) -> Profile:
    about = dict(export.rows("META_DATA_EXPORT", "name", "value"))
    product = about.get("EXPORT_PRODUCT_NAME") or "Nsight Systems"
    profile = Profile(f"{product} {about.get('EXPORT_PRODUCT_VERSION') or ''}".rstrip())
    # Times in the export count from the start of the capture.
    origin_ns = next(
        (int(row[0] or 0) for row in export.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), 0
    )
    if not origin_ns:
        profile.notes.append(
            "the file does not tell when the capture began; times count from there"
        )
    words: dict[int, str] = {
        key: value
        for key, value in export.rows("StringIds", "id", "value")
        if isinstance(value, str)
    }
    for global_pid, name in export.rows("PROCESSES", "globalPid", "name"):
        if global_pid is not None and name:
            profile.processes[_pid(global_pid)] = f"{Path(name).name} {_pid(global_pid)}"
    profile.kernels = list(_kernels(export, words, origin_ns))
    profile.samples = _samples(export, origin_ns, profile.notes)
    profile.ranges = _ranges(export, words, origin_ns, profile)
    profile.ranges += _blocking(export, words, origin_ns)
    profile.sm_count = _sm_count(export)
    return profile


def _pid(serialized: int) -> int:
    return serialized >> 24 & 0xFFFFFF


def _tid(serialized: int) -> int:
    return serialized & 0xFFFFFF


def _kernels(export: _Export, words: dict[int, str], origin_ns: int) -> Iterator[Kernel]:
    launches: dict[tuple[int, int], tuple[int, int]] = {}
    for start, thread, correlation in export.rows(
        "CUPTI_ACTIVITY_KIND_RUNTIME", "start", "globalTid", "correlationId"
    ):
        if thread is not None and correlation is not None:
            launches[_pid(thread), correlation] = (_tid(thread), int(start) + origin_ns)
    sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    names = ("demangledName", "shortName", "mangledName")
    others = ("start", "end", "deviceId", "streamId", "globalPid", "correlationId")
    for row in export.rows("CUPTI_ACTIVITY_KIND_KERNEL", *others, *names, *sizes):
        start, end, device, stream, process, correlation = row[:6]
        pid = 0 if process is None else _pid(process)
        yield Kernel(
            pid,
            int(device),
            int(stream),
            int(start) + origin_ns,
            int(end) + origin_ns,
            next((words[n] for n in row[6:9] if n in words), "kernel"),
            _three(row[9:12]),
            _three(row[12:15]),
            launches.get((pid, correlation)),
        )


def _three(sizes: tuple[Any, ...]) -> tuple[int, int, int] | None:
    x, y, z = sizes
    return (int(x), int(y), int(z)) if x and y and z else None


def _ranges(
    export: _Export, words: dict[int, str], origin_ns: int, profile: Profile
) -> list[ThreadRange]:
    found: list[ThreadRange] = []
    payloads = ("uint64Value", "int64Value", "uint32Value", "int32Value")
    others = ("start", "end", "text", "textId", "globalTid")
    for row in export.rows(
        "NVTX_EVENTS",
        *others,
        *payloads,
        where=f"WHERE eventType IN {RANGES}",
    ):
        start, end, text, text_id, thread = row[:5]
        if start is None or thread is None:
            continue
        text = str(text or words.get(text_id) or "unnamed")
        begun = int(start) + origin_ns
        found.append(
            ThreadRange(
                _pid(thread),
                _tid(thread),
                begun,
                begun if end is None else int(end) + origin_ns,
                VARYING.sub("", text),
                text,
                "nvtx",
                next((value for value in row[5:] if value is not None), None),
                end is None,
            )
        )
    ends = [item.end_ns for items in (found, profile.kernels) for item in items]
    for item in found:
        if item.unfinished:
            item.end_ns = max(ends)
    if any(item.unfinished for item in found):
        profile.notes.append("ranges that the capture cut off end with the last event in the file")
    return found


def _blocking(export: _Export, words: dict[int, str], origin_ns: int) -> Iterator[ThreadRange]:
    """CUDA calls in which the host waited for the device."""
    calls = [key for key, name in words.items() if blocking_call(name, sys.maxsize)]
    for start, end, thread, name in export.rows(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "start",
        "end",
        "globalTid",
        "nameId",
        where=f"WHERE nameId IN ({', '.join(map(str, calls))})",
    ):
        call = blocking_call(words[name], int(end) - int(start)) if thread and end else None
        if call is not None:
            begun, ended = int(start) + origin_ns, int(end) + origin_ns
            yield ThreadRange(_pid(thread), _tid(thread), begun, ended, call, call, BLOCKING)


def _samples(export: _Export, origin_ns: int, notes: list[str]) -> list[Sample]:
    """SM activity, then use of the memory's bandwidth; each tells about the time since the one before."""
    metrics = list(export.rows("TARGET_INFO_GPU_METRICS", "typeId", "metricId", "metricName"))
    active = {(kind, metric) for kind, metric, name in metrics if SM_ACTIVE.match(name or "")}
    if not active:
        if metrics:
            notes.append("the GPU metrics in the file do not hold SM activity")
        return []
    busy = {(kind, metric) for kind, metric, name in metrics if DRAM_BUSY.match(name or "")}
    return _levels(export, origin_ns, active, "pm-sampling") + _levels(
        export, origin_ns, busy, DRAM
    )


def _levels(
    export: _Export, origin_ns: int, chosen: set[tuple[int, int]], source: str
) -> list[Sample]:
    """Samples of some metrics, summed where several are of one moment (reads and writes)."""
    if not chosen:
        return []
    cuda_ids = dict(export.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId"))
    clock = "timestamp" if "timestamp" in export.columns("GPU_METRICS") else "rawTimestamp"
    # Few of many metrics: the others stay in the file.
    wanted = " OR ".join(f"typeId = {int(k)} AND metricId = {int(m)}" for k, m in sorted(chosen))
    percent: dict[int, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for moment, kind, metric, value in export.rows(
        "GPU_METRICS",
        clock,
        "typeId",
        "metricId",
        "value",
        where=f"WHERE {wanted} ORDER BY {clock}",
    ):
        if value is not None:
            percent[kind & 0xFF][int(moment)][metric] = value
    samples: list[Sample] = []
    for gpu, values in percent.items():
        device = f"cuda:{cuda_ids.get(gpu, gpu)}"
        for begin, (end, value) in zip(values, list(values.items())[1:], strict=False):
            level = min(max(sum(value.values()) / 100, 0.0), 1.0)
            samples.append((source, device, begin + origin_ns, end + origin_ns, level, False))
    return samples


def _sm_count(export: _Export) -> dict[int, int]:
    found: dict[int, int] = {}
    for table, device, count in (
        ("TARGET_INFO_GPU", "id", "smCount"),
        ("TARGET_INFO_CUDA_DEVICE", "cudaId", "numMultiprocessors"),
    ):
        rows = export.rows(table, device, count)
        found |= {int(key): int(sms) for key, sms in rows if sms is not None and int(sms) > 0}
    return found
