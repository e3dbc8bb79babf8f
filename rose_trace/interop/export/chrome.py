"""Chrome's trace event format, JSON or gzipped JSON, for chrome://tracing and what reads it.

Times count from ``baseTimeNanoseconds``: microseconds since 1970 with decimals do not fit a double.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO, Any

from rose_trace.interop.export.counters import Gap, Point
from rose_trace.interop.export.slices import arguments
from rose_trace.interop.export.tracks import LARGEST_ID, Begin, End, Track

ACTIVITY_PID = LARGEST_ID
"""Process that stands for the devices; their counters belong to no process."""


class ChromeWriter:
    """Writes events.

    Args:
        file: Where they go.
        first_ns: Start of the trace [Unix ns].
    """

    def __init__(self, file: IO[bytes], first_ns: int) -> None:
        self._file = file
        self._first_ns = first_ns
        self._named: set[tuple[int, int | None]] = set()
        self._tids: dict[tuple[int, str], int] = {}
        self._separator = b'{"traceEvents": [\n'

    def slices(self, drawn: Iterable[Begin | End]) -> None:
        """Write slices with the names of their tracks, and flows; an event says its own end."""
        for begin in drawn:
            if isinstance(begin, End):
                continue
            item, row = begin.item, begin.item.row
            where = {"pid": begin.track.process.shown_pid, "tid": self._tid(begin.track)}
            shown = dict[str, Any](arguments(row))
            if item.device is not None:
                shown |= {"device": _number(item.device), "stream": row["stream"]}
            event = {
                "ph": "X",
                "name": row["node"] or "",
                "cat": item.category,
                **where,
                "ts": self._us(item.start_ns),
                "dur": _us(item.end_ns - item.start_ns),
                "args": shown,
            }
            self._write(event)
            self._flows(begin, where)

    def _flows(self, begin: Begin, where: dict[str, int]) -> None:
        item = begin.item
        shared = {"cat": "data", "name": "data", **where}
        last_ns = max(item.end_ns - 1, item.start_ns)  # a moment within the slice
        for phase, found, time_ns in (("s", begin.out, last_ns), ("f", begin.into, item.start_ns)):
            for flow in found:
                event = {"ph": phase, **shared, "id": f"{flow:016x}", "ts": self._us(time_ns)}
                self._write(event | ({"bp": "e"} if phase == "f" else {}))

    def counters(self, points: Iterable[Point | Gap]) -> None:
        """Write counters; gaps are slices of the process that holds the counters."""
        for point in points:
            self._name(ACTIVITY_PID, None, "activity")
            event: dict[str, Any] = {"pid": ACTIVITY_PID, "ts": self._us(point.start_ns)}
            if isinstance(point, Gap):
                name = f"{point.counter.name}: no samples"
                tid = self._tids.setdefault((ACTIVITY_PID, name), len(self._tids) + 1)
                self._name(ACTIVITY_PID, tid, name)
                length = _us(point.end_ns - point.start_ns)
                event |= {"ph": "X", "name": "no samples", "cat": "activity", "tid": tid}
                event |= {"dur": length}
            else:
                value = {"activity": point.activity}
                event |= {"ph": "C", "name": point.counter.name, "cat": "activity", "args": value}
            self._write(event)

    def close(self, facts: dict[str, str]) -> None:
        """Write the end of the file.

        Args:
            facts: What the file says about itself, by name.
        """
        rest = {
            "displayTimeUnit": "ns",
            "baseTimeNanoseconds": self._first_ns,
            "otherData": facts,
        }
        if self._separator != b",\n":  # nothing was written
            self._file.write(self._separator)
        self._file.write(b"\n],\n" + json.dumps(rest, indent=1)[2:].encode() + b"\n")

    def _tid(self, track: Track) -> int:
        """Thread id of a track; streams and further lanes get one that no thread has."""
        pid = track.process.shown_pid
        tid = LARGEST_ID - track.number if track.tid is None else track.tid
        self._name(pid, None, track.process.shown_name)
        self._name(pid, tid, track.name)
        return tid

    def _name(self, pid: int, tid: int | None, name: str) -> None:
        if (pid, tid) in self._named:
            return
        self._named.add((pid, tid))
        what = "process" if tid is None else "thread"
        event: dict[str, Any] = {"ph": "M", "name": f"{what}_name", "pid": pid}
        event |= {} if tid is None else {"tid": tid}
        self._write({**event, "args": {"name": name}})
        sort = {"sort_index": len(self._named)}
        self._write({**event, "name": f"{what}_sort_index", "args": sort})

    def _us(self, time_ns: int) -> Any:
        return _us(time_ns - self._first_ns)

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(self._separator + json.dumps(event, separators=(",", ":")).encode())
        self._separator = b",\n"


def _us(duration_ns: int) -> float:
    """Microseconds, whose decimals are nanoseconds (exact for more than three months).

    >>> _us(1_234_567)
    1234.567
    """
    return duration_ns / 1_000


def _number(device: str) -> int | str:
    """Number of a CUDA device, as other writers of the format put it; any other device by name."""
    number = device.removeprefix("cuda:")
    return int(number) if number.isdigit() else device
