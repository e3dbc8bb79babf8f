from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from opentelemetry import trace as otel
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

import rose_trace as rose
from rose_trace.interop import import_trace
from rose_trace.interop.export import ExportFormat, export_trace, format_of
from rose_trace.parquet import TraceError, read_spans, read_table
from tests.properties import examples
from tests.rose_trace.interop.random_traces import T0, RandomProgram, Row, sample, write_trace

pb: Any = perfetto_trace_pb2
DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
KERNELS = {
    "nsys/h100_2gpu_1s.sqlite": 3_442,
    "nsys/mock.sqlite": 2,
    "kineto/nccl_data.json.gz": 2_700,
    "kineto/event_sync_trace.json.gz": 4,
}
Shown = dict[str, Any]
"""A slice as read back: name, category, start, end, track, args, and the slice around it."""


class Timeline:
    """What a `.pftrace` holds, read with Perfetto's own messages and by Perfetto's rules."""

    def __init__(self, path: Path) -> None:
        self.names: dict[str, dict[int, str]] = defaultdict(dict)
        self.tracks: dict[int, Any] = {}
        self.slices: list[Shown] = []
        self.instants: list[Shown] = []
        self.counters: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.metadata: dict[str, str] = {}
        self.snapshot: Any = None
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
        events: list[Any] = []
        for packet in pb.Trace.FromString(raw).packet:
            self._read_names(packet.interned_data)
            if packet.HasField("clock_snapshot"):
                self.snapshot = packet.clock_snapshot
            for item in packet.chrome_events.metadata:
                self.metadata[item.name] = item.string_value
            if packet.HasField("track_descriptor"):
                assert packet.track_descriptor.uuid not in self.tracks
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            if packet.HasField("track_event"):
                events.append(packet)
        stacks: dict[int, list[Shown]] = defaultdict(list)
        for packet in sorted(events, key=lambda p: p.timestamp):  # stable, as in Perfetto
            self._replay(packet, stacks[packet.track_event.track_uuid])
        assert not any(stacks.values())

    def _read_names(self, data: Any) -> None:
        for table in ("event_names", "event_categories", "debug_annotation_names"):
            for entry in getattr(data, table):
                self.names[table][entry.iid] = entry.name
        for entry in data.debug_annotation_string_values:
            self.names["values"][entry.iid] = entry.str.decode()

    def _replay(self, packet: Any, stack: list[Shown]) -> None:
        event = packet.track_event
        assert event.track_uuid in self.tracks
        if event.type == pb.TrackEvent.TYPE_COUNTER:
            name = self.tracks[event.track_uuid].name
            self.counters[name].append((packet.timestamp, event.double_counter_value))
        elif event.type == pb.TrackEvent.TYPE_SLICE_END:
            item = stack.pop()
            item["end"] = packet.timestamp
            self.slices.append(item)
        else:
            item: Shown = {
                "name": self.names["event_names"][event.name_iid],
                "category": self.names["event_categories"][event.category_iids[0]],
                "start": packet.timestamp,
                "track": self.tracks[event.track_uuid],
                "args": dict(self._args(event)),
                "out": set(event.flow_ids),
                "into": set(event.terminating_flow_ids),
                "outer": stack[-1] if stack else None,
            }
            if event.type == pb.TrackEvent.TYPE_INSTANT:
                self.instants.append(item)
            else:
                stack.append(item)

    def _args(self, event: Any) -> Iterator[tuple[str, Any]]:
        for item in event.debug_annotations:
            name = self.names["debug_annotation_names"][item.name_iid]
            if item.string_value_iid:
                yield name, self.names["values"][item.string_value_iid]
            else:
                yield name, getattr(item, item.WhichOneof("value"))

    def on_threads(self) -> list[Shown]:
        return [s for s in self.slices if s["category"] not in {"device", "kernel", "activity"}]

    def on_devices(self) -> list[Shown]:
        return [s for s in self.slices if s["category"] in {"device", "kernel"}]


