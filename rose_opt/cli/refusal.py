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


def tell_sampling(trace: Path, steps: int | None) -> None:
    """Say on stderr that a trace has rows of some iterations only.

    Args:
        trace: The trace.
        steps: Iterations of inner loops recorded in full at each end; ``None`` for all.
    """
    if steps is not None:
        typer.echo(
            f"{trace}: sampled, so rows are left out: of inner loops the first and last {steps} iterations have "
            "rows, the others only sums, and durations of single invocations in those are estimates.",
            err=True,
        )


def tell_gaps(*traces: Path) -> None:
    """Say on stderr which of the traces that a result rests on lost rows, or were sampled.

    Args:
        *traces: Traces that were read.
    """
    for trace in traces:
        info = read_metadata(trace)
        tell_sampling(trace, info.steps)
        if info.unfinished:
            told = sum(info.unfinished.values()), next(iter(info.unfinished))
            typer.echo(
                f"{trace}: {told[0]} invocations had not ended when the recording did, such as {told[1]}. They have no "
                "row, and what they had called by then is left out.",
                err=True,
            )
        if not info.complete:
            typer.echo(
                f"{trace}: expected a complete trace, got one that lost rows ({'; '.join(info.reasons)}). What is "
                "left of it was used.",
                err=True,
            )
