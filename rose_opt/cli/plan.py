"""``rose-opt plan``: what may overlap and what should, as a plan file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rose_opt.cli.refusal import Format, refusing, tell_gaps
from rose_opt.facts import FactsError, FactsSettings, build_facts
from rose_opt.plan import PlanError, PlanRefused
from rose_opt.settings import Memory, PlanSettings
from rose_trace.parquet import TraceError

_DEFAULT = PlanSettings()


def plan(
    trace: Annotated[Path, typer.Argument(help="Recorded trace, e.g. trace.parquet.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the plan.")
    ] = None,
    cores: Annotated[
        float | None, typer.Option(help="CPU cores to plan for; by default this machine's.")
    ] = None,
    max_groups: Annotated[
        int, typer.Option(min=2, help="Most groups of a split.")
    ] = _DEFAULT.max_groups,
    min_gain: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.99, help="Predicted gain below which the native order is kept, epsilon."
        ),
    ] = _DEFAULT.min_gain,
    bits: Annotated[
        Literal["exact", "any"],
        typer.Option(help="Refuse splits whose rows differ in bits, or accept reassociation."),
    ] = _DEFAULT.bits,
    dispatch_ns: Annotated[
        int, typer.Option(min=0, help="Cost of handing an invocation to a worker process, in ns.")
    ] = _DEFAULT.dispatch_ns,
    max_instances: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most whole instances of one component; chains of a loop have one each. By default as many "
            "as the recorded machine has room for.",
        ),
    ] = None,
    observed: Annotated[
        list[Path] | None,
        typer.Option(
            help="A trace of a planned run, from which contention is fitted; may be given several times. "
            "Overlap in the planned trace itself always counts."
        ),
    ] = None,
    transforms: Annotated[
        str | None,
        typer.Option(
            help="Use this composition instead of searching; it is still checked. E.g. "
            "'split-spatial{loop=iteration/rollout/interact groups=2},interleave{loop=…},merge{loop=…}'."
        ),
    ] = None,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Use a trace that lost rows.")
    ] = False,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TEXT,
) -> None:
    """Plan the overlap of a recorded program."""
    # The solver brings pandas: a second to load, which the other commands do without.
    from rose_opt.contention import measured_contention
    from rose_opt.explain import explain
    from rose_opt.optimize import plan as optimize

    with refusing(FactsError, TraceError, PlanError, PlanRefused, ValueError):
        settings = PlanSettings(
            cores,
            max_groups,
            min_gain,
            bits,
            dispatch_ns,
            transforms,
            memory=Memory(max_instances=max_instances),
        )
        facts = build_facts(trace, FactsSettings(allow_incomplete=allow_incomplete))
        contention = measured_contention(facts, (trace, *(observed or ())))
        made = optimize(facts, settings, contention)
        tell_gaps(trace, *(observed or ()))
    if output is not None:
        with refusing(OSError):
            made.save(output)
    typer.echo(made.to_json() if format is Format.JSON else explain(made), nl=format is Format.TEXT)