def export(trace: Path, name: str) -> Path:
    path = trace.with_name(name)
    export_trace(trace, path)
    return path


def expected_flows(rows: list[Row]) -> set[tuple[int, int]]:
    known = {row["span_id"] for row in rows}
    pairs = {(ref["producer"], row["span_id"]) for row in rows for ref in row["inputs"]}
    return {(made, taken) for made, taken in pairs if made in known and made != taken}


seeds = st.integers(0, 2**32 - 1)
some = examples(25, 10, HealthCheck.function_scoped_fixture)


@some
@given(seed=seeds, overlapping=st.booleans())
def test_perfetto_shows_every_span_once_and_nests_only_what_was_called(
    seed: int, overlapping: bool, tmp_path: Path
) -> None:
    program = RandomProgram(Random(seed), overlapping)
    rows = read_spans(write_trace(tmp_path / "t.parquet", program.rows)).to_pylist()
    shown = Timeline(export(tmp_path / "t.parquet", "t.pftrace"))

    def brief(s: Shown) -> tuple[Any, ...]:
        return s["args"]["span_id"], s["name"], s["start"], s["end"]

    ids = [f"{row['span_id']:016x}" for row in rows]
    assert sorted(map(brief, shown.on_threads())) == sorted(
        (span_id, row["node"], row["start_ns"], row["end_ns"])
        for span_id, row in zip(ids, rows, strict=True)
    )
    assert sorted(map(brief, shown.on_devices())) == sorted(
        (span_id, row["node"], row["start_ns"], row["device_end_ns"])
        for span_id, row in zip(ids, rows, strict=True)
        if row["device_end_ns"] is not None
    )
    by_id = {f"{row['span_id']:016x}": row for row in rows}
    for item in shown.on_threads():
        row = by_id[item["args"]["span_id"]]
        assert item["args"]["path"] == row["path"]
        assert item["args"].get("input_refs", 0) == len(row["inputs"]) or not (
            row["inputs"] or row["outputs"]
        )
        owner = shown.tracks[item["track"].parent_uuid]
        assert owner.process.process_name.startswith(row["process"])
        thread = item["track"].thread
        assert thread.tid in {0, row["thread"]}
        if item["outer"] is not None:
            assert item["outer"]["args"]["span_id"] == item["args"]["parent_id"]
        elif not overlapping and row["parent_id"]:
            raise AssertionError("a call that fits into its caller was not shown in it")
    if not overlapping:
        assert not any(
            "overlapping" in track.name for s in shown.on_threads() for track in [s["track"]]
        )
    out = {flow: s for s in shown.on_threads() for flow in s["out"]}
    into = {flow: s for s in shown.on_threads() for flow in s["into"]}
    assert out.keys() == into.keys()
    assert expected_flows(rows) == {
        (int(out[f]["args"]["span_id"], 16), int(into[f]["args"]["span_id"], 16)) for f in out
    }


@some
@given(seed=seeds)
def test_chrome_json_holds_the_same_slices_to_the_nanosecond(seed: int, tmp_path: Path) -> None:
    program = RandomProgram(Random(seed))
    trace = write_trace(tmp_path / "t.parquet", program.rows, program.activity())
    rows = read_spans(trace).to_pylist()
    data = json.loads(export(trace, "t.json").read_text())
    base = data.get("baseTimeNanoseconds", 0)
    events = data["traceEvents"]

    def ns(event: Row) -> tuple[int, int]:
        start = base + round(event["ts"] * 1_000)
        return start, start + round(event["dur"] * 1_000)

    spans = [e for e in events if e["ph"] == "X" and e["cat"] not in {"device", "activity"}]
    assert sorted((e["args"]["span_id"], e["name"], *ns(e)) for e in spans) == sorted(
        (f"{row['span_id']:016x}", row["node"], row["start_ns"], row["end_ns"]) for row in rows
    )
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(ns(event))
    assert tracks.keys() == named
    for intervals in tracks.values():
        for n, (start, end) in enumerate(intervals):
            for other_start, other_end in intervals[:n]:
                assert other_start <= start
                assert end <= other_end or other_end <= start  # inside or after, never across
    by_id = {f"{row['span_id']:016x}": (row["start_ns"], row["end_ns"]) for row in rows}
    begun = Counter(e["id"] for e in events if e["ph"] == "s")
    assert begun == Counter(e["id"] for e in events if e["ph"] == "f")
    assert len(begun) == len(expected_flows(rows))
    assert set(begun.values()) <= {1}
    assert len(by_id) == len(rows)
    activity = read_table("activity", trace).to_pylist()
    assert sum(e["ph"] == "C" for e in events) == len(activity) + len(
        {(row["source"], row["device"]) for row in activity}
    )


