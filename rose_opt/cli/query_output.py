"""How rows of a query, and the documentation of views and queries, are printed."""

from __future__ import annotations

import csv
import enum
import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rose_opt.sql import Rows, queries, views

PIPE_WIDTH = 200  # ours: what is read by programs and files is not folded
NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL")
Row = tuple[Any, ...]


class QueryFormat(enum.StrEnum):
    """How the rows of a query are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    MARKDOWN = "markdown"


def write_rows(rows: Rows, format: QueryFormat, limit: int | None) -> bool:
    """Print the rows of a query to standard output.

    Args:
        rows: What the query returned.
        format: How to print.
        limit: Most rows to print; ``None`` for all.

    Returns:
        Whether rows were left out.
    """
    every = itertools.chain.from_iterable(rows.batches)
    shown = every if limit is None else itertools.islice(every, limit)
    if format is QueryFormat.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(rows.names)
        writer.writerows([_cell(value) for value in row] for row in shown)
    elif format is QueryFormat.JSON:
        _write_json(rows.names, shown)
    elif format is QueryFormat.MARKDOWN:
        cells = [[_cell(value) for value in row] for row in shown]
        typer.echo("\n".join(_markdown_table(rows.names, cells, _numeric(rows))))
    else:
        _write_table(rows, shown)
    return next(every, None) is not None


def documentation(format: QueryFormat) -> str:
    """Views with their columns and the named queries.

    Args:
        format: ``markdown`` gives the text of the page, ``json`` one object, ``csv`` one line per
            column, and ``table`` what is read in a terminal.

    Returns:
        Text that ends in a line break.
    """
    if format is QueryFormat.JSON:
        return json.dumps(_described(), indent=2) + "\n"
    if format is QueryFormat.CSV:
        lines = [("view", "column", "unit", "meaning")]
        lines += [(v.name, c.name, c.unit, c.meaning) for v in views().values() for c in v.columns]
        return "".join(",".join(map(_csv_cell, line)) + "\n" for line in lines)
    if format is QueryFormat.MARKDOWN:
        return views_page() + "\n" + queries_page()
    return "\n".join(_outline()) + "\n"


def views_page() -> str:
    """The views as a part of the page, in Markdown."""
    lines = ["## Views", ""]
    for view in views().values():
        lines += [f"### {view.name}", "", " ".join(filter(None, (view.meaning, view.note))), ""]
        cells = [(f"`{column.name}`", column.unit, column.meaning) for column in view.columns]
        lines += [*_markdown_table(("column", "unit", "meaning"), cells, (False,) * 3), ""]
    return "\n".join(lines)


def queries_page() -> str:
    """The named queries as a part of the page, in Markdown."""
    lines = ["## Queries", ""]
    for query in queries().values():
        lines += [f"### {query.name}", "", f"{query.question} {query.note}", ""]
        lines += ["```sql", f"{query.sql};", "```", ""]
    return "\n".join(lines)


def _described() -> dict[str, Any]:
    return {
        "views": [
            {
                "name": view.name,
                "meaning": view.meaning,
                "note": view.note,
                "columns": [
                    {"name": column.name, "unit": column.unit, "meaning": column.meaning}
                    for column in view.columns
                ],
            }
            for view in views().values()
        ],
        "queries": [
            {
                "name": query.name,
                "question": query.question,
                "note": query.note,
                "traces": list(query.schemas),
                "sql": query.sql,
            }
            for query in queries().values()
        ],
    }


def _outline() -> Iterator[str]:
    for view in views().values():
        yield f"{view.name}: {view.meaning}"
        if view.note:
            yield f"  {view.note}"
        width = max(len(column.name) for column in view.columns)
        for column in view.columns:
            unit = f" [{column.unit}]" if column.unit else ""
            yield f"  {column.name:<{width}}  {column.meaning}{unit}"
        yield ""
    yield "queries (--query NAME)"
    width = max(map(len, queries()))
    for query in queries().values():
        traces = f" (traces {' and '.join(query.schemas)})" if query.schemas else ""
        yield f"  {query.name:<{width}}  {query.question}{traces}"


def _write_table(rows: Rows, shown: Iterator[Row]) -> None:
    table = Table(box=None, pad_edge=False)
    for name, number in zip(rows.names, _numeric(rows), strict=True):
        table.add_column(
            escape(name),
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
        )
    for row in shown:
        table.add_row(*(escape(_cell(value)) for value in row))
    terminal = sys.stdout.isatty()
    console = Console(soft_wrap=not terminal, highlight=False)
    if not terminal:  # what is read by programs and files is not folded
        console.width = max(PIPE_WIDTH, console.measure(table).maximum)
    console.print(table)


def _write_json(names: Sequence[str], shown: Iterator[Row]) -> None:
    """One array of one object per row, a line each, while rows still arrive."""
    sys.stdout.write("[")
    for number, row in enumerate(shown):
        sys.stdout.write(",\n " if number else "\n ")
        values = (_plain(value) for value in row)
        sys.stdout.write(json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False))
    sys.stdout.write("\n]\n")


def _markdown_table(
    heads: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> list[str]:
    lines = [
        "| " + " | ".join(heads) + " |",
        "|" + "|".join("---:" if number else "---" for number in right) + "|",
    ]
    for row in cells:
        escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
        lines.append("| " + " | ".join(escaped) + " |")
    return lines


def _numeric(rows: Rows) -> list[bool]:
    return [any(word in kind for word in NUMBERS) and "[" not in kind for kind in rows.types]


def _csv_cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text


def _cell(value: Any) -> str:
    """A value as text; nothing for null."""
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value that JSON can hold; numbers that are none become null."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, Decimal)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {str(key): _plain(item) for key, item in entries.items()}
    return value.hex() if isinstance(value, bytes) else str(value)
