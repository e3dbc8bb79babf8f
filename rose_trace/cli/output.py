"""What every command shares: output formats, and a refused input as exit code 3."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Generator

import typer

from rose_trace.parquet import TraceError


class Format(enum.StrEnum):
    """How a command prints its result."""

    TEXT = "text"
    JSON = "json"


@contextlib.contextmanager
def refusing() -> Generator[None]:
    """Print a `TraceError` to stderr and exit with 3.

    Raises:
        Exit: In place of the error.
    """
    try:
        yield
    except TraceError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(3) from error
