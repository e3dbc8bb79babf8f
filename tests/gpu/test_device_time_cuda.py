"""Device ends on a real device: against the host's clock after a synchronisation."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from rose_trace.device_time import DeviceClock, Mark

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

SYNC_NS = 300_000  # from the end of the work to the return of a synchronisation, at most
cuda: Any = torch.cuda  # `_sleep` has no type


@dataclass
class Row:
    mark: Mark | None = None
    device_end_ns: int | None = None
    stream: int | None = None


@pytest.fixture
def clock() -> Iterator[DeviceClock]:
    for device in range(torch.cuda.device_count()):
        torch.zeros(1, device=f"cuda:{device}")
    torch.cuda.synchronize()
    clock = DeviceClock()
    assert clock.active
    yield clock
    assert clock.failure is None


def busy(milliseconds: float) -> None:
    """Keep the current stream busy; returns at once."""
    cuda._sleep(round(milliseconds * 1.9e6))  # cycles at some 1.9 GHz


def settled(clock: DeviceClock, *rows: Row) -> None:
    clock.tend()
    assert clock.settle(rows) == len(rows)


@pytest.mark.parametrize("milliseconds", [0.2, 5, 100])
def test_the_end_of_the_work_is_known(clock: DeviceClock, milliseconds: float) -> None:
    early: list[int] = []
    for _ in range(10):
        start_ns = time.time_ns()
        busy(milliseconds)
        end_ns = time.time_ns()
        row = Row(clock.mark(start_ns, end_ns, 0))
        torch.cuda.synchronize()
        done_ns = time.time_ns()
        settled(clock, row)
        assert row.device_end_ns is not None
        assert row.device_end_ns > end_ns
        early.append(done_ns - row.device_end_ns)
    print(f"{milliseconds} ms: device end {[e / 1e3 for e in early]} us before the host knew")
    print(f"anchor within +-{clock.margin_ns / 1e3} us")
    assert min(early) >= -20_000
    assert statistics.median(early) <= SYNC_NS


def test_nobody_waits(clock: DeviceClock) -> None:
    begin = time.perf_counter()
    start_ns = time.time_ns()
    busy(500)
    row = Row(clock.mark(start_ns, time.time_ns(), 0))
    clock.tend()
    assert clock.settle([row]) == 0
    assert time.perf_counter() - begin < 0.25
    assert clock.settle([row], final=True) == 1
    assert row.device_end_ns is not None
    assert row.device_end_ns - start_ns > 200_000_000


def test_a_mark_is_cheap(clock: DeviceClock) -> None:
    spent: list[int] = []
    rows: list[Row] = []
    for _ in range(2_000):
        begin = time.perf_counter_ns()
        mark = clock.mark(0, 0, 0)
        spent.append(time.perf_counter_ns() - begin)
        rows.append(Row(mark))
        if len(rows) == 100:
            torch.cuda.synchronize()
            settled(clock, *rows)
            rows.clear()
    median = statistics.median(spent)
    print(f"mark: median {median} ns, 99 % {sorted(spent)[1980]} ns")
    assert median < 15_000


def test_a_thread_that_never_used_cuda_settles_and_stays_so(clock: DeviceClock) -> None:
    start_ns = time.time_ns()
    busy(5)
    row = Row(clock.mark(start_ns, time.time_ns(), 0))
    torch.cuda.synchronize()
    found: list[int] = []

    def flush() -> None:
        clock.tend()
        found.append(clock.settle([row]))
        found.append(torch.cuda.current_device())

    flusher = threading.Thread(target=flush)
    flusher.start()
    flusher.join()
    assert found == [1, 0]
    assert row.device_end_ns is not None


def test_only_work_of_its_own_counts(clock: DeviceClock) -> None:
    rows: list[Row] = []
    start_ns = time.time_ns()
    busy(50)
    rows.append(Row(clock.mark(start_ns, time.time_ns(), 0)))
    start_ns = time.time_ns()
    rows.append(Row(clock.mark(start_ns, time.time_ns())))  # the CPU alone, beside the device
    torch.cuda.synchronize()
    time.sleep(0.01)
    start_ns = time.time_ns()
    rows.append(Row(clock.mark(start_ns, time.time_ns())))  # nobody works
    torch.cuda.synchronize()
    settled(clock, *rows)
    assert rows[0].device_end_ns is not None
    assert [row.device_end_ns for row in rows[1:]] == [None, None]


def test_streams_are_told_apart(clock: DeviceClock) -> None:
    aside = torch.cuda.Stream()
    start_ns = time.time_ns()
    with torch.cuda.stream(aside):
        busy(100)
        long = Row(clock.mark(start_ns, time.time_ns(), 0))
    busy(1)
    short = Row(clock.mark(start_ns, time.time_ns(), 0))
    torch.cuda.synchronize()
    settled(clock, long, short)
    assert (short.stream, long.stream) == (0, aside.stream_id)
    assert long.device_end_ns is not None
    assert short.device_end_ns is not None
    assert long.device_end_ns - short.device_end_ns > 50_000_000


def test_a_capture_survives_the_flusher(clock: DeviceClock) -> None:
    """Queries and anchors of another thread break a capture unless that thread is relaxed."""
    rows = [Row(clock.mark(time.time_ns(), time.time_ns(), 0)) for _ in range(200)]
    clock.tend()
    x = torch.ones(1024, device="cuda")
    torch.cuda.synchronize()
    capturing, done = threading.Event(), threading.Event()
    problems: list[BaseException] = []

    def flush() -> None:
        try:
            assert capturing.wait(30)
            for row in rows:
                assert clock.settle([row]) == 1
            anchors, api = clock._anchors, clock._cuda
            assert anchors is not None
            assert api is not None
            with api.relaxed(0):
                anchors.renew(0)
        except BaseException as error:
            problems.append(error)
        finally:
            done.set()

    flusher = threading.Thread(target=flush)
    flusher.start()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        assert clock.mark(0, 0, 0) is None
        capturing.set()
        assert done.wait(30)
        y = y + 1
    flusher.join()
    assert problems == []
    graph.replay()
    torch.cuda.synchronize()
    assert y[0].item() == 3.0


def test_a_forked_child_leaves_cuda_alone(clock: DeviceClock) -> None:
    row = Row(clock.mark(time.time_ns(), time.time_ns(), 0))
    child = os.fork()
    if child == 0:
        try:
            clock.after_fork()
            clock.tend()
            quiet = not clock.active and clock.mark(0, 0, 0) is None and clock.settle([row]) == 1
            del row
            os._exit(0 if quiet and clock.failure is None else 3)
        finally:
            os._exit(4)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    torch.cuda.synchronize()
    settled(clock, row)


def test_two_devices(clock: DeviceClock) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    rows: list[Row] = []
    start_ns = time.time_ns()
    for device, milliseconds in ((0, 10), (1, 100)):
        with torch.cuda.device(device):
            busy(milliseconds)
        rows.append(Row(clock.mark(start_ns, time.time_ns(), device)))
    torch.cuda.synchronize(1)
    done_ns = time.time_ns()
    torch.cuda.synchronize(0)
    settled(clock, *rows)
    first, second = (row.device_end_ns for row in rows)
    assert first is not None
    assert second is not None
    assert second - first > 50_000_000
    assert -20_000 <= done_ns - second <= 10 * SYNC_NS
