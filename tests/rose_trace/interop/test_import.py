from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rose_opt.cli import app as opt
from rose_opt.facts import build_facts
from rose_trace.cli import app
from rose_trace.interop import ImportSettings, import_trace, read_profile
from rose_trace.interop.kernel_activity import SOURCE, estimate_activity
from rose_trace.interop.profile import Kernel
from rose_trace.parquet import TraceError, read_metadata, read_spans, read_table

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
KERNELS = {
    "nsys/h100_2gpu_1s.sqlite": 3_442,
    "nsys/mfu_2gpu_before.sqlite": 4_010,
    "kineto/control.json.gz": 8_568,
    "kineto/rank0.json.gz": 6_080,
    "kineto/nccl_data.json.gz": 2_700,
    "kineto/event_sync_trace.json.gz": 4,
}


def real(name: str) -> Path:
    file = DATA / name
    if not file.exists():
        pytest.skip(f"no real profiler file at {file}")
    return file


SHOWN = ("span_id", "parent_id", "kind", "node", "path", "pid", "thread")
TIMES = ("start_ns", "end_ns", "device_end_ns")


def brief(path: Path) -> list[dict[str, Any]]:
    """Rows of a large trace, without what the tests of large traces do not look at."""
    return read_spans(path).select([*SHOWN, *TIMES]).to_pylist()


def chrome(path: Path, events: list[dict[str, Any]], **about: Any) -> Path:
    path.write_text(json.dumps({"traceEvents": events, **about}))
    return path


def complete(name: str, ts: float, dur: float, tid: int = 1, **more: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}
    return {**event, **more}


def kernel(ts: float, dur: float, grid: int, **args: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "grid": [grid, 1, 1], "block": [128, 1, 1], **args}
    return complete("gemm", ts, dur, cat="kernel", pid=0, args=args)


def rows(path: Path) -> list[dict[str, Any]]:
    return read_spans(path).to_pylist()


def by_name(path: Path) -> dict[str, dict[str, Any]]:
    return {row["node"]: row for row in rows(path)}


def run_kernel(start: int, end: int, grid: int | None, device: int = 0) -> Kernel:
    sizes = None if grid is None else (grid, 1, 1)
    return Kernel(1, device, 7, start, end, "k", sizes, (128, 1, 1), None)


# --- real files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_real_files_keep_every_kernel_and_nest_by_time(
    name: str, imported: Callable[[str], Path]
) -> None:
    path = imported(name)
    info = read_metadata(path)
    assert info.complete
    spans = brief(path)
    assert info.rows["spans"] == len(spans) == sum(p.rows["spans"] for p in info.processes)
    kernels = [row for row in spans if row["kind"] == "kernel"]
    assert len(kernels) == KERNELS[name]
    assert all(row["device_end_ns"] == row["end_ns"] for row in kernels)
    ids = {row["span_id"]: row for row in spans}
    assert len(ids) == len(spans)
    for row in spans:
        outer = ids.get(row["parent_id"])
        if row["kind"] == "kernel":
            assert outer is None or outer["start_ns"] <= row["start_ns"]
        elif outer is not None:
            assert row["path"] == f"{outer['path']}/{row['node']}"
            assert outer["start_ns"] <= row["start_ns"]
            assert row["end_ns"] <= outer["end_ns"] + 1_000  # times in whole microseconds
        else:
            assert row["path"] == row["node"]
            assert row["parent_id"] == 0
    known = [row for row in kernels if row["thread"] is not None]
    assert len(known) > 0.4 * len(kernels)  # trimmed files lack the launches of the others
    assert all(row["parent_id"] != 0 for row in known)
    activity = read_table("activity", path).to_pylist()
    assert {(row["source"], row["estimate"]) for row in activity} == {(SOURCE, True)}
    assert all(0 <= row["activity"] <= 1 for row in activity)
    assert info.activity["estimate"] is True


