"""`rose-trace recover`: build the trace of a killed run from its parts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rose_trace.cli.info import show
from rose_trace.cli.output import Format, refusing
from rose_trace.merge import merge
from rose_trace.parquet import TraceError, parts_of


def recover(
    trace: Annotated[Path, typer.Argument(help="The trace file that the run should have written.")],
    parts: Annotated[
        Path | None, typer.Option("--parts", help="Parts directory, where it is not <trace>.parts.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Build the trace of a killed run from its parts; it is marked incomplete."""
    with refusing():
        if parts is not None:
            _keep(trace)
        found = merge(parts or parts_of(trace), trace)
    if format is Format.JSON:
        print(json.dumps(asdict(found)))
    else:
        show(trace, found)


def _keep(trace: Path) -> None:
    """Refuse to write over a trace.

    Raises:
        TraceError: If there is one.
    """
    if trace.exists():
        raise TraceError(
            f"{trace}: expected a name that is free, got a trace that is there already. Name another one: what "
            "is recorded is never overwritten by a recovery of other parts."
        )
