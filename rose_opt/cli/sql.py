"""``rose-opt sql``: queries over a trace, or over several."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rose_opt.cli.query_output import QueryFormat, documentation, write_rows
from rose_opt.cli.refusal import refusing, tell_sampling
from rose_opt.facts import FactsError
from rose_opt.sql import QueryError, Session, named_query, queries
from rose_trace.parquet import TraceError

USAGE = 2
SHOWN_ROWS = 100  # ours: rows that a table for people shows unless asked for more
_NAMED_TRACE = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)


class UsageError(ValueError):
    """Arguments that do not say what to run on what."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What the arguments ask for.

    Attributes:
        traces: Traces by schema.
        query: Text of the query; ``None`` for a prompt.
    """

    traces: dict[str, Path]
    query: str | None


def sql(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE... [QUERY]",
            help="Traces, then one SELECT statement in quotes, or - to read it from standard input. Views of "
            "one trace go by their names (nodes); two traces are the schemas before and after (before.nodes); "
            "NAME=trace.parquet chooses another schema.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the query from a file.")
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", "-q", help="Run a named query; --list prints them.")
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Print views with their columns, and named queries.")
    ] = False,
    format: Annotated[QueryFormat, typer.Option(help="How to print.")] = QueryFormat.TABLE,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Most rows to print; by default {SHOWN_ROWS} in a table or markdown, and all otherwise.",
        ),
    ] = None,
) -> None:
    """Answer a query over recorded traces; nothing is changed."""
    if show_list:
        typer.echo(documentation(format), nl=False)
        return
    with refusing(UsageError, QueryError, OSError, UnicodeDecodeError, code=USAGE):
        request = _request(arguments or [], file, query)
    if limit is None and format in {QueryFormat.TABLE, QueryFormat.MARKDOWN}:
        limit = SHOWN_ROWS
    with refusing(TraceError):
        session = Session(request.traces)
    with session:
        for schema, reasons in session.incomplete.items():
            typer.echo(
                f"{request.traces[schema]}: incomplete, so answers may be ({reasons})", err=True
            )
        for schema, steps in session.sampled.items():
            tell_sampling(request.traces[schema], steps)
        if request.query is None:
            _prompt(session, format, limit)
        else:
            with refusing(QueryError, code=USAGE), refusing(FactsError, TraceError):
                _answer(session, request.query, format, limit)


def _request(arguments: Sequence[str], file: Path | None, name: str | None) -> _Request:
    """Sort the arguments into traces and a query.

    Raises:
        UsageError: If they are too few or contradict each other.
    """
    paths = list(arguments)
    given = [paths.pop()] if len(paths) > 1 and not _is_trace(paths[-1]) else []
    asked = len(given) + (file is not None) + (name is not None)
    if not paths:
        raise UsageError(
            "rose-opt sql: expected a trace, got none. Pass trace.parquet and a query, or --list."
        )
    if asked > 1:
        raise UsageError(
            f"rose-opt sql: expected one query, got {asked}. Pass it as an argument, with --file or with --query."
        )
    schemas = queries()[name].schemas if name in queries() else ()
    traces = _schemas(paths)
    if schemas and set(schemas) != set(traces):
        raise UsageError(
            f"query {name}: expected the traces {' and '.join(schemas)}, got {', '.join(traces)}. "
            f"Pass {len(schemas)} traces."
        )
    if name in queries() and not schemas and len(traces) > 1:
        raise UsageError(f"query {name}: expected one trace, got {len(traces)}. Pass them in turn.")
    if name is not None:
        return _Request(traces, named_query(name))
    if file is not None and file != Path("-"):
        return _Request(traces, file.read_text("utf-8"))
    if given and given != ["-"]:
        return _Request(traces, given[0])
    prompt = not given and file is None and sys.stdin.isatty()
    return _Request(traces, None if prompt else sys.stdin.read())


def _is_trace(argument: str) -> bool:
    return argument.endswith(".parquet") or (argument != "-" and Path(argument).is_file())


def _schemas(paths: Sequence[str]) -> dict[str, Path]:
    """Traces by the schema they become.

    Raises:
        UsageError: If a schema is taken twice, or several traces have no names.
    """
    defaults = {1: ("trace",), 2: ("before", "after")}.get(len(paths), ())
    result: dict[str, Path] = {}
    for number, path in enumerate(paths):
        named = None if Path(path).exists() else _NAMED_TRACE.fullmatch(path)
        if named is None and not defaults:
            raise UsageError(
                f"{path}: expected NAME=PATH where there are more than two traces, got no name. "
                f"Write first={path}."
            )
        schema, where = (named[1], named[2]) if named else (defaults[number], path)
        if schema.lower() in {name.lower() for name in result} | {"temp", "main", "system"}:
            raise UsageError(f"{path}: expected a new name, got {schema!r}. Choose another one.")
        result[schema] = Path(where)
    return result


def _answer(session: Session, query: str, format: QueryFormat, limit: int | None) -> None:
    left_out = write_rows(session.run(query), format, limit)
    if left_out:
        typer.echo(f"the first {limit} rows; ask for more with --limit", err=True)


def _prompt(session: Session, format: QueryFormat, limit: int | None) -> None:
    """Read statements up to a semicolon and answer them, until the end of input."""
    if os.name == "posix":
        importlib.import_module("readline")  # gives `input` its history and editing
    lines: list[str] = []
    while True:
        try:
            lines.append(input("  ... " if lines else "rose> "))
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return
        text = "\n".join(lines).strip()
        if text.lower() in {"", "exit", "quit", ".exit", ".quit"}:
            if text:
                return
            lines = []
        elif text.endswith(";"):
            lines = []
            try:
                _answer(session, text, format, limit)
            except (QueryError, FactsError) as error:
                typer.echo(str(error), err=True)
