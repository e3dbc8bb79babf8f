from __future__ import annotations

import psutil
import pytest

from rose_trace import activity
from rose_trace.activity import Known
from rose_trace.activity.cpu import CpuUtilisation


def test_samples_are_shares_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of a machine with 4 cores, of which one and a half are busy."""
    ticks = iter([(k * 1.5, k * 2.0, k * 0.5) for k in range(100)])

    class Times:
        def __init__(self) -> None:
            self.busy, self.idle, self.iowait = next(ticks)

        def _asdict(self) -> dict[str, float]:
            return {"user": self.busy, "idle": self.idle, "iowait": self.iowait, "guest": self.busy}

    monkeypatch.setattr(psutil, "cpu_times", Times)
    samples: list[tuple[str, str, int, int, float, bool]] = []
    source = CpuUtilisation(period_seconds=0.001)
    source.start(samples.append)
    source.stop()
    assert samples
    assert all(share == pytest.approx(1.5 / 4) for *_, share, _ in samples)
    assert all(start < end for _, _, start, end, _, _ in samples)


def test_the_best_source_that_works_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    better = Known("pm-sampling", lambda: "no NVIDIA driver", CpuUtilisation)
    monkeypatch.setattr(activity, "SOURCES", (better, activity.SOURCES[-1]))
    source, about = activity.choose("auto")
    assert isinstance(source, CpuUtilisation)
    assert about == {
        "source": "cpu",
        "resolution_ns": 50_000_000,
        "estimate": False,
        "rejected": {"pm-sampling": "no NVIDIA driver"},
    }
    assert activity.choose("none") == (None, {"source": "none", "rejected": {}})
    with pytest.raises(
        ValueError, match="expected a source that works here, got: no NVIDIA driver"
    ):
        activity.choose("pm-sampling")


def test_without_any_source_auto_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        activity, "SOURCES", (Known("cpu", lambda: "no CPU times: x", CpuUtilisation),)
    )
    assert activity.choose("auto") == (
        None,
        {"source": "none", "rejected": {"cpu": "no CPU times: x"}},
    )