def test_a_mostly_idle_capture_has_its_gap_named(imported: Callable[[str], Path]) -> None:
    path = imported("nsys/h100_2gpu_1s.sqlite")
    info = read_metadata(path)
    assert info.activity["sm_count"] == {"cuda:0": 132, "cuda:1": 132}
    assert any("132 are assumed" in note for note in info.activity["notes"])
    facts = build_facts(path)
    assert facts.iteration.ranks == 2
    for device in ("cuda:0", "cuda:1"):
        longest = next(window for window in facts.sample_windows if window.device == device)
        assert longest.end_ns - longest.start_ns > 800_000_000
        assert longest.activity < 0.03
        assert longest.target is not None
        assert longest.target.endswith("aten::is_nonzero/aten::item/aten::_local_scalar_dense")
        # The range named is the one that the trace has running then, on that device's process.
        here = [row for row in brief(path) if row["path"] == longest.target]
        within = [
            min(row["end_ns"], longest.end_ns) - max(row["start_ns"], longest.start_ns)
            for row in here
        ]
        assert longest.overlap_ns <= sum(max(n, 0) for n in within)
    assert all(window.refused for window in facts.windows)  # nothing is declared: never moved


def test_gaps_of_a_profile_hold_hardly_any_kernel(imported: Callable[[str], Path]) -> None:
    path = imported("kineto/rank0.json.gz")
    facts = build_facts(path)
    assert facts.iteration.used == 4  # five steps, the first is warm-up
    gap = facts.sample_windows[0]
    assert gap.end_ns - gap.start_ns > 50_000_000
    assert gap.activity < 1e-3
    assert gap.target == ("ProfilerStep/## sparse_data_dist ##/aten::to/aten::_to_copy/aten::copy_")
    inside_ns = sum(
        max(min(row["end_ns"], gap.end_ns) - max(row["start_ns"], gap.start_ns), 0)
        for row in brief(path)
        if row["kind"] == "kernel"
    )
    assert inside_ns < 1e-3 * (gap.end_ns - gap.start_ns)


def test_times_are_unix_times(imported: Callable[[str], Path]) -> None:
    # The log in this file says 17:15:22, seven hours west of UTC.
    begun = datetime.fromtimestamp(
        brief(imported("kineto/nccl_data.json.gz"))[0]["start_ns"] / 1e9, UTC
    )
    assert begun.isoformat().startswith("2024-05-23T00:15:2")


def test_windows_command_names_gaps_of_an_imported_file(imported: Callable[[str], Path]) -> None:
    path = imported("kineto/nccl_data.json.gz")
    shown = CliRunner().invoke(opt, ["windows", str(path), "--format", "json"])
    assert shown.exit_code == 0, shown.output
    named = [window["target"] for window in json.loads(shown.stdout)["sample_windows"]]
    assert any("DistributedDataParallel.forward" in (target or "") for target in named)


def test_the_command_says_what_the_activity_is(tmp_path: Path) -> None:
    file = chrome(tmp_path / "t.json", [complete("a", 7, 2_000), kernel(8, 900, 66)])
    path = tmp_path / "trace.parquet"
    made = CliRunner().invoke(app, ["import", str(file), "-o", str(path), "--sm-count", "66"])
    assert made.exit_code == 0, made.output
    assert "activity  kernels, every 1 ms, an estimate, not pm-sampling: the file holds no" in (
        made.stdout
    )
    assert "note      the file does not tell how many SMs cuda:0 has; 66 are assumed" in made.stdout
    first, _ = read_table("activity", path).column("activity").to_pylist()
    assert first == pytest.approx(0.9)
    told = CliRunner().invoke(app, ["import", str(file), "-o", str(path), "--format", "json"])
    assert json.loads(told.stdout)["activity"]["sm_count"] == {"cuda:0": 132}


def test_sms_come_from_the_file(tmp_path: Path) -> None:
    info = import_trace(real("nsys/mock.sqlite"), tmp_path / "trace.parquet")
    assert info.activity["sm_count"] == {"cuda:0": 68}
    assert info.producer["imported_from"] == "NVIDIA Nsight Systems 2026.1.1.204"
    assert info.rows["spans"] == 5  # two kernels, a slow copy, a synchronisation and the capture
    found = rows(tmp_path / "trace.parquet")
    first, last = (row["start_ns"] for row in found if row["kind"] == "kernel")
    assert [row["path"] for row in found if row["kind"] == "sync"] == [
        "capture/cudaMemcpyAsync",
        "capture/cudaStreamSynchronize",
    ]
    assert first == 1776781226557295056 + 1517727052
    assert last == 1776781226557295056 + 1535979030


def test_the_same_file_gives_the_same_trace(tmp_path: Path) -> None:
    for name in ("one", "two"):
        import_trace(real("kineto/event_sync_trace.json.gz"), tmp_path / f"{name}.parquet")
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    assert read_spans(one).equals(read_spans(two))
    assert one.read_bytes() == two.read_bytes()


