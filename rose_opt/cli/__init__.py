"""``rose-opt``: one command per file; a new command is one line here."""

from __future__ import annotations

import typer

from rose_opt.cli.explain import explain
from rose_opt.cli.graph import graph
from rose_opt.cli.plan import plan
from rose_opt.cli.report import report
from rose_opt.cli.sql import sql
from rose_opt.cli.verify import verify
from rose_opt.cli.windows import windows

app = typer.Typer(
    name="rose-opt",
    help="What may overlap in a recorded program, what should, and what was refused and why.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


app.command()(windows)
app.command()(plan)
app.command()(explain)
app.command()(verify)
app.command()(sql)
app.command()(report)
app.command()(graph)
