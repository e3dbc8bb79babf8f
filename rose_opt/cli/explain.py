"""``rose-opt explain``: a plan in words, with everything that was refused and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rose_opt.cli.refusal import Format, refusing
from rose_opt.explain import explain as explain_plan
from rose_opt.plan import Plan, PlanError, PlanRefused, verify


def explain(
    plan: Annotated[Path, typer.Argument(help="Plan file, e.g. plan.json.")],
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TEXT,
) -> None:
    """Tell what a plan does, what else was considered, and what was refused."""
    with refusing(PlanError, PlanRefused):
        loaded = Plan.load(plan)
        verify(loaded)
    if format is Format.JSON:
        typer.echo(loaded.to_json(), nl=False)
    else:
        typer.echo(explain_plan(loaded))
