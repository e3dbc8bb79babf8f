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
def refusing(expected: type[Exception] = TraceError, code: int = 3) -> Generator[None]:
    """Print an expected error to stderr and exit with a code of its own.

    Args:
        expected: Its type.
        code: The exit code.

    Raises:
        Exit: In place of the error.
    """
    try:
        yield
    except expected as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(code) from error
