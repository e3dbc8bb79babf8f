"""Kineto (torch.profiler) and other JSON in Chrome's trace event format, gzipped or not.

Does not handle: files larger than memory; asynchronous events, flows, counters.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from rose_trace.interop.nesting import STEP
from rose_trace.interop.profile import BLOCKING, Kernel, Profile, ThreadRange, blocking_call
from rose_trace.parquet import TraceError

LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver"})
NOT_RANGES = LAUNCHES | {
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "memcpy",
    "memset",
    "gpu_user_annotation",
    "cuda_sync",
    "overhead",
    "trace",
    "python_function",
}
"""Categories, in lower case, that are no ranges of the program on a thread."""

UNIX_SINCE_NS = 10**18  # 2001: smaller times are those of a clock that does not start in 1970


def read_kineto(file: Path) -> Profile:
    """Read ranges and kernels.

    Args:
        file: JSON, gzipped or not.

    Returns:
        What it holds.

    Raises:
        TraceError: If it is truncated, corrupt or no trace.
    """
    data = _load(file)
    events = cast("dict[str, Any]", data).get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise TraceError(
            f"{file}: expected 'traceEvents', got other JSON. Pass what torch.profiler or another writer "
            "of Chrome traces exported."
        )
    about: dict[str, Any] = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    try:
        return _profile(about, [e for e in cast("list[Any]", events) if isinstance(e, dict)])
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise TraceError(
            f"{file}: expected events with times, durations and threads, got one without ({error!r}). "
            "Export it again."
        ) from error


def _load(file: Path) -> object:
    try:
        raw = file.read_bytes()
        if raw.startswith(b"\x1f\x8b"):
            raw = gzip.decompress(raw)
        # Times are microseconds with decimals: binary fractions would lose nanoseconds.
        return json.loads(raw, parse_float=str)
    except (EOFError, OSError, zlib.error) as error:
        raise TraceError(
            f"{file}: expected a readable gzip file, got {error}. It is truncated or corrupt; export it again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{file}: expected JSON, got {error}. It is truncated or corrupt; export it again."
        ) from error
    except MemoryError as error:
        raise TraceError(
            f"{file}: expected a file that fits in memory, got a larger one. Profile fewer steps."
        ) from error


def _profile(about: Mapping[str, Any], events: list[dict[str, Any]]) -> Profile:
    kineto = "deviceProperties" in about or "schemaVersion" in about
    profile = Profile("Kineto" if kineto else "Chrome trace", slack_ns=1_000)
    base_ns = int(about.get("baseTimeNanoseconds") or 0)
    devices: list[dict[str, Any]] = about.get("deviceProperties") or []
    for properties in devices:
        if int(properties.get("numSms") or 0) > 0:
            profile.sm_count[int(properties["id"])] = int(properties["numSms"])
    launches: dict[int, tuple[int, int, int]] = {}
    found: list[dict[str, Any]] = []
    complete: list[dict[str, Any]] = []
    blocking: list[ThreadRange] = []
    for event in events:
        phase, category = event.get("ph"), str(event.get("cat", "")).lower()
        if phase == "M" and event.get("name") == "process_name" and _is_id(event.get("pid")):
            name = _args(event).get("name")
            profile.processes[int(event["pid"])] = f"{name} {event['pid']}"
        elif phase == "X" and category == "kernel":
            found.append(event)
        elif phase == "X" and category in LAUNCHES:
            correlation = _args(event).get("correlation")
            if correlation is not None:
                start = base_ns + _ns(event["ts"])
                launches[int(correlation)] = (int(event["pid"]), int(event["tid"]), start)
            blocking += _blocking(event, base_ns)
        elif phase in ("X", "B", "E") and category not in NOT_RANGES:
            complete.append(event)
    profile.ranges = _ranges(complete, base_ns, profile.notes)
    host = Counter(item.pid for item in profile.ranges).most_common(1)
    profile.kernels = [
        _kernel(event, base_ns, launches, host[0][0] if host else 0) for event in found
    ]
    profile.ranges += blocking
    _derive_sm_count(found, profile)
    if 0 < profile.bounds_ns[0] < UNIX_SINCE_NS:
        profile.notes.append("times are those of the profiler's clock, not Unix time")
    return profile


def _args(event: Mapping[str, Any]) -> dict[str, Any]:
    return event.get("args") or {}


def _is_id(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.isdigit())


def _ns(microseconds: Any) -> int:
    if isinstance(microseconds, int):
        return microseconds * 1_000
    return int((Decimal(microseconds) * 1_000).to_integral_value())


def _blocking(event: Mapping[str, Any], base_ns: int) -> Iterator[ThreadRange]:
    """A CUDA call in which the host waited for the device."""
    duration_ns = _ns(event.get("dur", 0))
    call = blocking_call(str(event.get("name", "")), duration_ns)
    if call is not None and _is_id(event.get("pid")) and _is_id(event.get("tid")):
        start = base_ns + _ns(event["ts"])
        pid, tid = int(event["pid"]), int(event["tid"])
        yield ThreadRange(pid, tid, start, start + duration_ns, call, call, BLOCKING)


def _ranges(events: Iterable[dict[str, Any]], base_ns: int, notes: list[str]) -> list[ThreadRange]:
    """Complete events as they are, and pairs of begin and end events of one thread."""
    ranges: list[ThreadRange] = []
    begun: dict[tuple[int, int], list[ThreadRange]] = defaultdict(list)
    for event in events:
        if not (_is_id(event.get("pid")) and _is_id(event.get("tid"))):
            continue  # rows that the viewer shows, not threads
        pid, tid = int(event["pid"]), int(event["tid"])
        start = base_ns + _ns(event["ts"])
        if event["ph"] == "E":
            if begun[pid, tid]:
                item = begun[pid, tid].pop()
                item.end_ns, item.unfinished = start, False
            continue
        end = start + _ns(event.get("dur", 0)) if event["ph"] == "X" else start
        text = str(event.get("name", "")) or "unnamed"
        name = STEP if text.startswith(f"{STEP}#") else text
        category = str(event.get("cat", "")) or "chrome"
        item = ThreadRange(pid, tid, start, end, name, text, category)
        ranges.append(item)
        if event["ph"] == "B":
            item.unfinished = True
            begun[pid, tid].append(item)
    last_ns = max((item.end_ns for item in ranges), default=0)
    cut = [item for open_ranges in begun.values() for item in open_ranges]
    for item in cut:
        item.end_ns = last_ns
    if cut:
        notes.append(f"{len(cut)} ranges without an end last to the end of the file")
    return ranges


def _kernel(
    event: dict[str, Any], base_ns: int, launches: Mapping[int, tuple[int, int, int]], host: int
) -> Kernel:
    args = _args(event)
    start = base_ns + _ns(event["ts"])
    pid, tid, moment = launches.get(int(args.get("correlation", -1)), (host, None, 0))
    return Kernel(
        pid,
        int(args["device"] if "device" in args else event["pid"]),
        int(args["stream"] if "stream" in args else event["tid"]),
        start,
        start + _ns(event.get("dur", 0)),
        str(event.get("name", "kernel")),
        _three(args.get("grid")),
        _three(args.get("block")),
        None if tid is None else (tid, moment),
    )


def _three(sizes: Any) -> tuple[int, int, int] | None:
    if not isinstance(sizes, list) or len(cast("list[Any]", sizes)) != 3:
        return None
    x, y, z = (int(size) for size in cast("list[Any]", sizes))
    return (x, y, z) if x and y and z else None


def _derive_sm_count(events: list[dict[str, Any]], profile: Profile) -> None:
    """SMs of devices without properties: blocks of the grid over blocks per SM."""
    for event, kernel in zip(events, profile.kernels, strict=True):
        per_sm = Decimal(str(_args(event).get("blocks per SM") or 0))
        if kernel.device not in profile.sm_count and kernel.blocks and per_sm > 0:
            profile.sm_count[kernel.device] = max(round(kernel.blocks / per_sm), 1)
