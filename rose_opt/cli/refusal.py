"""Exit codes of the command line: 0 done, 2 usage, 3 input refused, 4 measurement failed."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Generator
from pathlib import Path

import typer

from rose_trace.parquet import read_metadata

INPUT_REFUSED = 3
MEASUREMENT_FAILED = 4


class Format(enum.StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


@contextlib.contextmanager
def refusing(*errors: type[Exception], code: int = INPUT_REFUSED) -> Generator[None]:
    """Print an expected error to stderr and exit with `code`; other errors stay visible.

    Args:
        *errors: Types of expected errors.
        code: Exit code for them.

    Raises:
        Exit: Where one of them occurs.
    """
    try:
        yield
    except errors as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(code) from error


def tell_losses(*traces: Path) -> None:
    """Say on stderr which of the traces that a result rests on lost rows.

    Args:
        *traces: Traces that were read.
    """
    for trace in traces:
        info = read_metadata(trace)
        if not info.complete:
            typer.echo(
                f"{trace}: expected a complete trace, got one that lost rows ({'; '.join(info.reasons)}). What is "
                "left of it was used.",
                err=True,
            )
