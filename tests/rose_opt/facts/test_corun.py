from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_opt.facts import build_facts
from rose_opt.facts.activity import Activity
from rose_opt.facts.corun import Occupancy, solve_sets
from tests.properties import examples
from tests.rose_opt.facts.factory import Recording

MS = 1_000_000
ALONE = {"prefill": 1.0, "denoise": 0.35, "step": 0.2}


def samples_of(timeline: dict[str, np.ndarray[Any, Any]], length_ms: int, every_ms: int) -> Any:
    """Mean activity of each sample, from which nodes run in each millisecond (together: their sum)."""
    level = np.zeros(length_ms)
    for name, running in timeline.items():
        level += ALONE[name] * running
    level = np.minimum(level, 1.0)
    return level.reshape(-1, every_ms).mean(axis=1), level


def two_processes(
    recording: Recording, seed: int = 0, seconds: int = 60, every_ms: int = 100
) -> tuple[dict[str, float], dict[str, float]]:
    """A policy and a simulator on one device, with phases of 0.2 to 0.3 s that vary by a fifth.

    Returns:
        By node, the true mean activity over its time, and the one that samples of 100 ms show.
    """
    random = np.random.default_rng(seed)
    length_ms = seconds * 1_000
    timeline = {name: np.zeros(length_ms) for name in ALONE}
    for process, phases in (
        ("main", {"prefill": 300, "denoise": 200}),
        ("worker", {"step": 250}),
    ):
        recording.process, recording.now_ns = process, 0
        with recording.iteration():
            now = 0
            while now < length_ms - 1_000:
                for name, ms in phases.items():
                    last = now + int(ms * random.uniform(0.8, 1.2))
                    recording.now_ns = now * MS
                    recording.node(name, ns=(last - now) * MS, pure=True)
                    timeline[name][now:last] = 1.0
                    now = last + int(random.integers(0, 40))
            recording.now_ns = length_ms * MS
    coarse, level = samples_of(timeline, length_ms, every_ms)
    for n, value in enumerate(coarse):
        recording.sample(n * every_ms * MS, (n + 1) * every_ms * MS, float(value), source="gpm")
    shown = np.repeat(coarse, every_ms)
    true = {name: float(level @ on / on.sum()) for name, on in timeline.items()}
    return true, {name: float(shown @ on / on.sum()) for name, on in timeline.items()}


def test_phases_of_300_ms_are_recovered_from_samples_of_100_ms(tmp_path: Path):
    recording = Recording()
    true, blurred = two_processes(recording)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert facts.activity is not None
    assert facts.activity.resolution_ns == 100 * MS
    assert blurred["prefill"] < 0.95  # what the plain mean would have said; the truth is 1
    assert true["prefill"] == pytest.approx(1.0)
    found = {window.target.rpartition("/")[2]: window for window in facts.windows}
    for name, window in found.items():
        assert window.separated, name
        assert window.sm_activity == pytest.approx(true[name], abs=0.01), name
    worst = max(abs(blurred[name] - true[name]) for name in true)
    assert worst > 0.05  # regression is what makes the difference


def test_noise_on_the_samples_stays_within_its_error(tmp_path: Path):
    recording = Recording()
    true, _ = two_processes(recording, seed=1, seconds=120)
    random = np.random.default_rng(2)
    for sample in recording.samples:
        noisy = sample["activity"] + random.normal(0.0, 0.02)
        sample["activity"] = float(np.clip(noisy, 0.0, 1.0))
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    for window in facts.windows:
        name = window.target.rpartition("/")[2]
        assert window.separated, name
        assert window.sm_activity == pytest.approx(true[name], abs=0.02), name


def short_calls(recording: Recording, source: str, jitter: bool) -> None:
    """Calls of 10 and 30 ms under samples of 100 ms; without jitter every sample holds the same mix."""
    random = np.random.default_rng(3)
    level: list[float] = []
    with recording.iteration():
        while recording.now_ns < 20_000 * MS:
            for name, ms, activity in (("low", 10, 0.1), ("high", 30, 0.9)):
                spent = int(ms * random.uniform(0.5, 1.5)) if jitter else ms
                recording.node(name, ns=spent * MS, pure=True)
                level += [activity] * spent
    whole = len(level) // 200 * 200
    for n, value in enumerate(np.array(level[:whole]).reshape(-1, 200).mean(axis=1)):
        recording.sample(n * 200 * MS, (n + 1) * 200 * MS, float(value), source=source)


def test_what_never_varies_keeps_the_plain_mean(tmp_path: Path):
    recording = Recording()
    short_calls(recording, "gpm", jitter=False)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    for window in facts.windows:
        assert not window.separated
        assert window.sm_activity == pytest.approx(0.7, abs=1e-3)  # the mix of both


def test_calls_much_shorter_than_a_sample_are_separated_where_they_vary(tmp_path: Path):
    recording = Recording()
    short_calls(recording, "pm-sampling", jitter=True)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    found = {window.target.rpartition("/")[2]: window for window in facts.windows}
    assert found["low"].separated
    assert found["low"].sm_activity == pytest.approx(0.1, abs=0.02)
    assert found["high"].sm_activity == pytest.approx(0.9, abs=0.02)
    assert not found["low"].resolved


@pytest.mark.parametrize("source", ["nvml-utilisation", "kernels"])
def test_values_of_an_unknown_time_are_not_separated(source: str, tmp_path: Path):
    recording = Recording()
    short_calls(recording, source, jitter=True)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert facts.windows
    assert not any(window.separated for window in facts.windows)


def test_a_fine_source_is_taken_as_it_is(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        for _ in range(20):
            recording.node("act", ns=20 * MS, pure=True)
            recording.node("step", ns=30 * MS, pure=True)
    for n in range(1_000):
        recording.sample(n * MS, (n + 1) * MS, 0.8 if n % 50 < 20 else 0.1)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert isinstance(facts.activity, Activity)
    assert not any(window.separated for window in facts.windows)
    assert [w.sm_activity for w in facts.windows] == pytest.approx([0.1, 0.8])


@examples(60, 25)
@given(st.integers(2, 6), st.integers(0, 10_000))
def test_activities_minimise_the_error_within_their_bounds(count: int, seed: int):
    random = np.random.default_rng(seed)
    shares = random.dirichlet(np.ones(count), size=8 * count)
    true = random.uniform(-0.4, 1.4, count)  # bounds bind where the truth is outside
    values = shares @ true
    found, covariance = solve_sets(Occupancy(shares, values, ((),) * count))
    assert ((found >= 0.0) & (found <= 1.0)).all()
    assert (np.linalg.eigvalsh(covariance) >= -1e-12).all()
    gradient = shares.T @ (shares @ found - values)
    # Karush-Kuhn-Tucker: flat inside, and uphill into the box at a bound.
    assert np.abs(gradient[(found > 1e-7) & (found < 1 - 1e-7)]).max(initial=0.0) < 1e-5
    assert gradient[found <= 1e-7].min(initial=0.0) > -1e-5
    assert gradient[found >= 1 - 1e-7].max(initial=0.0) < 1e-5
