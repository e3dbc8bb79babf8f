"""The program in the README runs, and gives the same numbers with a plan."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rose_trace as rose
from rose_opt.cli import app
from rose_opt.plan import Plan
from tests.main_program import run_natively, run_planned

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


def written(folder: Path, rows: int) -> Path:
    """The program with another number of pendulums."""
    path = folder / "quickstart.py"
    path.write_text(PROGRAM.read_text().replace("ROWS = 4096", f"ROWS = {rows}"))
    return path


def planned(trace: Path) -> Path:
    """A plan that changes something, made from a trace by the command in the README."""
    file = trace.with_name("plan.json")
    done = CliRunner().invoke(app, ["plan", str(trace), "-o", str(file), "--cores", "2"])
    assert done.exit_code == 0, done.output
    assert Plan.load(file).transforms
    return file


def test_readme_shows_the_quickstart() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert shown == [PROGRAM.read_text()]


def test_heights_rise(tmp_path: Path) -> None:
    """The program as it stands there, in a process of its own."""
    lines = [eval(line) for line in run(tmp_path, str(PROGRAM)).splitlines()]
    assert lines[-1][-1] == pytest.approx(max(max(line) for line in lines), rel=0.05)
    assert lines[-1][-1] > lines[0][0] + 0.1


@pytest.mark.usefixtures("workers_from_a_clean_process")
def test_quickstart_gives_the_same_numbers_recorded_and_planned(tmp_path: Path) -> None:
    script = written(tmp_path, rows=256)
    native = run_natively(script)
    trace = tmp_path / "trace.parquet"
    with rose.record(trace):
        assert run_natively(script) == native
    assert run_planned(planned(trace), script) == native


@pytest.mark.slow
def test_quickstart_gives_the_same_numbers_with_variables_alone(tmp_path: Path) -> None:
    """The README's commands: each run a process, whose workers are spawned."""
    script = written(tmp_path, rows=4096)
    native = run(tmp_path, str(script))
    assert run(tmp_path, str(script), ROSE_TRACE="trace.parquet") == native
    plan = planned(tmp_path / "trace.parquet")
    assert run(tmp_path, str(script), ROSE_PLAN=str(plan)) == native
