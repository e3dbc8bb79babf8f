"""The PM sampler's real process, with a CUPTI and a torch that the test puts in its place."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from rose_trace.activity import devices
from rose_trace.activity.pm_sampling import PATH_VARIABLE, PmSampling

CUPTI = """
import enum, os, time

class TriggerMode(enum.Enum):
    GPU_TIME_INTERVAL = 0
    GPU_SYSCLK_INTERVAL = 1

class Sample:
    def __init__(self, start, value):
        self.start_timestamp, self.end_timestamp, self.metric_values = start, start + 1_000_000, [value]

class Collector:
    made = 0

    def __init__(self, index):
        Collector.made += 1
        assert Collector.made == 1, "a second collector in one process crashes"
        self.index = index

    def enable(self):
        if os.environ.get("TEST_DENIED"):
            raise PermissionError("expected the profiling permission")

    def configure(self, *, metrics, hardware_buffer_size, sampling_interval, trigger_mode):
        if self.index and trigger_mode is TriggerMode.GPU_TIME_INTERVAL:
            raise ValueError("not on this device")
        assert sampling_interval == 1_000_000
        assert metrics == ["sm__cycles_active.avg.pct_of_peak_sustained_elapsed"]

    def start(self):
        self.first = True

    def decode(self):
        if os.environ.get("TEST_DIES"):
            raise MemoryError("a buffer is full")
        samples = [Sample(time.time_ns(), 10.0 * (self.index + 1)), Sample(time.time_ns(), 400.0)]
        if self.first:
            samples.insert(0, Sample(0, 50.0))
        self.first = False
        return samples

    def stop(self):
        pass

    def disable(self):
        pass
"""
TORCH = """
import os
assert not any(name.startswith("CUDA_MPS_") for name in os.environ)

class cuda:
    init = staticmethod(lambda: None)
"""


@pytest.fixture(autouse=True)
def cupti(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cupti").mkdir()
    (tmp_path / "cupti" / "__init__.py").touch()
    (tmp_path / "cupti" / "pm_sampling.py").write_text(CUPTI)
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere")
    monkeypatch.setattr(devices, "missing", lambda: None)
    monkeypatch.setattr(devices, "visible", lambda: [("cuda:0", None), ("cuda:1", None)])


def test_every_visible_gpu_is_sampled() -> None:
    samples: list[tuple[str, str, int, int, float, bool]] = []
    both = threading.Event()

    def write(sample: tuple[str, str, int, int, float, bool]) -> None:
        samples.append(sample)
        if {device for _, device, *_ in samples} == {"cuda:0", "cuda:1"}:
            both.set()

    assert PmSampling.unavailable() is None
    source = PmSampling()
    source.start(write)
    assert both.wait(30)
    source.stop()
    shares = {(device, round(share, 3)) for _, device, _, _, share, _ in samples}
    assert shares == {("cuda:0", 0.1), ("cuda:1", 0.2), ("cuda:0", 1.0), ("cuda:1", 1.0)}
    assert all(end - start == 1_000_000 for _, _, start, end, _, _ in samples)


def test_without_permission_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_DENIED", "1")
    assert PmSampling.unavailable() == "PermissionError: expected the profiling permission"
    with pytest.raises(RuntimeError, match="PM sampling: expected a running sampler, got: "):
        PmSampling().start(lambda _: None)


def test_without_cupti_it_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PATH_VARIABLE)
    monkeypatch.setitem(sys.modules, "cupti", None)  # as good as not installed
    assert PmSampling.unavailable() == (
        "cupti-python is not installed (set ROSE_CUPTI_PATH where it is installed elsewhere)"
    )


def test_a_sampler_that_dies_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TEST_DIES", "1")
    source = PmSampling()
    source.start(lambda _: None)
    source.stop()
    assert "got: MemoryError: a buffer is full. Samples end early." in caplog.text
