from __future__ import annotations

from pathlib import Path

import pytest

from rose_opt.report.recorded import read_recorded
from rose_opt.report.samples import MOST_DRAWN, DeviceSamples, drawn, read_samples, share_below
from tests.rose_opt.facts.factory import Recording
from tests.rose_opt.facts.programs import ppo
from tests.rose_opt.report.recordings import last_ns, stretched


def sampled(path: Path, *samples: tuple[int, int, float], source: str = "pm-sampling") -> Path:
    """PPO of 288 ms, the second iteration from 144 ms on, with samples in ms."""
    recording = stretched(ppo(Recording()))
    for start, end, value in samples:
        recording.sample(start * 1_000_000, end * 1_000_000, value, source)
    return recording.write(path)


def read(path: Path) -> tuple[DeviceSamples, ...]:
    activity = read_recorded(path).facts.activity
    assert activity is not None
    return read_samples(path, activity)


def test_share_counts_only_time_in_iterations_that_count(tmp_path: Path) -> None:
    recording = stretched(ppo(Recording()))
    half = last_ns(recording) // 2
    recording.sample(0, half, 0.1)  # warm-up
    recording.sample(half, half + half // 4, 0.49)
    recording.sample(half + half // 4, 4 * half, 0.5)  # beyond the end too
    path = recording.write(tmp_path / "trace.parquet")
    share = share_below(read(path), read_recorded(path).used)
    assert share == pytest.approx(0.25, abs=1e-6)


def test_share_is_unknown_where_nothing_was_sampled(tmp_path: Path) -> None:
    path = sampled(tmp_path / "trace.parquet", (0, 10, 0.5))
    assert share_below(read(path), read_recorded(path).used) is None


def test_overlapping_samples_are_cut_at_the_next_one(tmp_path: Path) -> None:
    (device,) = read(sampled(tmp_path / "t.parquet", (150, 170, 1.0), (160, 180, 0.0)))
    assert list(device.end_ns - device.start_ns) == [10_000_000, 20_000_000]


def test_other_sources_are_left_out(tmp_path: Path) -> None:
    recording = stretched(ppo(Recording()))
    recording.sample(0, last_ns(recording), 0.5)
    recording.sample(0, last_ns(recording), 0.9, source="cpu", device="cpu")
    (device,) = read(recording.write(tmp_path / "trace.parquet"))
    assert (device.device, list(device.activity)) == ("cuda:0", [0.5])


def test_drawn_values_are_no_finer_than_the_counter_behind_the_source(tmp_path: Path) -> None:
    """GPM counters refresh every 100 ms, however often they are read."""
    fine = [(n, n + 10, (n % 20) / 10) for n in range(0, 280, 10)]
    path = sampled(tmp_path / "trace.parquet", *fine, source="gpm")
    recorded = read_recorded(path)
    shown = drawn(recorded, read(path))
    assert shown is not None
    assert shown.step_ns == 100_000_000
    assert len(shown.devices[0].activity) == 2
    assert shown.devices[0].activity[0] == pytest.approx(0.5, abs=0.05)


def test_many_samples_are_averaged_and_no_time_is_lost(tmp_path: Path) -> None:
    recording = stretched(ppo(Recording(), iterations=1))
    step_ns = last_ns(recording) // 5_000
    for n in range(5_000):
        recording.sample(n * step_ns, (n + 1) * step_ns, n % 2)
    path = recording.write(tmp_path / "trace.parquet")
    raw = read(path)
    shown = drawn(read_recorded(path), raw)
    assert shown is not None
    (device,) = shown.devices
    assert len(device.activity) <= MOST_DRAWN + 1
    assert (device.end_ns - device.start_ns).sum() == 5_000 * step_ns
    assert device.activity.mean() == pytest.approx(0.5, abs=0.02)
