"""Rows of a trace file in order, a few thousand at a time: memory does not grow with the trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from rose_trace.parquet import TraceError, beside, read_metadata
from rose_trace.schema import TABLES

pa: Any = pyarrow  # its type stubs are incomplete
pc: Any = pyarrow.compute
pq: Any = pyarrow.parquet

BATCH_ROWS = 8_192  # ours
Row = dict[str, Any]


def batches(
    trace: Path, table: str, columns: Sequence[str] | None = None
) -> Iterator[pyarrow.RecordBatch]:
    """Batches of one table of a trace, in the order of the file.

    Args:
        trace: The spans file; the others lie beside it.
        table: ``spans`` or ``activity``.
        columns: Columns to read; all by default.

    Yields:
        Batches with those columns. Shape: up to `BATCH_ROWS` rows each.

    Raises:
        TraceError: If the file cannot be read as that table.
    """
    where = beside(trace, table)
    read_metadata(where)
    try:
        file = pq.ParquetFile(where)
        missing = sorted(set(TABLES[table].names) - set(file.schema_arrow.names))
        if missing:
            raise TraceError(
                f"{where}: expected the columns of a {table} table, got no {', '.join(missing)}. Pass the "
                "file that rose-trace wrote."
            )
        yield from file.iter_batches(BATCH_ROWS, columns=list(columns) if columns else None)
    except (OSError, pa.ArrowException) as error:
        raise TraceError(
            f"{where}: expected a readable {table} table, got {' '.join(str(error).split())}. Record it again."
        ) from error


def brief_rows(trace: Path) -> Iterator[Row]:
    """Rows of the spans without their data references, which viewers of timelines do not show.

    Args:
        trace: The spans file.

    Yields:
        Rows in order of start. ``inputs`` and ``outputs`` hold the number of references, ``device``
        the first CUDA device among the results; ``None`` where there is none.

    Raises:
        TraceError: If the file cannot be read as spans.
    """
    for batch in batches(trace, "spans"):
        table: Any = pa.Table.from_batches([batch])
        devices = _devices(table)
        for name in ("inputs", "outputs"):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, pc.list_value_length(table.column(name)))
        rows: list[Row] = table.to_pylist()
        for row, device in zip(rows, devices, strict=True):
            row["device"] = device
            yield row


def _devices(table: Any) -> list[str | None]:
    found: list[str | None] = [None] * table.num_rows
    if table.column("device_end_ns").null_count == table.num_rows:
        return found
    outputs = table.column("outputs").combine_chunks()
    owners = pc.list_parent_indices(outputs).to_pylist()
    devices = pc.struct_field(pc.list_flatten(outputs), "device").to_pylist()
    for owner, device in zip(owners, devices, strict=True):
        if found[owner] is None and device is not None and device.startswith("cuda"):
            found[owner] = device
    return found
