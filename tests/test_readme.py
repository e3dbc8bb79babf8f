"""The program in the README runs, and gives the same numbers with a plan."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rose_opt.cli import app
from rose_opt.plan import Plan

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "docs" / "examples" / "quickstart.py"


def run(folder: Path, *command: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_shows_the_quickstart() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert shown == [PROGRAM.read_text()]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the program prints, as it stands there."""
    return run(tmp_path_factory.mktemp("native"), str(PROGRAM))


@pytest.mark.parametrize("rows", [256, pytest.param(4096, marks=pytest.mark.slow)])
def test_quickstart_gives_the_same_numbers_recorded_and_planned(tmp_path: Path, rows: int) -> None:
    program = tmp_path / "quickstart.py"
    program.write_text(PROGRAM.read_text().replace("ROWS = 4096", f"ROWS = {rows}"))
    native = run(tmp_path, str(program))
    assert run(tmp_path, str(program), ROSE_TRACE="trace.parquet") == native
    trace, file = tmp_path / "trace.parquet", tmp_path / "plan.json"
    done = CliRunner().invoke(app, ["plan", str(trace), "-o", str(file), "--cores", "2"])
    assert done.exit_code == 0, done.output
    assert Plan.load(file).transforms
    assert run(tmp_path, str(program), ROSE_PLAN="plan.json") == native


def test_heights_rise(printed: str) -> None:
    lines = [eval(line) for line in printed.splitlines()]
    assert lines[-1][-1] == pytest.approx(max(max(line) for line in lines), rel=0.05)
    assert lines[-1][-1] > lines[0][0] + 0.1
