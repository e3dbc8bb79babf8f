"""Kernel records in windows: a profiler of the test's own, the real reading process."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rose_trace import activity
from rose_trace.activity import Known
from rose_trace.activity.cpu import CpuUtilisation
from rose_trace.activity.kernel_reader import samples as estimated
from rose_trace.activity.kernels import Kernels

Sample = tuple[str, str, int, int, float, bool]
SMS = {0: 100, 1: 50}


def kernel(start_ns: int, end_ns: int, blocks: int, device: int = 0) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": device,
        "tid": 7,
        "ts": start_ns / 1_000,
        "dur": (end_ns - start_ns) / 1_000,
        "args": {"device": device, "stream": 7, "grid": [blocks, 1, 1], "block": [128, 1, 1]},
    }


class Windows:
    """Every window is filled by one kernel of 25 blocks on device 0.

    Args:
        after: How often `ready` says that CUDA is not in use yet.
        enough: Windows after which `done` is set.
    """

    def __init__(self, after: int = 0, enough: int = 3) -> None:
        self.after = after
        self.enough = enough
        self.done = threading.Event()
        self.stopped = 0
        self.begin = 0
        self.asked = 0

    def ready(self) -> dict[int, int] | None:
        self.asked += 1
        return SMS if self.asked > self.after else None

    def start(self) -> None:
        self.begin = time.time_ns()

    def stop(self, file: Path) -> None:
        begin = self.begin - 10**9  # what is left over from before the window counts for its part
        base = begin // 1_000 * 1_000
        event = kernel(begin - base, time.time_ns() + 10**9 - base, 25)
        file.write_text(
            json.dumps({"baseTimeNanoseconds": base, "schemaVersion": 1, "traceEvents": [event]})
        )
        self.stopped += 1
        if self.stopped == self.enough:
            self.done.set()


def run(windows: Windows) -> list[Sample]:
    found: list[Sample] = []
    source = Kernels(window_seconds=0.02, window=windows)
    source.start(found.append)
    assert windows.done.wait(30)
    source.stop()
    return found


def test_windows_become_samples_of_every_device() -> None:
    windows = Windows()
    found = run(windows)
    assert {(source, device, estimate) for source, device, *_, estimate in found} == {
        ("kernels", "cuda:0", True),
        ("kernels", "cuda:1", True),
    }
    for device, share in (("cuda:0", 0.25), ("cuda:1", 0.0)):
        mine = [sample for sample in found if sample[1] == device]
        assert all(sample[4] == pytest.approx(share, abs=1e-6) for sample in mine)
        assert all(end - start <= 1_000_000 for _, _, start, end, _, _ in mine)
        assert all(a[3] <= b[2] for a, b in itertools.pairwise(mine))
        assert sum(end - start for _, _, start, end, _, _ in mine) >= 2 * 20_000_000


def test_it_waits_until_the_program_uses_cuda() -> None:
    windows = Windows(after=2, enough=1)
    assert run(windows)
    assert windows.asked == 3


def test_a_program_that_never_uses_cuda_has_no_samples() -> None:
    found: list[Sample] = []
    windows = Windows(after=10**9)
    source = Kernels(window=windows)
    source.start(found.append)
    source.stop()
    assert found == []
    assert windows.stopped == 0


def test_a_profiler_that_fails_ends_the_samples_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Windows):
        def start(self) -> None:
            self.done.set()
            raise RuntimeError("another profiler is running")

    assert run(Broken()) == []
    assert "another profiler is running" in caplog.text


def test_overlapping_kernels_count_up_to_the_whole_device(tmp_path: Path) -> None:
    file = tmp_path / "window.json"
    base = 1_700_000_000_000_000_000
    events = [
        kernel(0, 2_000_000, 50),
        kernel(1_000_000, 2_000_000, 80),
        kernel(2_000_000, 2_500_000, 10, device=1),
        kernel(0, 4_000_000, 10, device=5),  # not a device of this process
    ]
    file.write_text(
        json.dumps({"baseTimeNanoseconds": base, "schemaVersion": 1, "traceEvents": events})
    )
    found = list(estimated(file, (base, base + 4_000_000), SMS, 1_000_000))
    assert [(device, round(share, 6)) for _, device, _, _, share, _ in found] == [
        ("cuda:0", 0.5),
        ("cuda:0", 1.0),
        ("cuda:0", 0.0),
        ("cuda:0", 0.0),
        ("cuda:1", 0.0),
        ("cuda:1", 0.0),
        ("cuda:1", 0.1),
        ("cuda:1", 0.0),
    ]


def test_nothing_finer_than_a_millisecond_is_offered() -> None:
    with pytest.raises(ValueError, match="expected at least 1000000, got less"):
        Kernels(resolution_ns=100_000)


def test_auto_passes_it_over_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Known("kernels", lambda: None, Kernels, only_asked="used only when asked for")
    monkeypatch.setattr(activity, "SOURCES", (asked, Known("cpu", lambda: None, CpuUtilisation)))
    source, about = activity.choose("auto")
    assert isinstance(source, CpuUtilisation)
    assert about["rejected"] == {"kernels": "used only when asked for"}
    source, about = activity.choose("kernels")
    assert isinstance(source, Kernels)
    assert (about["source"], about["estimate"], about["resolution_ns"]) == (
        "kernels",
        True,
        1_000_000,
    )
