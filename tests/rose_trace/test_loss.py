"""No row is lost: by threads that end, flush at once or outlive the recording, by kills or a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rose_trace as rose
from rose_trace import buffers as buffers_module
from rose_trace import hooks
from rose_trace.buffers import Buffers, ThreadBuffer
from rose_trace.device_time import DeviceClock
from rose_trace.merge import merge
from rose_trace.parquet import parts_of, read_metadata, read_spans

ROOT = Path(__file__).parents[2]


@rose.node(pure=True)
def work(x: int) -> int:
    return x + 1


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.slow
def test_a_small_run_of_the_benchmark_loses_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/trace_loss", "--json", "--invocations=8000", "--kills=3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["written"], result["read"]) == (8_000, 8_000)
    assert (result["kills"], result["kills_recovered"], result["wrong"]) == (3, 3, [])
    assert (result["threads"], result["processes"]) == (32, 4)
    assert result["kills_hit"]["recording"] >= 1


class Kept:
    """A part that keeps rows in memory."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def begin(self) -> None: ...

    def write_spans(self, rows: list[Any], thread: int) -> None:
        self.rows += rows

    def write_activity(self, samples: list[Any]) -> None: ...


class Row:
    """A row without device work."""

    mark = None


def unexpected(error: Exception, rows: int) -> None:
    raise AssertionError(rows) from error


def test_the_last_row_of_a_thread_that_ends_during_a_flush_is_carried() -> None:
    part = Kept()
    buffers = Buffers(part, unexpected, DeviceClock())
    buffer: Any = ThreadBuffer()
    last = Row()

    class Ending:
        """A thread that adds a row and ends while it is asked."""

        def is_alive(self) -> bool:
            if not part.rows and not buffer.rows:
                buffer.rows.append(last)
            return False

    buffer.owner = Ending()
    buffers._buffers.append(buffer)
    buffers.flush()
    buffers.flush()
    assert part.rows == [last]
    assert not buffers._buffers


class BrokenClock(DeviceClock):
    """A clock of device work that fails."""

    def settle(self, rows: Sequence[Any], final: bool = False) -> int:
        raise ZeroDivisionError("inside the clock")


def test_rows_are_carried_without_device_times_where_those_fail() -> None:
    part = Kept()
    failures: list[tuple[str, int]] = []
    buffers = Buffers(part, lambda error, rows: failures.append((str(error), rows)), BrokenClock())
    buffer: Any = buffers.mine()
    buffer.rows += (rows := [Row(), Row()])
    buffers.close()
    assert part.rows == rows
    assert set(failures) == {("inside the clock", 0)}


def test_threads_may_flush_at_once() -> None:
    """Both find a thread that has ended; the second finds it gone."""
    part = Kept()
    buffers = Buffers(part, unexpected, DeviceClock())
    buffer: Any = ThreadBuffer()
    other = threading.Thread(target=buffers.flush)

    class Ended:
        """Another flush gets in between the question and what follows from it."""

        asked = 0

        def is_alive(self) -> bool:
            self.asked += 1
            if self.asked == 1:
                other.start()
                other.join()
            return False

    buffer.owner = Ended()
    buffers._buffers.append(buffer)
    buffers.flush()
    assert not buffers._buffers


def test_a_child_that_is_gone_before_it_flushed_is_told(tmp_path: Path) -> None:
    """It recorded, so the trace must not say that it is complete."""
    code = """
        import os, sys
        import rose_trace as rose

        @rose.node(pure=True)
        def work(x): return x

        with rose.record(sys.argv[1], activity="none"):
            work(0)
            pid = os.fork()
            if pid == 0:
                work(1)
                os._exit(0)
            os.waitpid(pid, 0)
            quiet = os.fork()
            if quiet == 0:
                os._exit(0)
            os.waitpid(quiet, 0)
            print(pid)
    """
    path = tmp_path / "t.parquet"
    done = python(code, str(path))
    assert done.returncode == 0, done.stderr
    pid = int(done.stdout)
    info = read_metadata(path)
    assert info.reasons == [f"process main_fork_{pid} (pid {pid}) ended without closing its trace"]
    assert not info.complete
    assert not parts_of(path).exists()


