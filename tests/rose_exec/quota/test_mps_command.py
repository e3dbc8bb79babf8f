"""`rose-exec mps`: start prints what clients need, status tells, stop ends; refusals are status 3."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rose_exec.cli import app
from rose_exec.quota.mps import PID_FILE


def mps(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["mps", *arguments])


def test_start_status_stop(
    control: Callable[..., None], ended: Callable[[int], None], tmp_path: Path
) -> None:
    control()
    place = tmp_path / "my daemon"
    at = ("--directory", str(place))
    started = mps("start", *at)
    assert started.exit_code == 0, started.output
    assert started.stdout.splitlines() == [
        f"export CUDA_MPS_PIPE_DIRECTORY='{place}/pipe'",
        f"export CUDA_MPS_LOG_DIRECTORY='{place}/log'",
    ]
    pid = int((place / "pipe" / PID_FILE).read_text())
    again = mps("start", *at)
    assert (again.exit_code, again.stdout) == (3, "")
    assert "got a running one" in again.stderr
    assert mps("status", *at).stdout == (
        f"{place}/pipe: running; servers (4711,), clients (10, 11).\n"
    )
    told = json.loads(mps("status", *at, "--format", "json").stdout)
    assert told == {"running": True, "servers": [4711], "clients": [10, 11], "detail": ""}
    assert mps("stop", *at).stdout == f"{place}/pipe: stopped.\n"
    ended(pid)
    for command in ("stop", "status"):
        refused = mps(command, *at)
        assert refused.exit_code == 3
        assert "MPS: expected an answer to 'get_server_list'" in refused.stderr
    assert json.loads(mps("status", *at, "--format", "json").stdout)["running"] is False


def test_no_mps_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = mps("start", "--directory", str(tmp_path / "mps"))
    assert refused.exit_code == 3
    assert refused.stderr == (
        "MPS: expected nvidia-cuda-mps-control on the PATH, got none. Install the NVIDIA driver's tools.\n"
    )


def test_an_unknown_format_is_a_usage_error() -> None:
    assert mps("status", "--format", "yaml").exit_code == 2
