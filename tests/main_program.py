"""A script as the main program of this process: what it prints, natively and with a plan."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from rose_exec.cli import app
from rose_exec.environment import PLAN_VARIABLE
from rose_trace import hooks
from rose_trace.component import program


def run_natively(script: Path, *arguments: str) -> str:
    """Run a script as `python script arguments` does."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, program(), contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [str(script), *arguments])
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue()


def run_planned(plan: Path, script: Path, *arguments: str) -> str:
    """Run a script by `rose-exec run plan script arguments`; what ends with the process ends here."""
    at_exit: list[Callable[[], None]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rose_exec.environment.atexit", SimpleNamespace(register=at_exit.append))
        patch.setenv(PLAN_VARIABLE, "")
        patch.setattr(sys, "argv", sys.argv)
        patch.setattr(sys, "path", [*sys.path])
        try:
            done = CliRunner().invoke(
                app, ["run", str(plan), str(script), *arguments], catch_exceptions=False
            )
        finally:
            hooks.install_executor(None)
            for close in at_exit:
                close()
    assert done.exit_code == 0, done.output
    assert at_exit, "the plan was not used"
    return done.stdout
