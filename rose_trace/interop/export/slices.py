"""Slices: what a row looks like on a timeline, on its thread and on its CUDA stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose_trace.interop.export.rows import Row, brief_rows

TEXT_LIMIT = 4_096  # ours: characters of an argument; no viewer shows more
SIMPLE = ("worker", "ordinal", "count", "cpu_ns", "wait_ns", "threads", "error", "key")
"""Columns that become arguments of the same name where they hold something."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of one track.

    Attributes:
        row: The row that it shows.
        start_ns: Its start [Unix ns].
        end_ns: Its end [Unix ns].
        device: CUDA device of the track; ``None`` on a thread.
    """

    row: Row
    start_ns: int
    end_ns: int
    device: str | None = None

    @property
    def category(self) -> str:
        """Kind of the row; ``device`` for what an invocation of the program left on a device."""
        kind = self.row["kind"] or "exec"
        return kind if self.device is None or kind == "kernel" else "device"


def read_slices(trace: Path) -> Iterator[Slice]:
    """Slices of all rows of a trace.

    Args:
        trace: The spans file.

    Yields:
        Slices in order of start. Those that start together come in the order of the calls: a call
        before what it calls, and what ended at once before what came after it.
    """
    together: list[Slice] = []
    for item in _slices(trace):
        if together and item.start_ns != together[0].start_ns:
            yield from _in_order(together)
            together.clear()
        together.append(item)
    yield from _in_order(together)


def _in_order(together: list[Slice]) -> list[Slice]:
    if len(together) < 2:
        return together
    on_threads = [item for item in together if item.device is None]
    calls = {item.row["span_id"]: item for item in on_threads}

    def place(item: Slice) -> list[tuple[int, int, int]]:
        chain: list[tuple[int, int, int]] = []
        around: Slice | None = item
        while around is not None and len(chain) <= len(calls):
            row = around.row
            chain.append((around.end_ns, -(row["path"] or "").count("/"), row["span_id"]))
            around = calls.get(row["parent_id"])
        return chain[::-1]

    on_devices = [item for item in together if item.device is not None]
    on_devices.sort(key=lambda item: (-item.end_ns, (item.row["path"] or "").count("/")))
    return [*sorted(on_threads, key=place), *on_devices]


def _slices(trace: Path) -> Iterator[Slice]:
    for row in brief_rows(trace):
        if row["kind"] != "kernel":
            yield Slice(row, row["start_ns"], max(row["end_ns"], row["start_ns"]))
        device_end = row["device_end_ns"]
        if device_end is not None:
            said: dict[str, str] = dict(row["attributes"] or ())
            device: str = said.get("device") or row["device"] or "cuda"
            yield Slice(row, row["start_ns"], max(device_end, row["start_ns"]), device)


def arguments(row: Row) -> dict[str, str | int]:
    """What a viewer shows about a slice, by name.

    Args:
        row: A row of `brief_rows`.

    Returns:
        Arguments in the order to show them; text is cut off at `TEXT_LIMIT` characters.
    """
    found: dict[str, str | int] = {
        "node": row["node"] or "",
        "path": row["path"] or "",
        "status": row["status"] or "ok",
        "span_id": f"{row['span_id']:016x}",
    }
    if row["parent_id"]:
        found["parent_id"] = f"{row['parent_id']:016x}"
    if row["iteration"]:
        found["iteration"] = json.dumps(row["iteration"])
    if row["group"] is not None and row["group"] >= 0:
        found["group"] = f"{row['group']} of {row['groups']}"
    if row["row_start"] is not None:
        found["rows"] = f"{row['row_start']}:{row['row_stop']}"
    if row["inputs"] or row["outputs"]:
        found["input_refs"] = row["inputs"] or 0
        found["output_refs"] = row["outputs"] or 0
    if row["states"]:
        states = (f"{s['access']} {s['state']} v{s['version']}" for s in row["states"])
        found["states"] = "; ".join(states)
    for name in SIMPLE:
        value: Any = row[name]
        if value is not None and value != "":
            found[name] = value
    for name, value in row["attributes"] or ():
        found[f"attribute.{name}"] = value or ""
    return {k: v[:TEXT_LIMIT] if isinstance(v, str) else v for k, v in found.items()}
