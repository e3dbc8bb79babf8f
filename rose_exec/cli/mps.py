"""`rose-exec mps`: the daemon that lets processes share a GPU."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rose_exec.quota.mps import MpsDaemon, MpsError

mps = typer.Typer(no_args_is_help=True, help=__doc__)

_Directory = Annotated[
    Path | None,
    typer.Option(
        help="Where its pipes and logs are; a private place under the temporary directory."
    ),
]
_Format = Annotated[str, typer.Option("--format", help="text or json.")]


def _daemon(directory: Path | None) -> MpsDaemon:
    return MpsDaemon.at(directory or Path(tempfile.gettempdir()) / f"rose-mps-{os.getuid()}")


@mps.command()
def start(directory: _Directory = None) -> None:
    """Start a daemon, and print the variables that make a process its client.

    Args:
        directory: Where its pipes and logs are.

    Raises:
        Exit: With status 3 where it cannot be started.
    """
    daemon = _daemon(directory)
    try:
        daemon.start()
    except MpsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(3) from None
    for name, value in daemon.environment().items():
        print(f"export {name}={shlex.quote(value)}")


@mps.command()
def stop(directory: _Directory = None) -> None:
    """Stop a daemon.

    Args:
        directory: Where its pipes and logs are.

    Raises:
        Exit: With status 3 where none runs.
    """
    daemon = _daemon(directory)
    status = daemon.status()
    if not status.running:
        typer.echo(status.detail, err=True)
        raise typer.Exit(3)
    daemon.stop()
    print(f"{daemon.pipe}: stopped.")


@mps.command()
def status(directory: _Directory = None, format: _Format = "text") -> None:
    """Say whether a daemon runs, and who uses it.

    Args:
        directory: Where its pipes and logs are.
        format: text or json.

    Raises:
        Exit: With status 3 where none runs.
        BadParameter: If the format is unknown.
    """
    if format not in ("text", "json"):
        raise typer.BadParameter(f"expected text or json, got {format!r}.", param_hint="--format")
    daemon = _daemon(directory)
    found = daemon.status()
    if format == "json":
        print(json.dumps(asdict(found)))
    elif found.running:
        print(f"{daemon.pipe}: running; servers {found.servers}, clients {found.clients}.")
    if not found.running:
        if format == "text":
            typer.echo(found.detail, err=True)
        raise typer.Exit(3)
