"""DuckDB over the trace: the only file that knows the database.

Queries live in ``queries/*.sql`` and read the Parquet files in place. Every query that returns rows
orders them and sums only integers, so that the same trace always gives the same facts.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
from duckdb import DuckDBPyConnection

from rose_trace.parquet import TraceError, beside, read_metadata


class Store:
    """One in-memory database over the files of one trace.

    Attributes:
        spans: Path of the trace.
    """

    def __init__(
        self, spans: Path, memory_limit: str = "3GB", connection: DuckDBPyConnection | None = None
    ) -> None:
        """Open the database.

        Args:
            spans: Path of ``trace.parquet``.
            memory_limit: Memory above which DuckDB spills to the system's temporary folder, e.g. ``3GB``.
            connection: Connection to use instead of a database of its own.
        """
        read_metadata(spans, "spans")
        self.spans = spans
        self._spill: tempfile.TemporaryDirectory[str] | None = None
        if connection is None:
            self._spill = tempfile.TemporaryDirectory(prefix="rose-facts-")
            connection = duckdb.connect(
                config={
                    "memory_limit": memory_limit,
                    "temp_directory": self._spill.name,
                    "preserve_insertion_order": False,  # every query that returns rows orders them
                }
            )
        self._connection = connection
        self.set(spans=str(spans))

    def beside(self, table: str) -> Path | None:
        """The trace's companion file of another table, ``trace.activity.parquet``, where it exists.

        Raises:
            TraceError: If it is no such table.
        """
        path = beside(self.spans, table)
        if not path.exists():
            return None
        read_metadata(path, table)
        return path

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
        return self.execute(self.text(query))

    @staticmethod
    def text(query: str) -> str:
        """Text of one query file, named without ``.sql``."""
        return (resources.files("rose_opt.facts") / "queries" / f"{query}.sql").read_text("utf-8")

    def execute(self, text: str) -> list[dict[str, Any]]:
        """Run all statements of a text and return the rows of the last, as `run` does."""
        with _readable(self.spans):
            cursor = self._connection.execute(text)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def column(self, query: str, name: str) -> npt.NDArray[Any]:
        """One column without nulls of the rows of a query text, as an array of one entry per row."""
        return np.asarray(self._connection.execute(query).fetchnumpy()[name])

    def arrays(self, query: str) -> dict[str, npt.NDArray[Any]]:
        """All columns, without nulls, of the rows of a query text, each as an array of one entry per row."""
        found: dict[str, Any] = self._connection.execute(query).fetchnumpy()
        return found

    def fill_columns(self, table: str, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Make a temporary table of arrays, one entry per row; for any number of rows."""
        self._connection.register("filling", dict(columns))
        self._connection.execute(f"CREATE TEMP TABLE {table} AS FROM filling")
        self._connection.unregister("filling")

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
        if self._spill is not None:
            self._spill.cleanup()


@contextlib.contextmanager
def opened(spans: Path, memory_limit: str = "3GB") -> Generator[Store]:
    """A store that is closed at the end of the block; what its files hold may turn out unreadable."""
    store = Store(spans, memory_limit)
    try:
        with _readable(spans):
            yield store
    finally:
        store.close()


@contextlib.contextmanager
def _readable(spans: Path) -> Generator[None]:
    """Name the files where the database cannot read them; errors of a query itself stay as they are.

    Raises:
        TraceError: If what they hold is damaged.
        Error: If a query is wrong.
    """
    try:
        yield
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TraceError(_damage(spans, error)) from error
    except duckdb.Error as error:
        if isinstance(error, _WRONG_QUERY):
            raise
        raise TraceError(_damage(spans, error)) from error


_WRONG_QUERY = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)


def _damage(spans: Path, error: Exception) -> str:
    tables = [spans, *filter(Path.exists, (beside(spans, "activity"), beside(spans, "probes")))]
    return (
        f"{', '.join(map(str, tables))}: expected readable tables, got {' '.join(str(error).split())}. One of them "
        "is damaged; record again."
    )


