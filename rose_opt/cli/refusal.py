"""Exit codes of the command line: 0 done, 2 usage, 3 input refused, 4 measurement failed."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Generator

import typer

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