# --- estimated activity -------------------------------------------------------------------------


def test_activity_is_the_union_of_kernels_capped_at_the_device() -> None:
    kernels = [
        run_kernel(0, 1_000, 50),  # half of the device for the whole sample
        run_kernel(500, 1_000, 90),  # together more than it has
        run_kernel(2_250, 2_500, None),  # no grid: fills it
        run_kernel(100, 200, 100, device=1),
    ]
    samples = list(estimate_activity(kernels, {0: 100, 1: 100}, (0, 3_500), 1_000))
    assert [s[1:4] for s in samples if s[1] == "cuda:0"] == [
        ("cuda:0", 0, 1_000),
        ("cuda:0", 1_000, 2_000),
        ("cuda:0", 2_000, 3_000),
        ("cuda:0", 3_000, 3_500),
    ]
    levels = {device: [s[4] for s in samples if s[1] == device] for device in ("cuda:0", "cuda:1")}
    assert levels["cuda:0"] == pytest.approx([0.75, 0.0, 0.25, 0.0])
    assert levels["cuda:1"] == pytest.approx([0.1, 0.0, 0.0, 0.0])


def test_activity_agrees_with_counting_moment_by_moment() -> None:
    random = np.random.default_rng(0)
    spans = [(int(s), int(s + d), int(b)) for s, d, b in random.integers(1, 200, (60, 3))]
    kernels = [run_kernel(*span) for span in spans]
    running = np.zeros(400)
    for start, end, blocks in spans:
        running[start:end] += blocks
    expected = np.minimum(running / 132, 1.0).reshape(-1, 16).mean(axis=1)
    got = [s[4] for s in estimate_activity(kernels, {0: 132}, (0, 400), 16)]
    assert got == pytest.approx(expected)


# --- nesting ------------------------------------------------------------------------------------


def test_threads_nest_apart_and_other_threads_join_the_iteration(tmp_path: Path) -> None:
    file = chrome(
        tmp_path / "t.json",
        [
            complete("before", 0, 5),
            complete("train", 10, 100),
            complete("forward", 20, 30),
            complete("mm/x", 25, 5),
            complete("backward", 60, 40, tid=2),
            complete("mm/x", 70, 5, tid=2),
            complete("io", 100, 50, tid=3),  # outlasts the iteration
            complete("train", 120, 10),
            complete("launch", 72, 1, cat="cuda_runtime", tid=2, args={"correlation": 9}),
            kernel(80, 10, 64, correlation=9),
        ],
        baseTimeNanoseconds=1_700_000_000_000_000_000,
    )
    path = tmp_path / "trace.parquet"
    import_trace(file, path, ImportSettings(iteration="tr*"))
    found = rows(path)
    assert [(row["kind"], row["path"], row["iteration"], row["ordinal"]) for row in found] == [
        ("foreign", "before", [], 0),
        ("iteration", "train", [0], 0),
        ("exec", "train/forward", [0], 0),
        ("exec", "train/forward/mm|x", [0], 0),
        ("exec", "train/backward", [0], 0),
        ("exec", "train/backward/mm|x", [0], 0),
        ("kernel", "cuda:0/stream 7/gemm", [], 0),
        ("foreign", "io", [], 0),
        ("iteration", "train", [1], 1),
    ]
    assert found[0]["start_ns"] == 1_700_000_000_000_000_000
    launcher, launched = found[5], found[6]
    assert launched["parent_id"] == launcher["span_id"]
    assert launched["pid"] == launcher["pid"] == 1
    assert [ref["device"] for ref in launcher["outputs"]] == ["cuda:0"]
    assert dict(launcher["attributes"]) == {
        "category": "cpu_op",
        "rewritable": "false",
        "text": "mm/x",
    }
    assert dict(launched["attributes"]) == {
        "device": "cuda:0",
        "grid": "64x1x1",
        "block": "128x1x1",
    }