class QueryError(ValueError):
    """A query of a user that cannot be run; the message says why and where."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query of a user returned.

    Attributes:
        names: Names of the columns.
        types: Their types as the database calls them.
        batches: Rows, some thousands at a time; read once.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    batches: Iterator[list[tuple[Any, ...]]]


class SharedDatabase:
    """One in-memory database with a schema per trace, which reads and nothing else.

    Everything but the files of the traces is out of reach, and those are only read: each trace has
    connections of its own, and so temporary tables of its own, while a user's queries run on
    another one that sees the schemas alone.
    """

    BATCH_ROWS = 10_000

    def __init__(self, traces: Mapping[str, Path], memory_limit: str = "3GB") -> None:
        """Open the database.

        Args:
            traces: Path of ``trace.parquet`` by the name of its schema; the first schema is searched
                for unqualified names if it is the only one.
            memory_limit: Memory above which DuckDB spills to the system's temporary folder, e.g. ``3GB``.
        """
        self._spill = tempfile.TemporaryDirectory(prefix="rose-sql-")
        self._main = duckdb.connect(
            config={
                "memory_limit": memory_limit,
                "temp_directory": self._spill.name,
                "python_enable_replacements": False,  # names of Python variables are no tables
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "prefer_range_joins": True,  # overlap joins with a hash on the device explode
            }
        )
        files = [
            str(beside(path, table))
            for path in traces.values()
            for table in ("spans", "activity", "probes")
        ]
        self._main.execute(f"SET allowed_paths = [{', '.join(map(quoted, files))}]")
        self._main.execute("SET enable_external_access = false")
        self.stores: dict[str, Store] = {}
        for schema, path in traces.items():
            self._main.execute(f"CREATE SCHEMA {_identifier(schema)}")
            connection = self._main.cursor()
            connection.execute(f"SET schema = {quoted(schema)}")
            self.stores[schema] = Store(path, connection=connection)
        self._reader = self._main.cursor()
        if len(traces) == 1:
            self._reader.execute(f"SET schema = {quoted(next(iter(traces)))}")
        self._main.execute("SET lock_configuration = true")

    def check(self, query: str) -> None:
        """Refuse what is not one query that only reads.

        Raises:
            QueryError: With the parser's message, or the kind of statement.
        """
        try:
            kinds = [statement.type.name for statement in self._reader.extract_statements(query)]
        except duckdb.Error as error:
            raise QueryError(f"query: {error}") from error
        if not kinds:
            raise QueryError(
                "query: expected a SELECT statement, got nothing. List the views with --list."
            )
        if len(kinds) > 1:
            raise QueryError(
                f"query: expected one statement, got {len(kinds)}. Run them one at a time."
            )
        if kinds != ["SELECT"]:
            raise QueryError(
                f"query: expected a statement that only reads, got {kinds[0].replace('MULTI', 'several in one')}. "
                "Start with SELECT, FROM or WITH; the trace is never changed and no file is written."
            )

    def select(self, query: str) -> Rows:
        """Run one query of a user.

        Args:
            query: One statement that only reads.

        Returns:
            Its rows.

        Raises:
            QueryError: With the database's message, which has the position in the text.
        """
        self.check(query)
        try:
            cursor = self._reader.execute(query)
            described = cursor.description or []
            names = tuple(str(column[0]) for column in described)
            types = tuple(str(column[1]) for column in described)
            return Rows(names, types, self._batches(cursor))
        except duckdb.Error as error:
            raise QueryError(f"query: {error}") from error

    def _batches(self, cursor: DuckDBPyConnection) -> Iterator[list[tuple[Any, ...]]]:
        try:
            while rows := cursor.fetchmany(self.BATCH_ROWS):
                yield rows
        except duckdb.Error as error:
            raise QueryError(f"query: {error}") from error

    def close(self) -> None:
        """Close all connections; nothing is left."""
        for store in self.stores.values():
            store.close()
        self._reader.close()
        self._main.close()
        self._spill.cleanup()


def quoted(text: str) -> str:
    """A string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
