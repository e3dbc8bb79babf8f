"""The trace file: the one way to write its tables and to read them back.

Paper: none; the file is the contract between the packages.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from rose_trace.schema import SCHEMA_VERSION, TABLES

pa: Any = pyarrow  # its type stubs are incomplete
pq: Any = pyarrow.parquet

METADATA_KEY = b"rose"
ROW_GROUP = 65_536  # ours


class TraceError(Exception):
    """A trace cannot be written or read; the message names the file and the next action."""


@dataclass(frozen=True, slots=True)
class ProcessRows:
    """What one process contributed.

    Attributes:
        process: Role of the process.
        pid: Its process id.
        rows: Rows in the file, per table.
        expected: Rows it said it wrote, per table; ``None`` where it never got to say.
        lost: Rows it could not write.
        clocks: Pairs of Unix and monotonic time at its start and end [ns].
        failure: What stopped its recording early; ``None`` for a clean end.
    """

    process: str
    pid: int
    rows: dict[str, int]
    expected: dict[str, int] | None
    lost: int
    clocks: list[list[int]]
    failure: str | None


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """What a trace file says about itself.

    Attributes:
        run: Id of the run.
        schema_version: Version of the tables.
        producer: Versions of what wrote it.
        complete: Whether every invocation that ended while it was recorded is in the file.
        reasons: Why it is not complete; empty otherwise.
        rows: Rows per table.
        processes: One entry per process.
        activity: Source of activity and why better ones were not used.
        steps: Iterations at each end of inner loops that were recorded in full; ``None`` for all.
        unfinished: Invocations that had not ended when the recording did and have no row, by node path.
        memory: What the machine has and the processes took at most, as far as they said so [bytes].
    """

    run: str
    schema_version: int
    producer: dict[str, str]
    complete: bool
    reasons: list[str]
    rows: dict[str, int]
    processes: list[ProcessRows]
    activity: dict[str, Any]
    steps: int | None = None
    unfinished: dict[str, int] = field(default_factory=dict[str, int])
    memory: dict[str, int] = field(default_factory=dict[str, int])

    def to_json(self) -> str:
        """JSON, as kept in the file's metadata."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> TraceInfo:
        """Inverse of `to_json`."""
        data = json.loads(text)
        data["processes"] = [ProcessRows(**item) for item in data["processes"]]
        return TraceInfo(**data)


def beside(path: Path, table: str) -> Path:
    """Where a table lives: ``trace.parquet`` for spans, ``trace.activity.parquet`` for activity."""
    return (
        path
        if table == "spans"
        else path.with_name(f"{path.stem}.{table}{path.suffix or '.parquet'}")
    )


def parts_of(path: Path) -> Path:
    """The directory that holds the parts of `path` while it is recorded."""
    return path.with_name(f"{path.name}.parts")


def producer() -> dict[str, str]:
    """Versions of what is writing."""
    try:
        version = importlib.metadata.version("rose-rl")
    except importlib.metadata.PackageNotFoundError:
        version = "uninstalled"
    found = {"rose": version, "python": platform.python_version(), "platform": platform.platform()}
    torch = sys.modules.get("torch")
    return found if torch is None else {**found, "torch": str(torch.__version__)}


def read_metadata(path: str | Path, table: str | None = None) -> TraceInfo:
    """What a trace file says about itself.

    Args:
        path: The spans file, or a table beside it.
        table: Which table it must be: ``spans``, ``activity`` or ``probes``; by default any.

    Returns:
        Its metadata.

    Raises:
        TraceError: If the file is missing, truncated, foreign, of another version or another table.
    """
    file, info = _open(Path(path))
    _check_columns(Path(path), file.schema_arrow, (table,) if table else tuple(TABLES))
    return info


def read_spans(path: str | Path) -> pyarrow.Table:
    """All spans of a trace.

    Args:
        path: The spans file.

    Returns:
        Table with schema `SPANS`, sorted by start. Shape: one row per invocation.

    Raises:
        TraceError: If the file cannot be read as a trace.
    """
    return read_table("spans", path)


def read_table(table: str, path: str | Path) -> pyarrow.Table:
    """All rows of one table of a trace.

    Args:
        table: ``spans``, ``activity`` or ``probes``.
        path: The spans file; the others lie beside it.

    Returns:
        Table with the schema of that name.

    Raises:
        TraceError: If the file cannot be read as that table.
    """
    where = beside(Path(path), table)
    file, _ = _open(where)
    expected = TABLES[table]
    found = file.schema_arrow
    _check_columns(where, found, (table,))
    try:
        return file.read().cast(expected).replace_schema_metadata(found.metadata)
    except (OSError, pa.ArrowException) as error:
        raise TraceError(
            f"{where}: expected a readable {table} table, got {' '.join(str(error).split())}. Record it again."
        ) from error