def test_begin_and_end_events_and_fractions_of_a_microsecond(tmp_path: Path) -> None:
    events = [
        {"ph": "B", "name": "outer", "pid": 1, "tid": 1, "ts": "TIME"},
        {"ph": "B", "name": "inner", "pid": 1, "tid": 1, "ts": 1661203462598739},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 1661203462598740.5},
        {"ph": "B", "name": "cut", "pid": 1, "tid": 1, "ts": 1661203462598741},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 1661203462598742},
        {"ph": "C", "name": "counter", "pid": 1, "ts": 5, "args": {"n": 1}},
    ]
    path = tmp_path / "trace.parquet"
    # A bare list is a trace too; its first time does not fit a binary fraction.
    text = json.dumps(events).replace('"TIME"', "1661203462598738.123")
    (tmp_path / "t.json").write_text(text)
    info = import_trace(tmp_path / "t.json", path)
    named = by_name(path)
    assert named["outer"]["start_ns"] == 1661203462598738123
    assert named["inner"]["path"] == "capture/outer/inner"
    assert named["inner"]["end_ns"] == 1661203462598740500
    assert ("unfinished", "true") in named["outer"]["attributes"]
    assert "1 ranges without an end last to the end of the file" in info.activity["notes"]
    assert info.activity["source"] == "none"


def test_times_of_another_clock_are_said_to_be(tmp_path: Path) -> None:
    info = import_trace(
        chrome(tmp_path / "t.json", [complete("a", 7, 2)]), tmp_path / "trace.parquet"
    )
    assert "times are those of the profiler's clock, not Unix time" in info.activity["notes"]


def test_sms_follow_from_blocks_per_sm(tmp_path: Path) -> None:
    file = chrome(tmp_path / "t.json", [kernel(1, 1_000, 64, **{"blocks per SM": 0.5925926})])
    info = import_trace(file, tmp_path / "trace.parquet")
    assert info.activity["sm_count"] == {"cuda:0": 108}
    (sample,) = read_table("activity", tmp_path / "trace.parquet").to_pylist()
    assert sample["activity"] == pytest.approx(64 / 108)


def test_calls_in_which_the_host_waits_are_spans_where_they_were_made(tmp_path: Path) -> None:
    file = chrome(
        tmp_path / "t.json",
        [
            complete("aten::item", 0, 500),
            complete("cudaStreamSynchronize", 10, 400, cat="cuda_runtime", args={"correlation": 1}),
            complete("aten::copy_", 600, 300),
            complete("cudaMemcpyAsync", 610, 20, cat="cuda_runtime", args={"correlation": 2}),
            complete("cudaMemcpyAsync", 640, 250, cat="cuda_runtime", args={"correlation": 3}),
            complete("cudaLaunchKernel", 895, 2, cat="cuda_runtime", args={"correlation": 4}),
            kernel(900, 10, 64, correlation=4),
            complete("Stream Sync", 10, 400, cat="cuda_sync"),
        ],
    )
    path = tmp_path / "trace.parquet"
    import_trace(file, path)
    waits = [row for row in rows(path) if row["kind"] == "sync"]
    assert [(row["path"], row["end_ns"] - row["start_ns"]) for row in waits] == [
        ("capture/aten::item/cudaStreamSynchronize", 400_000),
        ("capture/aten::copy_/cudaMemcpyAsync", 250_000),  # the other one was only enqueued
    ]
    launched = next(row for row in rows(path) if row["kind"] == "kernel")
    assert launched["parent_id"] == by_name(path)["aten::copy_"]["span_id"]
    # They are evidence, not nodes of the program.
    nodes = {node.path for node in build_facts(path).graph.nodes}
    assert nodes == {"capture", "capture/aten::item", "capture/aten::copy_"}


# --- what Nsight creates only where needed ------------------------------------------------------


