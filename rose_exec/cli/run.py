"""`rose-exec run`: run a script with a plan."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from rose_exec import environment
from rose_exec.replay import Replay
from rose_opt.plan import PlanError, PlanRefused


def run(
    context: typer.Context,
    plan: Annotated[Path, typer.Argument(help="The plan file.")],
    script: Annotated[Path, typer.Argument(help="The training script; its arguments follow.")],
) -> None:
    """Run SCRIPT as the main program, with PLAN.

    Args:
        context: Holds the script's own arguments.
        plan: The plan file.
        script: The script.

    Raises:
        Exit: With status 3 where the plan cannot be used.
    """
    try:
        Replay(plan)
    except (PlanError, PlanRefused) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(3) from None
    os.environ[environment.PLAN_VARIABLE] = str(plan)
    sys.argv = [str(script), *context.args]
    sys.path.insert(0, str(script.resolve().parent))
    environment.install()
    runpy.run_path(str(script), run_name="__main__")
