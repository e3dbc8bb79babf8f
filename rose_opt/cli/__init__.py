"""``rose-opt``: one command per file; a new command is one line here."""

from __future__ import annotations

import typer

from rose_opt.cli.windows import windows

app = typer.Typer(
    name="rose-opt",
    help="What may overlap in a recorded program, what should, and what was refused and why.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def main() -> None:
    """Keep command names even while there is only one command."""


app.command()(windows)