def nsys_export(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.execute("INSERT INTO StringIds VALUES (1, 'registered'), (2, 'gemm')")
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


METRICS = (
    "CREATE TABLE GPU_METRICS ({clock} INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER)",
    "CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT)",
    "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (257, 4, 'SM Instructions/Tensor Active'), "
    "(257, 5, 'SMs Active [Throughput %]'), (257, 6, 'SM Warp Occupancy'), (256, 5, 'Other')",
    "INSERT INTO GPU_METRICS VALUES (100, 257, 5, 90), (200, 257, 5, 40), (200, 257, 4, 7), "
    "(300, 257, 5, 101), (300, 256, 5, 3), (300, 257, 6, 3)",
)
BANDWIDTH = (
    "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (257, 7, 'DRAM Read Bandwidth [Throughput %]'), "
    "(257, 8, 'DRAM Write Bandwidth [Throughput %]')",
    "INSERT INTO GPU_METRICS VALUES (100, 257, 7, 1), (100, 257, 8, 1), (200, 257, 7, 50), "
    "(200, 257, 8, 30)",
)
SESSION = (
    "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)",
    "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000)",
)


@pytest.mark.parametrize("clock", ["timestamp", "rawTimestamp"])
def test_gpu_metrics_are_measured_activity(clock: str, tmp_path: Path) -> None:
    statements = (statement.replace("{clock}", clock) for statement in METRICS)
    file = nsys_export(tmp_path / "e.sqlite", *SESSION, *statements)
    path = tmp_path / "trace.parquet"
    info = import_trace(file, path)
    base = 1_700_000_000_000_000_000
    samples = read_table("activity", path).to_pylist()
    assert [
        (s["source"], s["device"], s["start_ns"] - base, s["end_ns"] - base, s["estimate"])
        for s in samples
    ] == [
        ("pm-sampling", "cuda:1", 100, 200, False),
        ("pm-sampling", "cuda:1", 200, 300, False),
    ]
    assert [s["activity"] for s in samples] == pytest.approx([0.4, 1.0])
    assert info.activity["resolution_ns"] == 100
    assert info.activity["estimate"] is False


def test_use_of_the_memory_is_a_source_of_its_own(tmp_path: Path) -> None:
    statements = (statement.replace("{clock}", "timestamp") for statement in METRICS)
    file = nsys_export(tmp_path / "e.sqlite", *SESSION, *statements, *BANDWIDTH)
    path = tmp_path / "trace.parquet"
    info = import_trace(file, path)
    assert info.activity["source"] == "pm-sampling"
    samples = read_table("activity", path).to_pylist()
    assert [s["activity"] for s in samples if s["source"] == "pm-sampling"] == pytest.approx(
        [0.4, 1.0]
    )
    assert [s["activity"] for s in samples if s["source"] == "dram"] == pytest.approx([0.8])


def test_registered_names_payloads_and_cut_off_ranges(tmp_path: Path) -> None:
    thread = (1 << 48) | (42 << 24) | 43
    file = nsys_export(
        tmp_path / "e.sqlite",
        *SESSION,
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, "
        "textId INTEGER, globalTid INTEGER, int64Value INTEGER)",
        f"INSERT INTO NVTX_EVENTS VALUES (10, 90, 59, NULL, 1, {thread}, 7), "
        f"(20, NULL, 59, 'aten::mm, seq = 3, op_id = 4', NULL, {thread}, NULL), "
        f"(30, NULL, 34, 'a mark', NULL, {thread}, NULL)",
    )
    path = tmp_path / "trace.parquet"
    info = import_trace(file, path, ImportSettings(iteration="registered"))
    named = by_name(path)
    assert set(named) == {"registered", "aten::mm"}
    assert dict(named["registered"]["attributes"])["payload"] == "7"
    assert (named["registered"]["pid"], named["registered"]["thread"]) == (42, 43)
    inner = named["aten::mm"]
    assert (inner["path"], inner["end_ns"]) == ("registered/aten::mm", 1_700_000_000_000_000_090)
    assert dict(inner["attributes"])["text"] == "aten::mm, seq = 3, op_id = 4"
    assert info.activity["notes"] == [
        "ranges that the capture cut off end with the last event in the file"
    ]


# --- refusals -----------------------------------------------------------------------------------


def refusal(file: Path, tmp_path: Path, settings: ImportSettings | None = None) -> str:
    with pytest.raises(TraceError) as raised:
        import_trace(file, tmp_path / "trace.parquet", settings)
    assert not (tmp_path / "trace.parquet").exists()
    message = str(raised.value)
    assert message.startswith(f"{file}: expected ")
    return message.removeprefix(f"{file}: expected ")


def test_missing_empty_and_foreign_files(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none", tmp_path) == (
        "a profiler's file, got No such file or directory. Check the path."
    )
    (tmp_path / "empty").touch()
    assert refusal(tmp_path / "empty", tmp_path) == (
        "a profiler's file, got an empty one. Export it from the profiler again."
    )
    (tmp_path / "x.sqlite").write_bytes(b"PAR1 and more")
    assert refusal(tmp_path / "x.sqlite", tmp_path) == (
        "SQLite from 'nsys export --type sqlite' or JSON of Kineto or Chrome, got a file that is "
        "neither. Export it in one of these formats."
    )
    (tmp_path / "x.json").write_text('{"a": 1}')
    assert "'traceEvents', got other JSON" in refusal(tmp_path / "x.json", tmp_path)
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
    connection.close()
    assert "without its table StringIds" in refusal(tmp_path / "other.db", tmp_path)
    assert "got Is a directory" in refusal(tmp_path, tmp_path)


def test_files_without_anything_to_import(tmp_path: Path) -> None:
    for file in (nsys_export(tmp_path / "e.sqlite"), chrome(tmp_path / "t.json", [])):
        assert refusal(file, tmp_path).startswith(
            "ranges, kernels or samples of activity, got none."
        )


@pytest.mark.parametrize("part", [0.02, 0.5, 0.98])
@pytest.mark.parametrize("name", ["kineto/event_sync_trace.json.gz", "nsys/mock.sqlite"])
def test_truncated_files(name: str, part: float, tmp_path: Path) -> None:
    whole = real(name).read_bytes()
    file = tmp_path / Path(name).name
    file.write_bytes(whole[: int(len(whole) * part)])
    assert "It is truncated" in refusal(file, tmp_path)
    if name.endswith(".gz"):
        text = gzip.decompress(whole)
        file.write_bytes(text[: int(len(text) * part)])
        assert "It is truncated" in refusal(file, tmp_path)


def test_corrupt_files(tmp_path: Path) -> None:
    whole = bytearray(real("nsys/mock.sqlite").read_bytes())
    whole[4096:] = b"\xa5" * (len(whole) - 4096)
    (tmp_path / "c.sqlite").write_bytes(whole)
    assert refusal(tmp_path / "c.sqlite", tmp_path).startswith("a readable export")
    packed = bytearray(gzip.compress(json.dumps([complete("a", 1, 2)] * 500).encode()))
    packed[40:60] = b"\xa5" * 20
    (tmp_path / "c.gz").write_bytes(packed)
    assert refusal(tmp_path / "c.gz", tmp_path).startswith("a readable gzip file")
    (tmp_path / "deep.json").write_text("[" * 200_000)
    assert refusal(tmp_path / "deep.json", tmp_path).startswith("JSON, got ")


@pytest.mark.parametrize(
    "event",
    [
        {"ph": "X", "name": "no time", "pid": 1, "tid": 1},
        complete("no number", 1, 1) | {"ts": "soon"},
        complete("not a number", float("nan"), 1),
        complete("infinite", 1, float("inf")),
        kernel(1, 1, 1) | {"args": {"grid": ["x", 1, 1]}},
        kernel(1, 1, 1) | {"args": 3},
    ],
)
def test_events_that_make_no_sense(event: dict[str, Any], tmp_path: Path) -> None:
    file = chrome(tmp_path / "t.json", [event])
    assert refusal(file, tmp_path).startswith("events with times, durations and threads")


def test_times_and_ids_that_make_no_sense(tmp_path: Path) -> None:
    backwards = chrome(tmp_path / "a.json", [complete("a", 5, -2)])
    assert refusal(backwards, tmp_path) == (
        "ends after starts, got a that ends 2000 ns before it starts. It is corrupt; export it again."
    )
    huge = chrome(tmp_path / "b.json", [complete("a", 10**18, 2)])
    assert refusal(huge, tmp_path).startswith("ids and times of at most 64 bits")
    far = chrome(tmp_path / "c.json", [kernel(0, 1, 1), kernel(1e15, 1, 1)])
    assert refusal(far, tmp_path).startswith("at most 20000000 samples by device, got 10000000000")


THREAD = (1 << 24) | 1
TABLES: dict[str, dict[str, Any]] = {
    "StringIds": {"id": 1, "value": "k"},
    "META_DATA_EXPORT": {"name": "EXPORT_PRODUCT_NAME", "value": "N"},
    "TARGET_INFO_SESSION_START_TIME": {"utcEpochNs": 1_000},
    "PROCESSES": {"globalPid": 1 << 24, "name": "p"},
    "CUPTI_ACTIVITY_KIND_RUNTIME": {"start": 1, "globalTid": THREAD, "correlationId": 3},
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        **{"start": 5, "end": 9, "deviceId": 0, "streamId": 7, "globalPid": 1 << 24},
        **{"correlationId": 3, "demangledName": 1, "gridX": 1, "gridY": 1, "gridZ": 1},
    },
    "NVTX_EVENTS": {
        **{"start": 0, "end": 20, "eventType": 59, "text": "r", "textId": 1},
        **{"globalTid": THREAD, "int64Value": 4},
    },
    "GPU_METRICS": {"timestamp": 7, "typeId": 0, "metricId": 1, "value": 5},
    "TARGET_INFO_GPU_METRICS": {"typeId": 0, "metricId": 1, "metricName": "SMs Active"},
    "TARGET_INFO_GPU": {"id": 0, "smCount": 4},
    "TARGET_INFO_CUDA_DEVICE": {"gpuId": 0, "cudaId": 0, "numMultiprocessors": 4},
}
ABSENT = "absent"


