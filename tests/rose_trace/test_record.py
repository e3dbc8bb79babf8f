from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rose_trace as rose
from rose_trace import hooks
from rose_trace.cli import app
from rose_trace.merge import merge
from rose_trace.parquet import (
    TraceError,
    parts_of,
    read_metadata,
    read_spans,
    read_table,
    write_table,
)
from rose_trace.record import JOIN_VARIABLE, ChildSettings, join, leave

ROOT = Path(__file__).parents[2]


@rose.node(pure=True)
def work(x: int) -> int:
    return x + 1


@rose.node(pure=True)
def outer(x: int) -> int:
    return work(work(x))


def _worker(settings: ChildSettings, role: str, calls: int) -> None:
    join(settings, process=role)
    for i in range(calls):
        outer(i)
    leave()
    assert hooks.recorder() is None
    work(0)  # after leaving: not recorded


def _uninvited(calls: int) -> None:
    for i in range(calls):
        work(i)


def _python(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    return out, err


def test_importing_rose_trace_imports_nothing_heavy() -> None:
    code = """
        import sys, rose_trace
        print([m for m in ("torch", "pyarrow", "opentelemetry", "psutil", "nvtx") if m in sys.modules])
    """
    assert _finish(_python(code))[0].strip() == "[]"


def test_settings_for_children_are_picklable_and_continue_the_invocation(tmp_path: Path) -> None:
    got: list[ChildSettings] = []

    @rose.node
    def starts_a_worker() -> None:
        got.append(recording.child_settings())

    with rose.record(tmp_path / "t.parquet", activity="none") as recording:
        starts_a_worker()
    row = read_spans(tmp_path / "t.parquet").to_pylist()[0]
    settings = pickle.loads(pickle.dumps(got[0]))
    assert settings == got[0]
    assert settings.traceparent == f"00-{row['trace_id']}-{row['span_id']:016x}-01"


def test_workers_join_and_leave(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    spawn = multiprocessing.get_context("spawn")

    @rose.node
    def fan_out() -> None:
        settings = recording.child_settings()
        workers = [
            spawn.Process(target=_worker, args=(settings, f"worker:sim[{i}/2]", 50))
            for i in range(2)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0

    with rose.record(path, activity="none") as recording:
        fan_out()
    info = read_metadata(path)
    assert info.complete, info.reasons
    assert {p.process: p.rows["spans"] for p in info.processes} == {
        "main": 1,
        "worker:sim[0/2]": 150,
        "worker:sim[1/2]": 150,
    }
    rows = read_spans(path).to_pylist()
    parent = next(r for r in rows if r["node"] == "fan_out")
    roots = [r for r in rows if r["node"] == "outer"]
    assert {r["parent_id"] for r in roots} == {parent["span_id"]}
    assert {r["trace_id"] for r in rows} == {parent["trace_id"]}
    assert len({r["span_id"] for r in rows}) == len(rows)
    assert len({r["pid"] for r in rows}) == 3
    assert {r["run"] for r in rows} == {info.run}


def test_a_spawned_process_that_was_not_told_is_recorded_too(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with rose.record(path, activity="none"):
        child = multiprocessing.get_context("spawn").Process(target=_uninvited, args=(20,))
        child.start()
        child.join()
        assert child.exitcode == 0
    assert JOIN_VARIABLE not in os.environ
    info = read_metadata(path)
    assert info.complete, info.reasons
    assert [(p.process, p.rows["spans"]) for p in info.processes] == [(f"child-{child.pid}", 20)]


def test_a_late_worker_is_told(tmp_path: Path) -> None:
    with rose.record(tmp_path / "t.parquet", activity="none") as recording:
        settings = recording.child_settings()
    with pytest.raises(TraceError, match=r"join\(w\): expected an open recording, got none"):
        join(settings, process="w")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_processes_write_their_own_parts(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    fork = multiprocessing.get_context("fork")
    with rose.record(path, activity="none"):
        for i in range(10):
            work(i)
        children = [fork.Process(target=_uninvited, args=(30,)) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0
        work(0)
    info = read_metadata(path)
    assert info.complete, info.reasons
    counts = {p.process: p.rows["spans"] for p in info.processes}
    assert counts == {"main": 11, **{f"main/fork-{c.pid}": 30 for c in children}}
    rows = read_spans(path)
    assert len(set(rows["span_id"].to_pylist())) == 71


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_raw_fork_that_exits_hard_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with rose.record(path, activity="none"):
        work(0)
        pid = os.fork()
        if pid == 0:
            _uninvited(5)
            recorder: Any = hooks.recorder()
            recorder.buffers.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        work(1)
    info = read_metadata(path)
    assert not info.complete
    assert info.reasons == [f"process main_fork_{pid} (pid {pid}) ended without closing its trace"]
    assert info.rows["spans"] == 7


def test_the_environment_records_a_whole_program(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    code = """
        import sys
        import rose_trace as rose

        @rose.node(pure=True)
        def work(x): return x

        for i in range(5): work(i)
        with rose.record("elsewhere.parquet"): work(5)
        sys.exit(7)
    """
    _, err = _finish(_python(code, ROSE_TRACE=str(path), ROSE_ACTIVITY="cpu"), code=7)
    assert "already records the whole program" in err
    info = read_metadata(path)
    assert info.complete
    assert info.rows["spans"] == 6
    assert info.activity["source"] == "cpu"
    assert not parts_of(path).exists()


def test_every_rank_of_a_launch_writes_its_own_file(tmp_path: Path) -> None:
    code = "import rose_trace as rose\nrose.node(lambda: None)()"
    for rank in "01":
        _finish(_python(code, ROSE_TRACE=str(tmp_path / "t.parquet"), RANK=rank))
    assert read_metadata(tmp_path / "t.parquet").rows["spans"] == 1
    assert read_metadata(tmp_path / "t.rank1.parquet").rows["spans"] == 1


KILLED = """
    import sys, time
    import rose_trace as rose
    from rose_trace import hooks

    @rose.node(pure=True)
    def work(x): return x

    with rose.record(sys.argv[1], activity="none"):
        for i in range(2000): work(i)
        hooks.recorder().buffers.flush()
        print("flushed", flush=True)
        while True: work(0)
"""


def test_a_killed_run_is_recovered(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    process = _python(KILLED, str(path))
    assert process.stdout is not None
    assert process.stdout.readline() == "flushed\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    assert not path.exists()
    with pytest.raises(TraceError, match="Run: rose-trace recover"):
        read_metadata(path)
    info = merge(parts_of(path), path)
    assert not info.complete
    assert "ended without closing its trace" in info.reasons[0]
    assert info.rows["spans"] >= 2000
    assert read_spans(path).num_rows == info.rows["spans"]
    assert not parts_of(path).exists()


def test_parts_of_a_killed_run_are_moved_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.parquet"
    process = _python(KILLED, str(path))
    assert process.stdout is not None
    assert process.stdout.readline() == "flushed\n"
    with pytest.raises(
        TraceError, match=f"expected no live recording there, got one by process {process.pid}"
    ):
        rose.record(path).__enter__()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    with rose.record(path, activity="none"):
        work(0)
    assert read_metadata(path).rows["spans"] == 1
    aside = tmp_path / "t.parquet.parts.1"
    assert str(aside) in caplog.text
    told = CliRunner().invoke(app, ["recover", str(path), "--parts", str(aside)])
    assert told.exit_code == 3
    assert "expected a name that is free, got a trace that is there already" in told.stderr
    assert read_metadata(path).rows["spans"] == 1
    assert merge(aside, tmp_path / "old.parquet").rows["spans"] >= 2000


def test_what_was_measured_for_an_earlier_trace_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with rose.record(path, activity="none"):
        work(0)
    probes = write_table("probes", path, [])
    with rose.record(tmp_path / "other.parquet", activity="none"):
        work(0)
    assert probes.exists()
    with rose.record(path, activity="none"):
        work(0)
    assert not probes.exists()


def test_only_one_recording_at_a_time(tmp_path: Path) -> None:
    with (
        rose.record(tmp_path / "a.parquet", activity="none"),
        pytest.raises(TraceError, match=r"expected no open recording, got .*a\.parquet"),
    ):
        rose.record(tmp_path / "b.parquet").__enter__()
    with rose.record(tmp_path / "b.parquet", activity="none"):
        work(0)
    assert read_metadata(tmp_path / "b.parquet").rows["spans"] == 1


def test_the_programs_error_wins_and_the_trace_is_written(tmp_path: Path) -> None:
    def program() -> None:
        with rose.record(tmp_path / "t.parquet", activity="none"):
            work(0)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        program()
    assert read_metadata(tmp_path / "t.parquet").rows["spans"] == 1
    with pytest.raises(TraceError, match=r"expected to write there, got .* Choose another path\."):
        rose.record("/proc/nowhere/t.parquet").__enter__()
    assert hooks.active is None


def test_cpu_activity_lies_beside_the_spans(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with rose.record(path, activity="cpu"):
        until = time.monotonic() + 0.4
        while time.monotonic() < until:
            outer(1)
    samples = read_table("activity", path).to_pylist()
    assert samples
    assert {(s["source"], s["device"], s["estimate"]) for s in samples} == {("cpu", "cpu", False)}
    assert all(0 <= s["activity"] <= 1 for s in samples)
    assert max(s["activity"] for s in samples) > 0.5 / (os.cpu_count() or 1)  # of one busy core
    assert all(a["end_ns"] == b["start_ns"] for a, b in itertools.pairwise(samples))
    with pytest.raises(
        ValueError, match=r"record\(activity='gpu'\): expected auto, none or one of .*cpu"
    ):
        rose.record(path, activity="gpu").__enter__()
