"""Tuning searches the percentage of a worker process under a real daemon, and trains with what changes no result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rose_exec.quota.mps import daemon

pytestmark = [pytest.mark.mps, pytest.mark.filterwarnings("default")]

TIMEOUT_S = 240.0


@pytest.mark.parametrize("work", ["elements", "products"])
def test_the_percentage_of_a_worker_is_searched(work: str) -> None:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with daemon() as running:
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu.percent_client", work],
            cwd=root,
            env=os.environ | running.environment() | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    assert told["same"]  # whatever was tried, and whatever libraries make of fewer SMs
    sms = dict(told["levels"])
    assert len(set(sms.values())) == len(sms)
    assert set(told["sms"]) <= set(sms.values())
    for text in told["refused"].values():
        assert "with workers at their percentages: expected what it comes to natively" in text
    if work == "elements":
        assert not told["refused"]
        assert told["percent"] == [60]  # what the test's clock likes best
        assert sms[60] in told["sms"]
    else:
        assert told["percent"][0] in {0, *told["measured"]}
