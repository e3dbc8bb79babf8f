"""``rose-opt verify``: two traces did the same work in an equivalent order, or where they differ."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rose_opt.cli.refusal import INPUT_REFUSED, Format, refusing
from rose_opt.verify import IncompleteTrace, SampledTrace, verify_traces
from rose_trace.parquet import TraceError


def verify(
    first: Annotated[Path, typer.Argument(help="A trace, e.g. of a native run.")],
    second: Annotated[Path, typer.Argument(help="A trace of the same program, e.g. planned.")],
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TEXT,
) -> None:
    """Compare invocations, the writer behind every state read, and final writers.

    Raises:
        Exit: With the code of a refused input, where the traces differ.
    """
    with refusing(TraceError, IncompleteTrace, SampledTrace):
        found = verify_traces(first, second)
    if format is Format.JSON:
        typer.echo(json.dumps({"equal": found.equal, **asdict(found)}))
    elif found.equal:
        typer.echo(
            f"equal: {found.invocations} invocations and {found.reads} state reads, each from the same writer"
        )
    else:
        typer.echo(f"different: {found.difference}")
    if not found.equal:
        raise typer.Exit(INPUT_REFUSED)
