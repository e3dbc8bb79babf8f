"""``rose-opt report``: a recording, or two, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rose_opt.cli.refusal import refusing, tell_gaps
from rose_opt.facts import FactsError
from rose_opt.plan import Plan, PlanError
from rose_trace.parquet import TraceError


def report(
    trace: Annotated[Path, typer.Argument(help="Recorded trace, e.g. of the native run.")],
    planned: Annotated[
        Path | None, typer.Argument(help="Trace of the same program run with a plan.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="The plan, e.g. plan.json.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path(
        "report.html"
    ),
    iteration: Annotated[
        int | None,
        typer.Option(
            min=0, help="Iteration to draw, from 0; by default the one nearest to the median."
        ),
    ] = None,
) -> None:
    """Show timeline, activity, windows and plan on one page that needs no network."""
    # Bokeh takes a second to load, which the other commands do without.
    from rose_opt.report import ReportError, read_recorded, report_html

    with refusing(FactsError, TraceError, PlanError, ReportError):
        chosen = None if plan is None else Plan.load(plan)
        before = read_recorded(trace, iteration)
        after = None if planned is None else read_recorded(planned, iteration)
        page = report_html(before, after, chosen)
        tell_gaps(*filter(None, (trace, planned)))
    with refusing(OSError):
        output.write_text(page, encoding="utf-8")
    typer.echo(f"{output}: {len(page.encode()) / 1e6:.1f} MB, open it in a browser")