def test_chrome_json_imports_again(tmp_path: Path) -> None:
    trace = tmp_path / "k.parquet"
    import_trace(real("kineto/event_sync_trace.json.gz"), trace)
    first = read_spans(trace).to_pylist()
    import_trace(export(trace, "again.json.gz"), tmp_path / "again.parquet")
    again = read_spans(tmp_path / "again.parquet").to_pylist()

    def brief(rows: list[Row]) -> list[Any]:
        keys = ("kind", "node", "start_ns", "end_ns", "stream")
        return sorted(tuple(str(row[k]) for k in keys) for row in rows if row["kind"] == "kernel")

    assert len(brief(first)) == 4
    assert brief(first) == brief(again)


def test_counters_have_one_point_per_sample_and_say_what_they_are(tmp_path: Path) -> None:
    activity = [
        sample("kernels", "cuda:0", 0, 50, 0.25, True),
        sample("gpm", "cuda:0", 0, 100, 0.5, False),
        sample("kernels", "cuda:0", 50, 50, 0.75, True),
        sample("gpm", "cuda:0", 150, 100, 0.625, False),  # half a sample late: no gap
        sample("cpu", "cpu", 160, 10, 1.0, False),
        sample("kernels", "cuda:0", 400, 50, 0.5, True),
    ]
    trace = write_trace(tmp_path / "t.parquet", [], activity)
    shown = Timeline(export(trace, "t.pftrace.gz"))
    points = {name: [(t - T0, v) for t, v in found] for name, found in shown.counters.items()}
    assert points == {
        "SM activity cuda:0 (kernels, estimate)": [(0, 0.25), (50, 0.75), (400, 0.5), (450, 0.5)],
        "SM activity cuda:0 (gpm)": [(0, 0.5), (150, 0.625), (250, 0.625)],
        "CPU activity (cpu)": [(160, 1.0), (170, 1.0)],
    }
    (gap,) = shown.slices
    assert (gap["name"], gap["start"] - T0, gap["end"] - T0) == ("no samples", 100, 400)
    assert gap["track"].name == "SM activity cuda:0 (kernels, estimate): no samples"
    (clocks,) = [{c.clock_id: c.timestamp for c in shown.snapshot.clocks}]
    assert clocks == {pb.BUILTIN_CLOCK_BOOTTIME: T0, pb.BUILTIN_CLOCK_REALTIME: T0}
    events = json.loads(export(trace, "t.json").read_text())["traceEvents"]
    drawn = [e["name"] for e in events if e["ph"] == "C"]
    assert Counter(drawn) == Counter(name for name, found in points.items() for _ in found)


