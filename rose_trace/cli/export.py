"""`rose-trace export`: a trace as a file of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rose_trace.cli.output import refusing
from rose_trace.interop.export import ExportFormat, export_trace


def export(
    trace: Annotated[Path, typer.Argument(help="The trace file.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Where to write: .pftrace, .json, .otlp.json or .pb, gzipped where .gz follows.",
        ),
    ],
    format: Annotated[
        ExportFormat | None, typer.Option("--format", help="As what, whatever the name ends in.")
    ] = None,
) -> None:
    """Write a trace for Perfetto, chrome://tracing, or what takes OpenTelemetry."""
    with refusing():
        done = export_trace(trace, output, format)
    if not done.info.complete:
        typer.echo(
            f"{trace}: expected a complete trace, got one that lost rows ({'; '.join(done.info.reasons)}). "
            "What is left of it was exported.",
            err=True,
        )
    typer.echo(f"written   {output}")
    typer.echo(f"format    {done.format.value}")
    typer.echo(f"spans     {done.spans}")
    if done.format in {ExportFormat.PERFETTO, ExportFormat.CHROME}:
        label = ", an estimate" if done.info.activity.get("estimate") else ""
        typer.echo(f"activity  {done.samples} samples{label}")
        typer.echo(f"flows     {done.flows}")
    elif done.left_out:
        typer.echo(
            f"left out  {done.left_out} data references and states that fit into no attribute"
        )