def _check_columns(path: Path, found: Any, tables: Sequence[str]) -> None:
    """Refuse a file that has the columns of none of the tables.

    Raises:
        TraceError: With what is missing, or what is of another type.
    """
    if any(_plain(found).equals(_plain(TABLES[table])) for table in tables):
        return
    expected = _plain(TABLES[tables[0]])
    missing = sorted(set(expected.names) - set(found.names))
    other = [
        f.name for f in expected if f.name not in missing and found.field(f.name).type != f.type
    ]
    got = f"no {', '.join(missing)}" if missing else f"others: {', '.join(other or found.names)}"
    raise TraceError(
        f"{path}: expected the columns of a {' or '.join(tables)} table, got {got}. Pass the file that rose-trace "
        "wrote."
    )


def _plain(schema: Any) -> Any:
    """The schema with strings in place of dictionaries, as rows from Python have them."""
    return pa.schema(
        [f.with_type(pa.string()) if pa.types.is_dictionary(f.type) else f for f in schema]
    )


def write_table(
    table: str, path: str | Path, rows: pyarrow.Table | Sequence[Mapping[str, Any]]
) -> Path:
    """Write a table that belongs to a trace, e.g. the probes of its nodes.

    Args:
        table: ``probes`` or ``activity``.
        path: The spans file of the trace.
        rows: The rows, with the columns of that table; a table or one mapping per row.

    Returns:
        The file beside the trace.

    Raises:
        TraceError: If the trace cannot be read, or the rows have other columns.
    """
    info = read_metadata(path)
    where = beside(Path(path), table)
    expected = TABLES[table]
    try:
        given: Any = rows
        if not isinstance(given, pyarrow.Table):
            given = pa.Table.from_pylist(list(given), schema=_plain(expected))
        cast: Any = given.select(expected.names).cast(expected)
    except (KeyError, pa.ArrowException) as error:
        raise TraceError(
            f"{where}: expected the columns of {table}, got {error}. Build them by schema.py."
        ) from error
    write_sorted(where, table, cast.unify_dictionaries().to_batches(), info)
    return where


def _open(path: Path) -> tuple[Any, TraceInfo]:
    if not path.exists():
        hint = (
            f"run: rose-trace recover {path}"
            if parts_of(path).exists()
            else "Record it with rose.record."
        )
        raise TraceError(
            f"{path}: expected a trace, got no such file. {hint[0].upper() + hint[1:]}"
        )
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise TraceError(
            f"{path}: expected a Parquet file, got {error}. It is truncated or something else; record it again, or "
            "recover it where its parts are left."
        ) from error
    metadata: dict[bytes, bytes] = file.schema_arrow.metadata or {}
    if METADATA_KEY not in metadata:
        raise TraceError(
            f"{path}: expected a trace, got a Parquet file of other origin. Pass what rose-trace wrote."
        )
    try:
        info = TraceInfo.from_json(metadata[METADATA_KEY])
        version = info.schema_version
    except (TypeError, ValueError, KeyError) as error:
        version = _version(metadata[METADATA_KEY])
        if version == SCHEMA_VERSION:
            raise TraceError(
                f"{path}: expected the metadata of a trace, got {error!r}. Record it again."
            ) from error
        info = None
    if version != SCHEMA_VERSION or info is None:
        raise TraceError(
            f"{path}: expected trace version {SCHEMA_VERSION}, got {version}. Read it with the Rose that wrote it, or "
            "record it again."
        )
    return file, info


def _version(metadata: bytes) -> Any:
    try:
        return json.loads(metadata)["schema_version"]
    except (TypeError, ValueError, KeyError):
        return "none"


def write_sorted(path: Path, table: str, batches: list[Any], info: TraceInfo) -> None:
    """Write batches sorted by start, one row group at a time: memory does not grow with the trace."""
    plain: Any = TABLES[table]
    schema = plain.with_metadata({METADATA_KEY: info.to_json().encode()})
    unfinished = path.with_name(f".{path.name}.new")
    try:
        with pq.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            for rows in _sorted_rows(batches, "start_ns" if "start_ns" in schema.names else None):
                writer.write_table(
                    rows.replace_schema_metadata(schema.metadata), row_group_size=ROW_GROUP
                )
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)  # gives a full disk its space back
        raise


def _sorted_rows(batches: list[Any], by: str | None) -> Iterator[Any]:
    if not batches:
        return
    if by is None:
        yield pa.Table.from_batches(batches)
        return
    starts = np.concatenate([batch.column(by).to_numpy() for batch in batches])
    first = np.cumsum([0, *(batch.num_rows for batch in batches)])
    order = np.argsort(starts, kind="stable")
    for begin in range(0, len(order), ROW_GROUP):
        chosen = order[begin : begin + ROW_GROUP]
        owner = np.searchsorted(first, chosen, side="right") - 1
        needed, place = np.unique(owner, return_inverse=True)
        sizes = np.array([batches[i].num_rows for i in needed])
        local = np.cumsum(np.concatenate([[0], sizes]))[place] + (chosen - first[owner])
        some = (
            pa.Table.from_batches([batches[i] for i in needed])
            .unify_dictionaries()
            .combine_chunks()
        )
        yield some.take(pa.array(local))
