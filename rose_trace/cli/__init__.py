"""`rose-trace`: what a trace holds, how to get one back after a kill, and how to record cheaply."""

from __future__ import annotations

import typer

from rose_trace.cli.build import build
from rose_trace.cli.export import export
from rose_trace.cli.import_ import import_
from rose_trace.cli.info import info
from rose_trace.cli.recover import recover

app = typer.Typer(
    name="rose-trace", no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)
app.command()(build)
app.command()(export)
app.command("import")(import_)
app.command()(info)
app.command()(recover)
