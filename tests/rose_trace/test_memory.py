"""What a trace tells of memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rose_trace as rose
from rose_trace import memory
from rose_trace.memory import read_memory, together
from rose_trace.parquet import read_metadata


def test_a_process_tells_its_peak_and_what_there_is() -> None:
    before = read_memory()
    assert 0 < before["host_peak_bytes"] < before["host_bytes"]
    held = np.ones(before["host_peak_bytes"] // 8 + (64 << 17))  # more than it ever had
    assert read_memory()["host_peak_bytes"] >= held.nbytes


def test_a_container_has_what_its_group_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    monkeypatch.setattr(memory, "CGROUP_LIMIT", limit)
    assert read_memory()["host_bytes"] == 1 << 20
    limit.write_text("max\n")
    assert read_memory()["host_bytes"] > 1 << 20


def test_processes_of_one_machine_add_up() -> None:
    one = {"host_bytes": 8, "host_peak_bytes": 2, "gpu_bytes": 5, "gpu_peak_bytes": 3}
    two = {"host_bytes": 8, "host_peak_bytes": 1, "gpu_bytes": 4, "gpu_peak_bytes": 4}
    assert together([one, two]) == {
        "host_bytes": 8,
        "host_peak_bytes": 3,
        "gpu_bytes": 4,
        "gpu_peak_bytes": 4,
    }
    assert together([]) == {}


def test_a_trace_tells_it(tmp_path: Path) -> None:
    @rose.node
    def work() -> None:
        pass

    with rose.record(tmp_path / "t.parquet", activity="none"):
        work()
    told = read_metadata(tmp_path / "t.parquet").memory
    assert 0 < told["host_peak_bytes"] < told["host_bytes"]
