"""``rose-opt graph``: the execution hierarchy of a recording, as text or as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rose_opt.cli.refusal import refusing, tell_gaps
from rose_opt.drawing import DrawnGraph, graph_svg, listing
from rose_opt.facts import FactsError, FactsSettings, build_facts
from rose_opt.plan import Plan, PlanError, PlanRefused
from rose_trace.parquet import TraceError

SVG, TEXT = ".svg", ".txt"


def graph(
    trace: Annotated[Path, typer.Argument(help="Recorded trace, e.g. trace.parquet.")],
    plan: Annotated[
        Path | None, typer.Option(help="Show the graph that this plan makes of the recorded one.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write: graph.svg, or graph.txt for text."),
    ] = None,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Use a trace that lost rows.")
    ] = False,
) -> None:
    """Show loops with their kinds, times, accesses, and the edges that keep the order.

    Raises:
        BadParameter: If the file to write is neither SVG nor text.
    """
    if output is not None and output.suffix not in (SVG, TEXT):
        raise typer.BadParameter(
            f"--output: expected a file that ends in {SVG} or {TEXT}, got {output.name}. Rename it."
        )
    with refusing(FactsError, TraceError, PlanError, PlanRefused):
        facts = build_facts(trace, FactsSettings(allow_incomplete=allow_incomplete))
        tell_gaps(trace)
        drawn = (
            DrawnGraph.recorded(facts)
            if plan is None
            else DrawnGraph.planned(facts, Plan.load(plan))
        )
    if output is None:
        typer.echo(listing(drawn))
        return
    text = graph_svg(drawn) if output.suffix == SVG else listing(drawn) + "\n"
    with refusing(OSError):
        output.write_text(text, encoding="utf-8")
    typer.echo(f"{output}: {len(drawn.graph.nodes)} nodes")
