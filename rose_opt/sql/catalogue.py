"""Views and named queries with their documentation, from the headers of their SQL files.

The files are the one source: the database runs them, the page shows them, and the tests check that
each column of a view is described.

Paper: none.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

VIEWS = (
    "spans",
    "refs",
    "states",
    "activity",
    "probes",
    "recording",
    "processes",
    "iterations",
    "invocations",
    "nodes",
    "windows",
    "gaps",
    "dependencies",
    "edges",
    "waits",
    "critical_path",
)
"""Views in the order of the page: what was recorded, then what follows from it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view.

    Attributes:
        name: Its name.
        unit: Unit of its values; empty where they have none.
        meaning: What it is, in a phrase.
    """

    name: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class View:
    """A documented view.

    Attributes:
        name: Its name.
        meaning: What one row is.
        note: Further sentences; may be empty.
        columns: Its columns in order.
        sql: Statement that makes it.
    """

    name: str
    meaning: str
    note: str
    columns: tuple[Column, ...]
    sql: str


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A query that people ask for.

    Attributes:
        name: Its name.
        question: What it answers.
        note: How the answer reads.
        schemas: Traces that it needs; empty if it runs on any single trace.
        sql: The query.
    """

    name: str
    question: str
    note: str
    schemas: tuple[str, ...]
    sql: str


@functools.cache
def views() -> dict[str, View]:
    """All views by name, in the order of the page."""
    return {name: _view(name) for name in VIEWS}


@functools.cache
def queries() -> dict[str, NamedQuery]:
    """All named queries by name, in alphabetical order."""
    folder = resources.files("rose_opt.sql") / "queries"
    names = sorted(file.name.removesuffix(".sql") for file in folder.iterdir())
    return {name: _query(name) for name in names}


def _view(name: str) -> View:
    header, sql = _split("views", name)
    columns = tuple(
        Column(*(part.strip() for part in line.split("|", 2))) for line in header if "|" in line
    )
    first, *rest = (line for line in header if "|" not in line)
    return View(name, first, " ".join(rest), columns, sql)


def _query(name: str) -> NamedQuery:
    header, sql = _split("queries", name)
    schemas = tuple(
        schema
        for line in header
        if line.startswith("traces:")
        for schema in line.removeprefix("traces:").replace(",", " ").split()
    )
    first, *rest = (line for line in header if not line.startswith("traces:"))
    return NamedQuery(name, first, " ".join(rest), schemas, sql)


def _split(folder: str, name: str) -> tuple[list[str], str]:
    """Lines of the leading comment that are not blank, and the statement after it."""
    text = (resources.files("rose_opt.sql") / folder / f"{name}.sql").read_text("utf-8")
    lines = text.splitlines()
    header = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    comment = [line.removeprefix("--").strip() for line in lines[:header]]
    return [line for line in comment if line], "\n".join(lines[header:]).strip().removesuffix(";")
