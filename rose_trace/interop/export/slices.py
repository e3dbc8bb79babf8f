"""Slices: what a row looks like on a timeline, on its thread and on its CUDA stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose_trace.interop.export.rows import Row, brief_rows, in_order

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

    Returns:
        Slices in order of start; of those that start together the outer ones first.
    """

    def order(item: Slice) -> tuple[int, int, int]:
        # A loop without a moment of its own still comes before what it calls.
        row = item.row
        return -item.end_ns, (row["path"] or "").count("/"), len(row["iteration"] or ())

    return in_order(_slices(trace), lambda item: item.start_ns, order)


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