def odd_export(path: Path, table: str, column: str, value: object) -> Path:
    """An export with one value, column or table that is odd or absent."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    for name, given in TABLES.items():
        row = {**given, column: value} if name == table and column in given else dict(given)
        row = {key: item for key, item in row.items() if item != ABSENT}
        if not row or (name == table and column == ""):
            continue
        columns = ", ".join(f'"{key}"' for key in row)
        connection.execute(f"CREATE TABLE {name} ({columns})")
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO {name} VALUES ({marks})", list(row.values()))
    connection.close()
    return path


def attempt(file: Path, tmp_path: Path) -> str:
    try:
        import_trace(file, tmp_path / "trace.parquet")
    except TraceError:
        return "refused"
    return "imported"


@pytest.mark.parametrize("table", TABLES)
def test_every_odd_or_absent_column_imports_or_is_refused(table: str, tmp_path: Path) -> None:
    file = tmp_path / "e.sqlite"
    assert attempt(odd_export(file, "none", "", None), tmp_path) == "imported"
    without = attempt(odd_export(file, table, "", None), tmp_path)
    assert without == ("refused" if table == "StringIds" else "imported")
    for column in TABLES[table]:
        for value in (ABSENT, "x", 1.5):
            attempt(odd_export(file, table, column, value), tmp_path)


EVENTS: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "p"}},
    complete("a", 1, 10),
    {"ph": "B", "name": "b", "pid": 1, "tid": 1, "ts": 2},
    {"ph": "E", "pid": 1, "tid": 1, "ts": 3},
    complete("l", 4, 1, cat="cuda_runtime", args={"correlation": 5}),
    kernel(5, 3, 2, correlation=5),
]


@pytest.mark.parametrize("value", [None, [], 2**70])
def test_every_odd_field_imports_or_is_refused(value: object, tmp_path: Path) -> None:
    for position, event in enumerate(EVENTS):
        args: dict[str, Any] = event.get("args", {})
        odd = [{**event, key: value} for key in event]
        odd += [{**event, "args": {**args, key: value}} for key in args]
        for replaced in odd:
            events = [*EVENTS[:position], replaced, *EVENTS[position + 1 :]]
            attempt(chrome(tmp_path / "t.json", events), tmp_path)
    for key in ("deviceProperties", "baseTimeNanoseconds"):
        attempt(chrome(tmp_path / "t.json", EVENTS, **{key: value}), tmp_path)
    assert attempt(chrome(tmp_path / "t.json", EVENTS), tmp_path) == "imported"


def test_an_iteration_that_is_not_there(tmp_path: Path) -> None:
    file = chrome(tmp_path / "t.json", [complete("a", 1, 2), complete("a", 5, 2)])
    assert refusal(file, tmp_path, ImportSettings(iteration="step")) == (
        "ranges named 'step' as iterations, got a. Name another range, or leave it to the default."
    )
    with pytest.raises(ValueError, match="expected a resolution and an SM count of at least 1"):
        ImportSettings(resolution_ns=0)


def test_the_command_refuses_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    result = CliRunner().invoke(
        app, ["import", str(tmp_path / "empty"), "-o", str(tmp_path / "t.parquet")]
    )
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    nowhere = tmp_path / "no" / "t.parquet"
    file = chrome(tmp_path / "t.json", [complete("a", 1, 2)])
    result = CliRunner().invoke(app, ["import", str(file), "-o", str(nowhere)])
    assert result.exit_code == 3
    assert result.stderr.startswith(f"{nowhere}: expected to write the trace there, got ")


def test_read_profile_tells_formats_by_content(tmp_path: Path) -> None:
    file = chrome(tmp_path / "named.sqlite", [complete("a", 1, 2)])
    assert read_profile(file).producer == "Chrome trace"
    assert [item.name for item in read_profile(file).ranges] == ["a"]
