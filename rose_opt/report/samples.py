"""Activity samples as the report shows them, and the share of time below 50 %.

A value is never drawn finer than its source resolves.

Paper: §4.2, "SM activity"; Fig. 3 (share of time below 50 %).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rose_opt.facts import Activity
from rose_opt.facts.windows import FIRST_TIER_BELOW
from rose_opt.report.recorded import Recorded, RecordedIteration
from rose_trace.parquet import read_table

MOST_DRAWN = 1_500  # ours: samples of one device in the shown iteration; more are averaged


@dataclass(frozen=True, slots=True)
class DeviceSamples:
    """Samples of one device.

    Attributes:
        device: Its name.
        start_ns: Starts in order [Unix ns]. Shape: one per sample.
        end_ns: Ends, none after the next start [Unix ns]. Shape: one per sample.
        activity: Values [fraction]. Shape: one per sample.
    """

    device: str
    start_ns: Any
    end_ns: Any
    activity: Any

    def clipped(self, start_ns: int, end_ns: int) -> DeviceSamples:
        """The samples within a stretch of time, cut at its ends."""
        start = np.clip(self.start_ns, start_ns, end_ns)
        end = np.clip(self.end_ns, start_ns, end_ns)
        some = end > start
        return DeviceSamples(self.device, start[some], end[some], self.activity[some])

    def averaged(self, step_ns: int) -> DeviceSamples:
        """Means over stretches of `step_ns` of what was sampled in them."""
        if not len(self.start_ns):
            return self
        cell = (self.start_ns - self.start_ns[0]) // step_ns
        first = np.flatnonzero(np.diff(cell, prepend=-1))
        length = self.end_ns - self.start_ns
        covered = np.add.reduceat(length, first)
        busy = np.add.reduceat(self.activity * length, first)
        end = np.maximum.reduceat(self.end_ns, first)
        return DeviceSamples(self.device, self.start_ns[first], end, busy / covered)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Samples of the shown iteration.

    Attributes:
        devices: By device, in order of names.
        start_ns: Start of the iteration [Unix ns].
        step_ns: Length of what one drawn value describes [ns].
    """

    devices: tuple[DeviceSamples, ...]
    start_ns: int
    step_ns: int


def read_samples(path: Path, activity: Activity) -> tuple[DeviceSamples, ...]:
    """Samples of the source that the facts use.

    Args:
        path: The spans file.
        activity: Where the samples come from.

    Returns:
        Per device, in order of names; without overlaps.
    """
    columns = ("source", "device", "start_ns", "end_ns", "activity")
    table: Any = read_table("activity", path).select(list(columns))
    source, device = (np.array(table.column(name).to_pylist()) for name in columns[:2])
    start, end, value = (table.column(name).to_numpy() for name in columns[2:])
    valid = (source == activity.source) & (end > start) & (start > 0)
    found: list[DeviceSamples] = []
    for name in sorted(activity.devices):
        some = np.flatnonzero(valid & (device == name))
        some = some[np.lexsort((end[some], start[some]))]
        starts, ends = start[some], end[some].copy()
        ends[:-1] = np.minimum(ends[:-1], starts[1:])
        kept = ends > starts
        found.append(
            DeviceSamples(name, starts[kept], ends[kept], value[some][kept].astype(np.float64))
        )
    return tuple(found)


def drawn(recorded: Recorded, samples: Sequence[DeviceSamples]) -> Drawn | None:
    """Samples of the iteration that is shown, none finer than source and page resolve.

    Args:
        recorded: The recording.
        samples: Its samples.

    Returns:
        What to draw; ``None`` without samples.
    """
    activity = recorded.facts.activity
    if activity is None:
        return None
    shown = recorded.shown
    step_ns = activity.sample_ns
    devices = tuple(item.clipped(shown.start_ns, shown.end_ns) for item in samples)
    most = max(len(item.start_ns) for item in devices)
    if activity.resolution_ns > step_ns or most > MOST_DRAWN:
        step_ns = max(activity.resolution_ns, -(-shown.duration_ns // MOST_DRAWN))
        devices = tuple(item.averaged(step_ns) for item in devices)
    return Drawn(devices, shown.start_ns, step_ns)


def share_below(
    samples: Sequence[DeviceSamples],
    iterations: Iterable[RecordedIteration],
    threshold: float = FIRST_TIER_BELOW,
) -> float | None:
    """Share of the sampled time of the iterations in which activity is below a threshold.

    Args:
        samples: Samples of all devices.
        iterations: Iterations that count.
        threshold: The threshold [fraction].

    Returns:
        Mean over devices and time [fraction]; ``None`` where nothing was sampled.
    """
    low_ns = covered_ns = 0
    for iteration in iterations:
        for device in samples:
            inside = device.clipped(iteration.start_ns, iteration.end_ns)
            length = inside.end_ns - inside.start_ns
            covered_ns += int(length.sum())
            low_ns += int(length[inside.activity < threshold].sum())
    return low_ns / covered_ns if covered_ns else None
