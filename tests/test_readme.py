"""The program in the README runs, and gives the same numbers with a plan."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_shows_the_quickstart() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert shown == [PROGRAM.read_text()]


def test_quickstart_gives_the_same_numbers_recorded_and_planned(tmp_path: Path) -> None:
    native = run(tmp_path, str(PROGRAM))
    assert run(tmp_path, str(PROGRAM), ROSE_TRACE="trace.parquet") == native
    cli = "from rose_opt.cli import app; app()"
    run(tmp_path, "-c", cli, "plan", "trace.parquet", "-o", "plan.json", "--cores", "2")
    assert run(tmp_path, str(PROGRAM), ROSE_PLAN="plan.json") == native


def test_heights_rise(tmp_path: Path) -> None:
    lines = [eval(line) for line in run(tmp_path, str(PROGRAM)).splitlines()]
    assert lines[-1][-1] == pytest.approx(max(max(line) for line in lines), rel=0.05)
    assert lines[-1][-1] > lines[0][0] + 0.1
