"""DuckDB over the trace: the only file that knows the database.

Queries live in ``queries/*.sql`` and read the Parquet files in place. Every query that returns rows
orders them and sums only integers, so that the same trace always gives the same facts.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb

from rose_trace.parquet import beside


class Store:
    """One in-memory database over the files of one trace.

    Attributes:
        spans: Path of the trace.
    """

    def __init__(self, spans: Path, memory_limit: str = "3GB") -> None:
        """Open the database.

        Args:
            spans: Path of ``trace.parquet``.
            memory_limit: Memory above which DuckDB spills to the system's temporary folder, e.g. ``3GB``.
        """
        self.spans = spans
        self._spill = tempfile.TemporaryDirectory(prefix="rose-facts-")
        self._connection = duckdb.connect(
            config={
                "memory_limit": memory_limit,
                "temp_directory": self._spill.name,
                "preserve_insertion_order": False,  # every query that returns rows orders them
            }
        )
        self.set(spans=str(spans))

    def beside(self, table: str) -> Path | None:
        """The trace's companion file of another table, ``trace.activity.parquet``, where it exists."""
        path = beside(self.spans, table)
        return path if path.exists() else None

    def set(self, **variables: Any) -> None:
        """Set variables that queries read with ``getvariable``."""
        for name, value in variables.items():
            self._connection.execute(f"SET VARIABLE {name} = $value", {"value": value})

    def run(self, query: str, **variables: Any) -> list[dict[str, Any]]:
        """Run all statements of one query file.

        Args:
            query: File name without ``.sql``.
            **variables: Set before running.

        Returns:
            Rows of the last statement by column name; of no use where it returns none.
        """
        self.set(**variables)
        text = (resources.files("rose_opt.facts") / "queries" / f"{query}.sql").read_text("utf-8")
        cursor = self._connection.execute(text)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def fill(self, table: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
        """Make a temporary table of a few Python rows.

        Args:
            table: Its name.
            columns: Column definitions as in ``CREATE TABLE``.
            rows: Rows; at most thousands.
        """
        self._connection.execute(f"CREATE TEMP TABLE {table} ({columns})")
        if rows:
            marks = ", ".join("?" for _ in rows[0])
            self._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def close(self) -> None:
        """Close the database; its temporary tables are gone."""
        self._connection.close()
        self._spill.cleanup()


@contextlib.contextmanager
def opened(spans: Path, memory_limit: str = "3GB") -> Generator[Store]:
    """A store that is closed at the end of the block."""
    store = Store(spans, memory_limit)
    try:
        yield store
    finally:
        store.close()
