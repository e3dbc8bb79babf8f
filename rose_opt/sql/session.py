"""`Session`: queries over one trace or several, which change nothing.

Paper: none; the views follow §4.2 and §4.3.2.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from rose_opt.facts.store import QueryError, Rows, SharedDatabase
from rose_opt.sql.catalogue import queries, views
from rose_opt.sql.tables import REQUIRES, Tables
from rose_trace.parquet import beside, read_metadata

_EVERYTHING = re.compile(r"\b(show|information_schema|duckdb_\w+|pg_catalog)\b", re.IGNORECASE)
_MISSING = re.compile(r"Table with name (\S+) does not exist!\n?(?:Did you mean [^\n]*)?")


class Session:
    """Traces opened for queries.

    Attributes:
        incomplete: Why rows are missing, by schema; complete traces are absent.
        sampled: Iterations of inner loops recorded in full at each end, by schema; full traces are absent.
    """

    def __init__(self, traces: Mapping[str, Path]) -> None:
        """Open traces.

        Args:
            traces: Path of ``trace.parquet`` by name of its schema. With one trace its views need no
                schema; with several they do.

        Raises:
            TraceError: If one of them cannot be read as a trace.
        """
        found = {schema: read_metadata(path) for schema, path in traces.items()}
        for path in traces.values():
            for table in ("activity", "probes"):
                if beside(path, table).exists():
                    read_metadata(beside(path, table))
        self.incomplete = {
            schema: "; ".join(info.reasons) for schema, info in found.items() if not info.complete
        }
        self.sampled = {
            schema: info.steps for schema, info in found.items() if info.steps is not None
        }
        self._database = SharedDatabase(traces)
        self._tables = {
            schema: Tables(self._database.stores[schema], info) for schema, info in found.items()
        }

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self._database.close()

    def run(self, query: str) -> Rows:
        """Run one query.

        Args:
            query: One statement that only reads.

        Returns:
            Its rows.

        Raises:
            QueryError: If it cannot be run; the message has the position in the text.
            FactsError: If it asks for a view that needs a finished iteration, and there is none.
        """
        self._database.check(query)
        text = query.lower()
        words = set(re.findall(r"\w+", text))
        several = len(self._tables) > 1
        for schema, tables in self._tables.items():
            if several and schema.lower() not in text and not _EVERYTHING.search(text):
                continue
            for name in REQUIRES:
                if name in words or _EVERYTHING.search(text):
                    tables.ensure(name)
        try:
            return self._database.select(query)
        except QueryError as error:
            raise QueryError(self._explained(str(error))) from error

    def _explained(self, message: str) -> str:
        """The database's message with names of views where it guesses at its own tables."""
        missing = _MISSING.search(message)
        if missing is None:
            return message
        schemas = tuple(self._tables)
        asked = missing[1].lower()
        if asked in views():
            advice = f"Write {' or '.join(f'{schema}.{asked}' for schema in schemas)}."
        else:
            close = difflib.get_close_matches(asked.rpartition(".")[2], views(), 1)
            guess = f"Did you mean {close[0]}? " if close else ""
            advice = f"{guess}The views are {', '.join(views())}."
        told = f"query: expected a view, got {missing[1]!r}. {advice}"
        position = message.find("LINE ")
        return told if position < 0 else f"{told}\n\n{message[position:]}"


def named_query(name: str) -> str:
    """Text of a query of the page.

    Raises:
        QueryError: If there is none of that name.
    """
    if name not in queries():
        close = difflib.get_close_matches(name, queries(), 1)
        guess = f"Did you mean {close[0]}? " if close else ""
        raise QueryError(
            f"query {name!r}: expected one of {', '.join(queries())}, got another name. {guess}"
            "Print them all with --list."
        )
    return queries()[name].sql