FULL = """
    import resource, sys
    import rose_trace as rose

    @rose.node(pure=True)
    def work(x): return x + 1

    total = 0
    sys.dont_write_bytecode = True  # files cut short would stay
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
    with rose.record(sys.argv[1], activity="none") as recording:
        for i in range(20_000):
            total += work(i)
    print(total, recording.info.rows["spans"], recording.recorder.lost_rows)
"""


def test_a_disk_that_fills_is_told_once_and_the_program_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    done = python(FULL, str(path), "300000")
    assert done.returncode == 0, done.stderr
    total, read, lost = map(int, done.stdout.split())
    assert total == sum(range(1, 20_001))
    assert done.stderr.count("Recording stops here") == 1
    assert read > 0
    assert lost > 0
    info = read_metadata(path)
    assert not info.complete
    assert f"lost {lost} rows" in info.reasons[0]
    assert "stopped recording: OSError: [Errno 27]" in info.reasons[1]
    [process] = info.processes
    assert process.expected == process.rows == {"spans": read, "activity": 0}
    rows = read_spans(path)
    assert rows["ordinal"].to_pylist() == [*range(read)]  # whole up to where the disk was full


def test_a_disk_without_room_for_anything_is_told_and_the_program_goes_on(tmp_path: Path) -> None:
    """Not even the trace can be written: the block's end says so, and nothing before it."""
    path = tmp_path / "t.parquet"
    done = python(FULL, str(path), "2000")
    assert "Recording stops here" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert f"{path}: expected to merge" in last
    assert "The parts are kept" in last
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet.parts"]
    info = merge(parts_of(path), path)  # once there is room
    assert not info.complete
    assert "stopped recording: OSError" in info.reasons[-1]


def test_a_thread_that_outlives_the_recording_does_no_harm(tmp_path: Path) -> None:
    """What it finished is there, the invocation it is in ends as it would have."""
    path = tmp_path / "t.parquet"
    inside, closed = threading.Event(), threading.Event()
    results: list[int] = []

    @rose.node
    def outer() -> int:
        first = work(1)
        inside.set()
        assert closed.wait(60)
        return work(first)

    def run() -> None:
        results.append(outer())
        results.extend(work(i) for i in range(3_000))

    thread = threading.Thread(target=run)
    with rose.record(path, activity="none") as recording:
        thread.start()
        assert inside.wait(60)
    closed.set()
    thread.join()
    assert results == [3, *range(1, 3_001)]
    assert recording.recorder.failure is None
    assert hooks.active is None
    assert read_spans(path)["node"].to_pylist() == ["work"]
    assert not parts_of(path).exists()
    with rose.record(tmp_path / "next.parquet", activity="none") as following:
        work(0)
    assert following.info is not None
    assert following.info.complete
    assert following.info.rows["spans"] == 1


def test_the_writers_failure_is_loud_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.parquet"
    monkeypatch.setattr(buffers_module, "FLUSH_SECONDS", 3600.0)  # only this test carries rows
    with rose.record(path, activity="none") as recording:

        def broken(*_: Any) -> None:
            raise ZeroDivisionError("inside the writer")

        for i in range(10):
            work(i)
        recording.recorder.buffers.flush()
        monkeypatch.setattr(recording.part, "write_spans", broken)
        for i in range(700):
            work(i)
        recording.recorder.buffers.flush()
        assert work(1) == 2
    info = read_metadata(path)
    assert info.rows["spans"] == 10
    [process] = info.processes
    assert process.lost == 700
    assert process.failure == "ZeroDivisionError: inside the writer"
    assert sum("Recording stops here" in record.message for record in caplog.records) == 1
    assert os.getpid() == process.pid
