"""`rose-exec check`: whether a plan is legal and fits the code that is about to run."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rose_exec import code
from rose_opt.plan import Plan, PlanError, PlanRefused, verify


def check(
    plan: Annotated[Path, typer.Argument(help="The plan file.")],
    module: Annotated[
        list[str] | None, typer.Argument(help="Modules that define the program's nodes.")
    ] = None,
) -> None:
    """Check a plan: legality, and fingerprints of the nodes that MODULE defines.

    Args:
        plan: The plan file.
        module: Modules to import first.

    Raises:
        Exit: With status 3 where the plan cannot be used.
    """
    sys.path.insert(0, os.getcwd())
    try:
        for name in module or ():
            importlib.import_module(name)
        loaded = Plan.load(plan)
        code.check(loaded, complete=False)
        verify(loaded, functools.partial(code.accesses, loaded))
    except (PlanError, PlanRefused, ImportError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(3) from None
    found = sum(code.definition(node.key) is not None for node in loaded.nodes if node.key)
    total = sum(bool(node.key) for node in loaded.nodes)
    print(f"{plan}: legal; {found} of {total} nodes checked against the code.")
