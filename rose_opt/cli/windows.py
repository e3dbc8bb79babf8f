"""``rose-opt windows``: where the device idles while the program waits for one node."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rose_opt.cli.refusal import Format, refusing, tell_gaps
from rose_opt.facts import Facts, FactsError, FactsSettings, LowActivityWindow, build_facts
from rose_opt.facts.corun import COARSE_BELOW
from rose_opt.facts.windows import MIN_WINDOW_FRACTION, MIN_WINDOW_NS
from rose_trace.parquet import TraceError

SHOWN_CAUSES = 5  # ours
SHOWN_RUNS = 5  # ours
MIXED = "~"
SEPARATED = "*"
PIPE_WIDTH = 200  # ours: what is read by programs and files is not folded


def windows(
    trace: Annotated[Path, typer.Argument(help="Recorded trace, e.g. trace.parquet.")],
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TEXT,
    min_window_ns: Annotated[
        int, typer.Option(min=0, help="Shortest window per iteration, tau_a, in ns.")
    ] = MIN_WINDOW_NS,
    min_window_fraction: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Shortest window as part of the iteration, tau_r; passing either is enough.",
        ),
    ] = MIN_WINDOW_FRACTION,
    source: Annotated[
        str | None, typer.Option(help="Activity source; by default the best one recorded.")
    ] = None,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Use a trace that lost rows.")
    ] = False,
) -> None:
    """Rank the nodes during which the device has the most to give."""
    settings = FactsSettings(
        source=source,
        min_window_ns=min_window_ns,
        min_window_fraction=min_window_fraction,
        allow_incomplete=allow_incomplete,
    )
    with refusing(FactsError, TraceError):
        facts = build_facts(trace, settings)
        tell_gaps(trace)
    if format is Format.JSON:
        typer.echo(json.dumps(_data(facts), indent=2))
    else:
        _print(facts)


def _data(facts: Facts) -> dict[str, Any]:
    return {
        "iteration": asdict(facts.iteration),
        "sampling": None if facts.sampling is None else asdict(facts.sampling),
        "activity": None if facts.activity is None else asdict(facts.activity),
        "windows": [asdict(window) for window in facts.windows],
        "sample_windows": [asdict(window) for window in facts.sample_windows],
    }


def _print(facts: Facts) -> None:
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(soft_wrap=True, width=width, markup=False, highlight=False)
    iteration, activity = facts.iteration, facts.activity
    console.print(
        f"iteration {_ms(iteration.iteration_ns)} ms, of which {_ms(iteration.glue_ns)} ms glue "
        f"(median of {iteration.used})"
    )
    if facts.sampling is not None:
        console.print(f"nodes marked 'estimated' are {facts.sampling}")
    if activity is None:
        console.print("No activity samples beside the trace: record with an activity source.")
        return
    console.print(
        f"activity: {activity.meaning}, from {activity.source} on {', '.join(activity.devices)} "
        f"every {_ms(activity.resolution_ns)} ms{' (estimate)' if activity.estimate else ''}"
    )
    heads = (
        "rank",
        "node",
        "ms/iteration",
        "calls",
        "ms/call",
        "activity",
        "idle ms",
        "cause",
        "note",
    )
    table = Table(*heads, box=None, pad_edge=False)
    table.columns[1].overflow = "fold"  # a path is worth nothing without its end
    for column in table.columns[2:7]:
        column.justify = "right"
        column.no_wrap = True
    for window in facts.windows:
        table.add_row(*_row(window))
    console.print(table)
    marks = {_mark(window) for window in facts.windows if window.sm_activity is not None}
    if MIXED in marks:
        console.print(
            f"{MIXED} calls are shorter than the source resolves: their activity is mixed with that of "
            "their neighbours."
        )
    if SEPARATED in marks:
        console.print(
            f"{SEPARATED} calls last less than {COARSE_BELOW:.0f} samples: their activity is separated "
            "from that of their neighbours by regression on what ran together."
        )
    _print_causes(console, facts)
    _print_samples(console, facts)


def _print_causes(console: Console, facts: Facts) -> None:
    """Why the largest windows are there, in numbers, and what helps."""
    largest = sorted(
        (window for window in facts.windows if window.cause is not None),
        key=lambda window: (window.rank is None, window.rank or 0, -window.score, window.target),
    )[:SHOWN_CAUSES]
    if largest:
        console.print("why, and what helps")
    for window in largest:
        if window.cause is not None:
            console.print(f"  {window.target}")
            console.print(f"    {window.cause.kind}: {window.cause.text}")
            console.print(f"    -> {window.cause.advice}")


def _print_samples(console: Console, facts: Facts) -> None:
    """The longest runs of low samples: where to look first in a timeline."""
    if not facts.sample_windows:
        return
    start = min(window.start_ns for window in facts.sample_windows)
    console.print(f"longest runs of samples below 50%, of {len(facts.sample_windows)}")
    table = Table(
        "device", "at ms", "ms", "activity", "mostly in", "host waits", box=None, pad_edge=False
    )
    table.columns[4].overflow = "fold"
    for window in sorted(facts.sample_windows, key=lambda w: w.start_ns - w.end_ns)[:SHOWN_RUNS]:
        table.add_row(
            window.device,
            _ms(window.start_ns - start),
            _ms(window.end_ns - window.start_ns),
            f"{window.activity:.0%}",
            window.target or "(no recorded node)",
            f"{_ms(window.call_ns)} ms in {window.call}" if window.call else "",
        )
    console.print(table)


def _row(window: LowActivityWindow) -> tuple[str, ...]:
    known = window.sm_activity is not None
    return (
        "-" if window.rank is None else str(window.rank),
        window.target,
        _ms(window.total_ns),
        f"{window.calls:g}",
        _ms(window.mean_ns),
        f"{_mark(window)}{window.sm_activity:.0%}" if known else "-",
        _ms(window.score) if known else "-",
        "" if window.cause is None else window.cause.kind.value,
        (window.refused or ("below 50%" if window.tier == 0 else "below 80%"))
        + (", estimated" if window.estimated else ""),
    )


def _mark(window: LowActivityWindow) -> str:
    if window.separated:
        return SEPARATED
    return "" if window.resolved else MIXED


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.3f}"