def test_a_recorded_program_with_threads_coroutines_and_an_error(tmp_path: Path) -> None:
    @rose.node(pure=True)
    def leaf(x: int) -> int:
        return x + 1

    @rose.node
    async def fetch(first: asyncio.Event, then: asyncio.Event) -> None:
        first.set()
        await then.wait()
        leaf(1)

    @rose.node
    async def answer(first: asyncio.Event, then: asyncio.Event) -> None:
        await first.wait()
        then.set()
        await asyncio.sleep(0)

    @rose.node
    def fails() -> None:
        raise KeyError("x")

    async def overlap() -> None:
        for _ in range(3):
            first, then, last = asyncio.Event(), asyncio.Event(), asyncio.Event()
            waiting = asyncio.create_task(fetch(first, last))
            answering = asyncio.create_task(answer(first, then))
            await then.wait()
            last.set()
            await asyncio.gather(waiting, answering)

    @rose.node
    def train() -> None:
        leaf(leaf(1))
        with pytest.raises(KeyError):
            fails()
        asyncio.run(overlap())
        other = threading.Thread(target=leaf, args=(5,))
        other.start()
        other.join()

    trace = tmp_path / "t.parquet"
    with rose.record(trace, activity="none"):
        train()
    rows = read_spans(trace).to_pylist()
    assert len(rows) == 1 + 2 + 1 + 3 * 3 + 1
    shown = Timeline(export(trace, "t.pftrace"))
    by_id = {int(s["args"]["span_id"], 16): s for s in shown.on_threads()}
    assert len(by_id) == len(rows)
    for row in rows:
        item = by_id[row["span_id"]]
        assert (item["name"], item["start"], item["end"]) == (
            row["node"],
            row["start_ns"],
            row["end_ns"],
        )
        assert item["args"]["status"] == row["status"]
    (failed,) = [s for s in shown.on_threads() if s["name"].endswith("fails")]
    assert failed["args"]["error"] == "KeyError"
    names = {s["track"].thread.tid or s["track"].name for s in shown.on_threads()}
    threads = {row["thread"] for row in rows}
    assert len(threads) == 2
    assert names == threads | {"main thread, overlapping 1"}
    assert shown.metadata["rose.complete"] == "yes"
    assert otel.get_current_span().get_span_context().is_valid is False


def real(name: str) -> Path:
    file = DATA / name
    if not file.exists():
        pytest.skip(f"no real profiler file at {file}")
    return file


@pytest.mark.parametrize("name", KERNELS)
def test_real_profiles_keep_every_kernel(
    name: str, imported: Callable[[str], Path], tmp_path: Path
) -> None:
    trace = imported(name)
    export_trace(trace, tmp_path / "t.pftrace")
    shown = Timeline(tmp_path / "t.pftrace")
    kernels = [s for s in shown.on_devices() if s["category"] == "kernel"]
    assert len(kernels) == KERNELS[name]
    columns = ["start_ns", "end_ns", "node", "stream", "kind"]
    rows = read_spans(trace).select(columns).to_pylist()
    expected = Counter(
        (row["start_ns"], row["end_ns"], row["node"]) for row in rows if row["kind"] == "kernel"
    )
    assert Counter((s["start"], s["end"], s["name"]) for s in kernels) == expected
    streams = {row["stream"] for row in rows if row["kind"] == "kernel"}
    assert {f"stream {n}" for n in streams} <= {
        s["track"].name.split(", ")[0].split(" ", 1)[1] for s in kernels
    }
    assert all("estimate" in counter for counter in shown.counters)


def test_calls_whose_caller_was_lost_nest_by_time(tmp_path: Path) -> None:
    rows = RandomProgram(Random(3), overlapping=False).rows
    base: Row = {**rows[0], "kind": "exec", "thread": 100, "device_end_ns": None, "inputs": []}
    outer: Row = {**base, "span_id": 1, "parent_id": 77, "start_ns": T0, "end_ns": T0 + 50}
    inner: Row = {**base, "span_id": 2, "parent_id": 88, "start_ns": T0 + 5, "end_ns": T0 + 9}
    across: Row = {**base, "span_id": 3, "parent_id": 88, "start_ns": T0 + 6, "end_ns": T0 + 60}
    trace = write_trace(
        tmp_path / "t.parquet", [outer, inner, across], reasons=["pid 1 lost 2 rows"]
    )
    shown = Timeline(export(trace, "t.pftrace"))
    around = {int(s["args"]["span_id"], 16): s["outer"] for s in shown.slices}
    assert around[1] is None
    assert around[3] is None
    assert around[2] is not None
    assert around[2]["args"]["span_id"] == f"{1:016x}"
    assert shown.metadata["rose.complete"] == "no"
    assert shown.metadata["rose.reasons"] == "pid 1 lost 2 rows"
    assert [s["name"] for s in shown.instants] == ["INCOMPLETE trace: rows were lost"]
    other = json.loads(export(trace, "t.json").read_text())["otherData"]
    assert (other["complete"], other["reasons"]) == ("no", "pid 1 lost 2 rows")


