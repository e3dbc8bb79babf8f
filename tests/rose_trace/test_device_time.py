"""Device ends against a simulated GPU: its clock drifts, its streams are queues, it forbids what CUDA does."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rose_trace.device_anchor import ANCHOR_NS
from rose_trace.device_time import (
    FINAL_SECONDS,
    MOST_PROBLEMS,
    DeviceClock,
    Mark,
    cuda_index,
)

START_NS = 1_700_000_000_000_000_000
LATENCY_NS = 4_000  # from recording on an idle stream to being done
DRIFT = 20e-6


@dataclass
class Gpu:
    """One host with virtual time and devices whose streams run what they are given in order."""

    now_ns: int = START_NS
    device: int = 0
    in_capture: bool = False
    is_relaxed: bool = False
    broken: str = ""
    made: int = 0
    streams: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    current: dict[int, int] = field(default_factory=dict[int, int])
    anchored: list[int] = field(default_factory=list[int])

    def now(self) -> int:
        self.now_ns += 1_000  # looking at the clock and what is around it take a microsecond
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def launch(self, ns: int, device: int = 0) -> int:
        """Give work to the current stream; when it will be done [Unix ns]."""
        key = device, self.current.get(device, 0)
        begin = max(self.now_ns + LATENCY_NS, self.streams.get(key, 0))
        self.streams[key] = begin + ns
        return begin + ns

    def capturing(self) -> bool:
        return self.in_capture

    def current_device(self) -> int:
        return self.device

    def current_stream(self, device: int) -> tuple[Hashable, int, Any]:
        key = device, self.current.get(device, 0)
        return key, key[1], key

    def event(self) -> Event:
        self.made += 1
        return Event(self)

    def own_stream(self, device: int) -> Any:
        return device, 99

    @contextlib.contextmanager
    def on(self, device: int) -> Generator[None]:
        before, self.device = self.device, device
        yield
        self.device = before

    @contextlib.contextmanager
    def relaxed(self, device: int) -> Generator[None]:
        before, self.is_relaxed = self.is_relaxed, True
        yield
        self.is_relaxed = before


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.done_ns = 0
        self.stream: tuple[int, int] | None = None

    def record(self, stream: tuple[int, int]) -> None:
        assert not self.gpu.in_capture
        if self.gpu.broken:
            raise RuntimeError(self.gpu.broken)
        assert self.stream in (None, stream), "an event of another stream"
        self.stream = stream
        self.done_ns = max(self.gpu.now_ns + LATENCY_NS, self.gpu.streams.get(stream, 0) + 1_000)
        self.gpu.streams[stream] = self.done_ns
        if stream[1] == 99:
            self.gpu.anchored.append(stream[0])

    def query(self) -> bool:
        assert self.gpu.is_relaxed, "a query in another mode breaks captures"
        assert self.stream is not None
        assert self.gpu.device == self.stream[0], "a query elsewhere makes a context"
        self.gpu.now_ns += 500
        return self.done_ns <= self.gpu.now_ns

    def synchronize(self) -> None:
        raise AssertionError("nothing may wait")

    def elapsed_time(self, end_event: Event) -> float:
        assert self.done_ns <= self.gpu.now_ns
        assert end_event.done_ns <= self.gpu.now_ns
        assert self.stream is not None
        assert end_event.stream is not None
        assert self.stream[0] == end_event.stream[0]
        return float(np.float32((end_event.done_ns - self.done_ns) * (1 + DRIFT) / 1e6))


@dataclass
class Row:
    mark: Mark | None = None
    device_end_ns: int | None = None
    stream: int | None = None


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def clock(gpu: Gpu) -> DeviceClock:
    return DeviceClock(find=lambda: gpu, now=gpu.now, sleep=gpu.sleep)


def call(
    gpu: Gpu, clock: DeviceClock, *, host: int = 10_000, work: int = 0, device: int = -1
) -> tuple[Row, int]:
    """An invocation: its row, and when its device work ends [Unix ns]."""
    start_ns = gpu.now_ns
    done_ns = gpu.launch(work, max(device, 0)) if work else 0
    gpu.now_ns += host
    return Row(clock.mark(start_ns, gpu.now_ns, device)), done_ns


def test_the_end_of_the_device_work_is_known_within_ten_microseconds(
    gpu: Gpu, clock: DeviceClock
) -> None:
    for _ in range(200):  # 20 seconds, flushed four times a second
        rows: list[Row] = []
        done: list[int] = []
        for _ in range(2):
            row, done_ns = call(gpu, clock, work=40_000_000, device=0)
            rows.append(row)
            done.append(done_ns)
        gpu.now_ns += 100_000_000
        clock.tend()
        assert clock.settle(rows) == 2
        for row, done_ns in zip(rows, done, strict=True):
            assert row.device_end_ns == pytest.approx(done_ns, abs=10_000)
            assert row.stream == 0
    assert clock.failure is None
    assert clock.margin_ns < 10_000


def test_rows_wait_for_the_device_and_the_program_never_does(gpu: Gpu, clock: DeviceClock) -> None:
    short, _ = call(gpu, clock, work=1_000_000, device=0)
    plain = Row()
    long, done_ns = call(gpu, clock, work=1_000_000_000, device=0)
    gpu.now_ns += 10_000_000
    clock.tend()
    assert clock.settle([short, plain, long]) == 2
    assert short.mark is None
    assert long.mark is not None
    gpu.now_ns = done_ns + 1_000_000
    clock.tend()
    assert clock.settle([long]) == 1
    assert long.device_end_ns == pytest.approx(done_ns, abs=10_000)


def test_nothing_is_settled_before_the_first_anchor(gpu: Gpu, clock: DeviceClock) -> None:
    row, _ = call(gpu, clock, work=1_000, device=0)
    gpu.now_ns += 1_000_000
    assert clock.settle([row]) == 0
    assert clock.settle([row], final=True) == 1
    assert row.stream == 0


def test_the_end_of_a_recording_waits_and_then_gives_up(gpu: Gpu, clock: DeviceClock) -> None:
    row, done_ns = call(gpu, clock, work=3_000_000_000, device=0)
    assert clock.settle([row], final=True) == 1
    assert row.device_end_ns == pytest.approx(done_ns, abs=10_000)
    hung, _ = call(gpu, clock, work=10**15, device=0)
    begin = gpu.now_ns
    assert clock.settle([hung, Row()], final=True) == 2
    assert (hung.mark, hung.device_end_ns, clock.unresolved) == (None, None, 1)
    assert gpu.now_ns - begin < (FINAL_SECONDS + 1) * 1e9


def test_work_that_ended_before_the_host_call_ends_with_it(gpu: Gpu, clock: DeviceClock) -> None:
    row, _ = call(gpu, clock, host=5_000_000, work=1_000_000, device=0)
    assert row.mark is not None
    end_ns = row.mark.end_ns
    gpu.now_ns += 1_000_000
    clock.tend()
    clock.settle([row])
    assert row.device_end_ns == end_ns


def test_only_work_of_its_own_counts_for_an_invocation_without_cuda_values(
    gpu: Gpu, clock: DeviceClock
) -> None:
    learn, done_ns = call(gpu, clock, work=50_000_000, device=0)
    beside, _ = call(gpu, clock)  # the CPU works while the device is still busy with `learn`
    hidden, hidden_done_ns = call(
        gpu, clock, work=20_000_000
    )  # state on the device, no tensors passed
    gpu.now_ns += 500_000_000
    idle, _ = call(gpu, clock)
    gpu.now_ns += 1_000_000
    clock.tend()
    assert clock.settle([learn, beside, hidden, idle]) == 4
    assert learn.device_end_ns == pytest.approx(done_ns, abs=15_000)
    assert (beside.device_end_ns, beside.stream) == (None, None)
    assert hidden.device_end_ns == pytest.approx(hidden_done_ns, abs=15_000)
    assert (idle.device_end_ns, idle.stream) == (None, None)


def test_a_host_that_was_held_up_does_not_make_an_idle_device_look_busy(
    gpu: Gpu, clock: DeviceClock
) -> None:
    clock.mark(gpu.now_ns, gpu.now_ns, 0)
    gpu.now_ns += 1_000_000
    end_ns = gpu.now_ns
    gpu.now_ns += 3_000_000  # the scheduler takes the thread away between end and event
    row = Row(clock.mark(end_ns - 1_000, end_ns))
    gpu.now_ns += 1_000_000
    clock.tend()
    assert clock.settle([row]) == 1
    assert (row.device_end_ns, row.stream) == (None, None)


def test_a_caller_lasts_as_long_as_what_it_called(gpu: Gpu, clock: DeviceClock) -> None:
    before, _ = call(gpu, clock, work=1_000_000, device=0)
    gpu.now_ns += 10_000_000
    start_ns = gpu.now_ns
    inner, done_ns = call(gpu, clock, work=30_000_000, device=0)
    outer = Row(clock.mark(start_ns, gpu.now_ns))
    gpu.now_ns += 100_000_000
    clock.tend()
    assert clock.settle([before, inner, outer]) == 3
    assert outer.device_end_ns == pytest.approx(done_ns, abs=15_000)


def test_every_stream_and_device_has_its_own_events(gpu: Gpu, clock: DeviceClock) -> None:
    first, first_ns = call(gpu, clock, work=1_000_000, device=0)
    gpu.current[0] = 7
    second, second_ns = call(gpu, clock, work=2_000_000, device=0)
    third, third_ns = call(gpu, clock, work=3_000_000, device=1)
    gpu.now_ns += 10_000_000
    clock.tend()
    assert clock.settle([first, second, third]) == 3
    assert [row.stream for row in (first, second, third)] == [0, 7, 0]
    for row, done_ns in ((first, first_ns), (second, second_ns), (third, third_ns)):
        assert row.device_end_ns == pytest.approx(done_ns, abs=15_000)
    assert set(gpu.anchored) == {0, 1}


def test_a_device_without_work_of_this_process_is_left_alone(gpu: Gpu, clock: DeviceClock) -> None:
    gpu.device = 3
    assert clock.mark(gpu.now_ns, gpu.now_ns) is None
    clock.tend()
    assert gpu.anchored == []


def test_events_are_used_again_and_anchors_renewed_only_for_work(
    gpu: Gpu, clock: DeviceClock
) -> None:
    for _ in range(50):
        row, _ = call(gpu, clock, work=1_000, device=0)
        gpu.now_ns += ANCHOR_NS // 5
        clock.tend()
        clock.settle([row])
    assert gpu.made < 10
    anchored = len(gpu.anchored)
    for _ in range(50):
        gpu.now_ns += ANCHOR_NS
        clock.tend()
    assert len(gpu.anchored) - anchored <= 5  # one renewal for the last mark


def test_nothing_is_recorded_in_a_capture(gpu: Gpu, clock: DeviceClock) -> None:
    gpu.in_capture = True
    assert clock.mark(gpu.now_ns, gpu.now_ns, 0) is None
    assert gpu.made == 0


def test_a_process_without_cuda_is_left_alone_until_it_has_some(gpu: Gpu) -> None:
    found: list[Gpu] = []
    clock = DeviceClock(find=lambda: found[0] if found else None, now=gpu.now, sleep=gpu.sleep)
    clock.tend()
    assert not clock.active
    assert clock.mark(gpu.now_ns, gpu.now_ns, 0) is None
    assert clock.settle([Row(), Row()]) == 2
    found.append(gpu)
    clock.look()
    assert clock.active


def test_a_forked_child_starts_without_cuda(gpu: Gpu) -> None:
    found: list[Gpu] = [gpu]
    clock = DeviceClock(find=lambda: found[0] if found else None, now=gpu.now, sleep=gpu.sleep)
    row, _ = call(gpu, clock, work=1_000, device=0)
    found.clear()
    gpu.broken = "CUDA in a forked child"
    clock.after_fork()
    clock.tend()
    assert not clock.active
    assert clock.mark(gpu.now_ns, gpu.now_ns, 0) is None
    assert clock.settle([row]) == 1  # of the parent; its time cannot be told here
    assert (clock.unresolved, clock.failure) == (1, None)


def test_a_failing_event_costs_a_device_end_and_nothing_else(
    gpu: Gpu, clock: DeviceClock, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.broken = "invalid resource handle"
    for _ in range(MOST_PROBLEMS - 1):
        assert clock.mark(gpu.now_ns, gpu.now_ns, 0) is None
    assert clock.active
    assert len(caplog.records) == 1
    gpu.broken = ""
    row, _ = call(gpu, clock, work=1_000, device=0)
    gpu.now_ns += 1_000_000
    clock.tend()
    assert clock.settle([row]) == 1
    assert row.stream == 0
    gpu.broken = "invalid resource handle"
    clock.mark(gpu.now_ns, gpu.now_ns, 0)
    assert not clock.active
    assert clock.failure == "RuntimeError: invalid resource handle"


def test_index_of_a_device() -> None:
    assert cuda_index(["", "cpu"]) == -1
    assert cuda_index(["cpu", "cuda"]) == 0
    assert cuda_index(["cuda:3", "cuda:1"]) == 3
