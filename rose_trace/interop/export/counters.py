"""Counters: the activity of devices, one point per sample and none in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rose_trace.interop.export.rows import batches
from rose_trace.interop.export.tracks import stable_id
from rose_trace.parquet import TraceError, beside


@dataclass(frozen=True, slots=True)
class Counter:
    """Activity of one device by one source.

    Attributes:
        source: What sampled it.
        device: The device.
        estimate: Whether it is derived rather than measured.
    """

    source: str
    device: str
    estimate: bool

    @property
    def name(self) -> str:
        """What to call it."""
        what = "CPU activity" if self.device == "cpu" else f"SM activity {self.device}"
        return f"{what} ({self.source}{', estimate' if self.estimate else ''})"

    @property
    def uuid(self) -> int:
        """64-bit id; the same for the same trace."""
        return stable_id("counter", self.source, self.device, self.estimate)


@dataclass(frozen=True, slots=True)
class Point:
    """A counter's value from a moment on.

    Attributes:
        counter: The counter.
        start_ns: The moment [Unix ns].
        activity: Fraction, 0..1.
    """

    counter: Counter
    start_ns: int
    activity: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Time between samples of a counter that none covers; viewers go on with the last value.

    Attributes:
        counter: The counter.
        start_ns: End of the last sample before [Unix ns].
        end_ns: Start of the next one [Unix ns].
    """

    counter: Counter
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Counters:
    """Points of all counters of a trace, and how many samples they show.

    Attributes:
        trace: The spans file.
        samples: Samples read so far.
    """

    trace: Path
    samples: int = 0

    def points(self) -> Iterator[Point | Gap]:
        """What to draw, in order of time for each counter.

        Each sample is one point, at its start. Where at least one more is missing before the next there
        is a gap. The last value stands again at the end of the last sample.

        Yields:
            Points and gaps.

        Raises:
            TraceError: If the activity cannot be read; none beside the spans is no error.
        """
        if not beside(self.trace, "activity").exists():
            return
        before: dict[Counter, tuple[int, int, float]] = {}
        for batch in batches(self.trace, "activity"):
            for row in batch.to_pylist():
                counter = Counter(row["source"], row["device"], bool(row["estimate"]))
                start, end, value = row["start_ns"], row["end_ns"], row["activity"]
                if value is None or end < start:
                    raise TraceError(
                        f"{beside(self.trace, 'activity')}: expected samples with a value that end after they "
                        f"start, got one of {counter.name} that does not. Record it again."
                    )
                last_end, length, _ = before.get(counter, (start, 0, value))
                if start - last_end > length:
                    yield Gap(counter, last_end, start)
                yield Point(counter, start, value)
                self.samples += 1
                before[counter] = (max(end, last_end), end - start, value)
        for counter, (end, _, value) in before.items():
            yield Point(counter, end, value)