def test_the_same_trace_gives_the_same_file(tmp_path: Path) -> None:
    program = RandomProgram(Random(5))
    trace = write_trace(tmp_path / "t.parquet", program.rows, program.activity())
    for name in ("pftrace", "json", "json.gz", "otlp.json", "otlp.pb"):
        assert export(trace, f"a.{name}").read_bytes() == export(trace, f"b.{name}").read_bytes()


def test_an_empty_trace_is_an_empty_timeline(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [])
    assert Timeline(export(trace, "t.pftrace")).slices == []
    assert json.loads(export(trace, "t.json").read_text())["traceEvents"] == []
    assert json.loads(export(trace, "t.otlp.json").read_text()) == {"resourceSpans": []}
    assert export(trace, "t.otlp.pb").read_bytes() == b""


# --- refusals -----------------------------------------------------------------------------------


def test_names_ask_for_formats() -> None:
    names = {
        "a.pftrace": ExportFormat.PERFETTO,
        "a.json": ExportFormat.CHROME,
        "A.JSON.GZ": ExportFormat.CHROME,
        "a.otlp.json": ExportFormat.OTLP_JSON,
        "a.otlp.json.gz": ExportFormat.OTLP_JSON,
        "a.otlp.pb": ExportFormat.OTLP_PROTO,
    }
    assert {name: format_of(Path(name)) for name in names} == names
    with pytest.raises(
        TraceError, match=r"^a\.txt: expected a name that ends in \.pftrace, .*, got \.txt\."
    ):
        format_of(Path("a.txt"))


def test_what_cannot_be_read_or_written_leaves_nothing_behind(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", RandomProgram(Random(1)).rows)
    with pytest.raises(TraceError, match="expected to write the export there, got"):
        export_trace(trace, tmp_path / "no" / "a.pftrace")
    with pytest.raises(TraceError, match="expected a file beside the trace, got the trace"):
        export_trace(trace, trace, ExportFormat.PERFETTO)
    whole = trace.read_bytes()
    for part in (b"", b"PAR1", whole[:-20], whole[: len(whole) // 2], b"{}"):
        (tmp_path / "cut.parquet").write_bytes(part)
        with pytest.raises(TraceError, match=r"cut\.parquet: expected a Parquet file, got"):
            export_trace(tmp_path / "cut.parquet", tmp_path / "a.pftrace")
    damaged = bytearray(whole)
    damaged[4:2_000] = b"\xa5" * 1_996
    (tmp_path / "cut.parquet").write_bytes(damaged)
    with pytest.raises(TraceError, match=r"cut\.parquet: expected"):
        export_trace(tmp_path / "cut.parquet", tmp_path / "a.pftrace")
    assert not list(tmp_path.glob("*.pftrace"))
    assert not list(tmp_path.glob(".*.new"))


def test_a_missing_package_is_named_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    trace = write_trace(tmp_path / "t.parquet", [])
    monkeypatch.delitem(sys.modules, "rose_trace.interop.export.perfetto", raising=False)
    for module in [m for m in sys.modules if m.startswith("perfetto")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "perfetto", None)
    with pytest.raises(TraceError, match=r"Run: pip install 'rose-rl\[export\]'$"):
        export_trace(trace, tmp_path / "t.pftrace")
    export_trace(trace, tmp_path / "t.json")  # needs no package
