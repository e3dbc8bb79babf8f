"""`rose-trace info`: what a trace holds and whether it is complete."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rose_trace.cli.output import Format, refusing
from rose_trace.parquet import TraceInfo, read_metadata

SHOWN = 4  # ours: paths of open invocations


def info(
    trace: Annotated[Path, typer.Argument(help="The trace file.")],
    format: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Say what a trace holds and whether it is complete."""
    with refusing():
        found = read_metadata(trace)
    if format is Format.JSON:
        print(json.dumps(asdict(found)))
    else:
        show(trace, found)


def show(trace: Path, found: TraceInfo) -> None:
    """Print a trace's metadata for people."""
    console = Console(highlight=False, markup=False)
    console.print(f"trace     {trace}", soft_wrap=True)
    console.print(f"run       {found.run}")
    console.print(f"version   {found.schema_version}")
    made = ", ".join(f"{name} {version}" for name, version in found.producer.items())
    console.print(f"made by   {made}", soft_wrap=True)
    console.print(f"complete  {'yes' if found.complete else 'no'}")
    for reason in found.reasons:
        console.print(f"          - {reason}", soft_wrap=True)
    if found.unfinished:
        console.print(
            f"open      {sum(found.unfinished.values())} invocations at the end, which have no row: "
            f"{_first(found.unfinished)}",
            soft_wrap=True,
        )
    if found.steps is not None:
        console.print(
            f"sampled   the first and last {found.steps} iterations of inner loops in full, sums of the others"
        )
    console.print(f"activity  {_activity(found)}", soft_wrap=True)
    table = Table("process", "pid", "spans", "activity", "lost", "end", box=None, pad_edge=False)
    for item in found.processes:
        end = "none" if item.expected is None else item.failure or "clean"
        rows = [str(item.rows.get(name, 0)) for name in ("spans", "activity")]
        table.add_row(Text(item.process), str(item.pid), *rows, str(item.lost), Text(end))
    console.print(table)


def _first(unfinished: dict[str, int]) -> str:
    """The first few of them by path."""
    told = [path if n == 1 else f"{n} of {path}" for path, n in unfinished.items()]
    more = f" and {len(told) - SHOWN} more paths" if len(told) > SHOWN else ""
    return ", ".join(told[:SHOWN]) + more


def _activity(found: TraceInfo) -> str:
    about = found.activity
    parts = [str(about.get("source", "none"))]
    if "resolution_ns" in about:
        parts.append(f"every {about['resolution_ns'] / 1e6:g} ms")
    if about.get("estimate"):
        parts.append("an estimate")
    parts += [f"not {name}: {reason}" for name, reason in about.get("rejected", {}).items()]
    return ", ".join(parts)
