"""`rose-trace import`: a file of a profiler or of OpenTelemetry as a trace."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rose_trace.cli.info import show
from rose_trace.cli.output import Format, refusing
from rose_trace.interop import ImportSettings, import_trace

_DEFAULT = ImportSettings()


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            help="SQLite export of Nsight Systems, JSON(.gz) of Kineto or Chrome, or OTLP as JSON or protobuf."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the trace.")
    ] = Path("trace.parquet"),
    iteration: Annotated[
        str | None,
        typer.Option(
            help="Shell pattern for the ranges that are one iteration each; by default the steps of "
            "torch.profiler, or all that a process did."
        ),
    ] = _DEFAULT.iteration,
    resolution_ns: Annotated[
        int, typer.Option(min=1, help="Length of a sample of estimated activity, in ns.")
    ] = _DEFAULT.resolution_ns,
    sm_count: Annotated[
        int, typer.Option(min=1, help="SMs of a device where the file does not tell.")
    ] = _DEFAULT.sm_count,
    format: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Turn a profiler's file into a trace, with SM activity estimated from its kernels, or OTLP spans."""
    with refusing():
        found = import_trace(file, output, ImportSettings(iteration, resolution_ns, sm_count))
    if format is Format.JSON:
        print(json.dumps(asdict(found)))
        return
    show(output, found)
    for note in found.activity["notes"]:
        print(f"note      {note}")
