from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rose_opt.cli import app
from tests.rose_opt.facts.factory import Recording

MS = 1_000_000


def causes(recording: Recording) -> Recording:
    """A policy of short kernels, a read of one value that waits, and a simulator on the CPU."""
    with recording.iteration():
        recording.node("policy.act", ns=20 * MS, pure=True)
        act = recording.rows[-1]
        recording.node("read[0]", ns=10 * MS, pure=True)
        read = recording.rows[-1]
        recording.node("train", ns=50 * MS, pure=True)
        recording.node("physics", ns=30 * MS, pure=True, cores=1.0)
    for n in range(1_000):
        recording.kernel(n * 20_000, 4_000, 264, act)
    recording.host_wait(20 * MS, 10 * MS, read)
    recording.kernel(30 * MS, 50 * MS, 264)
    for ms in range(110):
        activity = 0.2 if ms < 20 else 0.0 if ms < 30 else 1.0 if ms < 80 else 0.0
        recording.sample(ms * MS, (ms + 1) * MS, activity)
    return recording


def run(path: Path, *more: str) -> str:
    result = CliRunner().invoke(app, ["windows", str(path), *more])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_largest_windows_say_why_and_what_helps(tmp_path: Path):
    text = run(causes(Recording()).write(tmp_path / "trace.parquet"))
    table, _, why = text.partition("why, and what helps\n")
    assert [line.split()[:2] for line in table.splitlines() if " iteration/" in line] == [
        ["1", "iteration/physics"],
        ["2", "iteration/policy.act"],
        ["3", "iteration/read[0]"],
        ["-", "iteration/train"],
    ]
    assert "launch-bound" in table
    why, _, runs = why.partition("longest runs of samples below 50%")
    assert [line.rstrip() for line in why.splitlines()] == [
        "  iteration/physics",
        "    host-bound: 1.0 CPU cores busy with 2 threads allowed, device 0% active; no kernels launched",
        "    -> overlap it with 'train' (100% active, 50.0 ms an iteration), or spread it over processes",
        "  iteration/policy.act",
        "    launch-bound: 1,000 kernels a call of 4.0 us, one every 20.0 us; kernels run 20% of the time",
        "    -> capture a CUDA graph of it (graph=True in its @rose.node) or fuse its kernels; then overlap it "
        "with 'train' (100% active, 50.0 ms an iteration)",
        "  iteration/read[0]",
        "    waiting on a synchronisation: cudaStreamSynchronize takes 100% of it (1 waits a call)",
        "    -> wait later: launch what does not depend on it before cudaStreamSynchronize",
    ]
    assert "10.000 ms in cudaStreamSynchronize" in runs


def test_causes_are_in_the_json(tmp_path: Path):
    path = causes(Recording()).write(tmp_path / "trace.parquet")
    data: dict[str, Any] = json.loads(run(path, "--format", "json"))
    first, act, read, train = data["windows"]
    assert first["cause"]["kind"] == "host-bound"
    assert act["cause"]["evidence"]["kernels"] == 1_000
    assert act["cause"]["evidence"]["busy"] == pytest.approx(0.2)
    assert read["cause"]["evidence"]["sync_ns"] == 10 * MS
    assert train["cause"] is None
    assert (data["sample_windows"][0]["call"], data["sample_windows"][0]["call_ns"]) == (
        "cudaStreamSynchronize",
        10 * MS,
    )


def test_activity_says_how_it_was_attributed(tmp_path: Path):
    varied, constant = Recording(), Recording()
    for recording, steps in ((varied, (40, 90, 20, 130, 70, 160)), (constant, (50,))):
        level: list[float] = []
        with recording.iteration():
            for n in range(600):
                ms = steps[n % len(steps)]
                recording.node("act", ns=ms * MS, pure=True)
                recording.node("step", ns=50 * MS, pure=True)
                level += [0.75] * ms + [0.25] * 50
        for n in range(len(level) // 100):
            mean = sum(level[n * 100 : n * 100 + 100]) / 100
            recording.sample(n * 100 * MS, (n + 1) * 100 * MS, mean, source="gpm")
    text = run(varied.write(tmp_path / "varied.parquet"))
    assert "*75%" in text
    assert "*25%" in text
    assert "* calls last less than 10 samples" in text
    text = run(constant.write(tmp_path / "constant.parquet"))
    assert "~50%" in text
    assert "~ calls are shorter than the source resolves" in text
    assert "* calls" not in text
