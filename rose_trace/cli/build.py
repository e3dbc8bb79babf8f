"""`rose-trace build`: compile the recorder's native hot path, once."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rose_trace.cli.output import Format, refusing
from rose_trace.native import BuildError
from rose_trace.native import build as build_hot_path


def build(
    format: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Compile the recorder's hot path, which makes recording several times cheaper.

    Recordings of this user, this Python and this torch use it from then on; ROSE_NATIVE=0 keeps one in Python.
    """
    with refusing(BuildError, 4):
        made = build_hot_path()
    print(json.dumps({"library": str(made)}) if format is Format.JSON else f"built     {made}")
