"""`rose-exec`: run a program with a plan, and check that a plan fits a program."""

from __future__ import annotations

import typer

from rose_exec.cli.check import check
from rose_exec.cli.mps import mps
from rose_exec.cli.run import run

app = typer.Typer(
    name="rose-exec", no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)
app.command()(check)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(run)
app.add_typer(mps, name="mps")
