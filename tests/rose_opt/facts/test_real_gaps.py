"""Gaps that are named in real profiler files, against what the files themselves say (read without Rose)."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rose_opt.facts import CauseKind, Facts, build_facts
from rose_trace.parquet import read_spans, read_table

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
FILES = (
    "nsys/h100_2gpu_1s.sqlite",
    "nsys/mfu_2gpu_before.sqlite",
    "kineto/rank0.json.gz",
    "kineto/nccl_data.json.gz",
)
NP: Any = np


@dataclass
class Raw:
    """What a file says, by device and by process.

    Attributes:
        kernels: By device, start, end and blocks of every kernel [ns, ns, blocks].
        calls: By name, start and end of every CUDA call [ns, ns].
        sms: SMs of a device.
    """

    kernels: dict[str, list[tuple[int, int, int]]] = field(
        default_factory=lambda: defaultdict[str, list[tuple[int, int, int]]](list)
    )
    calls: dict[str, list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict[str, list[tuple[int, int]]](list)
    )
    sms: dict[str, int] = field(default_factory=dict[str, int])
    _steps: dict[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])

    def active_ns(self, device: str, start_ns: int, end_ns: int) -> float:
        """Integral of SM activity between two moments, stepping from edge to edge."""
        times, level = self.steps(device)
        first, last = NP.searchsorted(times, [start_ns, end_ns])
        first = max(int(first) - 1, 0)
        edges = NP.append(times[first : int(last)], end_ns)
        return float((level[first : int(last)] * NP.diff(NP.maximum(edges, start_ns))).sum())

    def steps(self, device: str) -> tuple[Any, Any]:
        """Moments at which activity changes [ns], and what it is from each on [fraction]."""
        if device not in self._steps:
            k = NP.array(self.kernels[device], dtype=NP.int64)
            times = NP.concatenate([k[:, 0], k[:, 1]])
            order = NP.argsort(times, kind="stable")
            running = NP.cumsum(NP.concatenate([k[:, 2], -k[:, 2]])[order])
            level = NP.minimum(running / self.sms.get(device, 132), 1.0)
            self._steps[device] = (times[order], level)
        return self._steps[device]


def read_nsys(file: Path) -> Raw:
    raw = Raw()
    with sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True) as db:
        (origin,) = db.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
        for start, end, device, *grid in db.execute(
            "SELECT start, end, deviceId, gridX, gridY, gridZ FROM CUPTI_ACTIVITY_KIND_KERNEL"
        ):
            blocks = int(np.prod(grid))
            raw.kernels[f"cuda:{device}"].append((start + origin, end + origin, blocks))
        for start, end, name in db.execute(
            "SELECT start, end, value FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId"
        ):
            raw.calls[name.rpartition("_v")[0] or name].append((start + origin, end + origin))
    db.close()
    return raw


def read_kineto(file: Path) -> Raw:
    raw = Raw()
    data = json.loads(gzip.decompress(file.read_bytes()), parse_float=str)
    base = int(data.get("baseTimeNanoseconds") or 0)
    for properties in data.get("deviceProperties", ()):
        raw.sms[f"cuda:{properties['id']}"] = properties["numSms"]
    for event in data["traceEvents"]:
        if event.get("cat") not in ("kernel", "Kernel", "cuda_runtime"):
            continue
        start, last = (
            round(float(str(event[key]).partition(".")[0])) * 1_000
            + round(float("0." + (str(event[key]).partition(".")[2] or "0")) * 1_000)
            for key in ("ts", "dur")
        )
        span = (start + base, start + last + base)
        if event["cat"] == "cuda_runtime":
            raw.calls[event["name"]].append(span)
        else:
            x, y, z = (int(size) for size in event["args"]["grid"])
            blocks = x * y * z
            raw.kernels[f"cuda:{event['args']['device']}"].append((*span, blocks))
    return raw


@cache
def read_raw(name: str) -> Raw:
    return read_nsys(DATA / name) if name.startswith("nsys") else read_kineto(DATA / name)


@pytest.fixture(scope="module")
def taken(imported: Callable[[str], Path]) -> Any:
    """Facts of a real file, and where its trace is."""

    @cache
    def take(name: str) -> tuple[Facts, Path]:
        path = imported(name)
        return build_facts(path), path

    return take


@pytest.mark.parametrize("name", FILES)
def test_named_runs_are_gaps_in_the_file(name: str, taken: Any) -> None:
    facts, path = taken(name)
    raw = read_raw(name)
    assert facts.sample_windows
    first_ns = NP.min(read_table("activity", path).column("start_ns").to_numpy())
    for window in facts.sample_windows:
        length_ns = window.end_ns - window.start_ns
        active = raw.active_ns(window.device, window.start_ns, window.end_ns) / length_ns
        assert active == pytest.approx(window.activity, abs=2e-3)
        assert active < 0.5
        assert facts.activity is not None
        before_ns = window.start_ns - facts.activity.sample_ns
        if before_ns >= first_ns:  # the run is maximal: the sample before it is busier
            before = raw.active_ns(window.device, before_ns, window.start_ns)
            assert before / facts.activity.sample_ns >= 0.5 - 1e-3
    longest = facts.sample_windows[0]
    assert longest.activity < 0.2


@pytest.mark.parametrize("name", FILES)
def test_named_waits_are_calls_in_the_file(name: str, taken: Any) -> None:
    facts, _ = taken(name)
    raw = read_raw(name)
    for window in facts.sample_windows:
        if window.call:
            inside = [
                min(end, window.end_ns) - max(start, window.start_ns)
                for start, end in raw.calls[window.call]
                if start < window.end_ns and end > window.start_ns
            ]
            # Of one process here; the file's calls are those of all.
            assert 0 < window.call_ns <= sum(inside) + 1_000
    if name != "kineto/nccl_data.json.gz":
        assert any(window.call for window in facts.sample_windows)


@pytest.mark.parametrize("name", ["nsys/h100_2gpu_1s.sqlite", "kineto/rank0.json.gz"])
def test_evidence_is_what_the_file_says(name: str, taken: Any) -> None:
    """Kernels during, kernels launched and waits in the largest windows, counted again with numpy."""
    facts, path = taken(name)
    raw = read_raw(name)
    columns = ["span_id", "parent_id", "kind", "path", "start_ns", "end_ns", "iteration"]
    rows = read_spans(path).select(columns).to_pylist()
    launched_by: dict[int, list[Any]] = defaultdict(list)
    waits_in: dict[int, list[Any]] = defaultdict(list)
    runs_of: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        of_kind = {"kernel": launched_by, "sync": waits_in}.get(row["kind"])
        if of_kind is None:
            runs_of[row["path"]].append(row)
        else:
            of_kind[row["parent_id"]].append(row)
    largest = sorted((w for w in facts.windows if w.cause), key=lambda w: -w.score)[:8]
    assert len(largest) == 8
    warm_up = {0} if facts.iteration.used > facts.iteration.ranks else set[int]()
    for window in largest:
        assert window.cause is not None
        seen = window.cause.evidence
        calls = [row for row in runs_of[window.target] if row["iteration"][0] not in warm_up]
        assert seen.calls == len(calls)
        assert seen.duration_ns == sum(row["end_ns"] - row["start_ns"] for row in calls)
        launched = [row for call in calls for row in launched_by[call["span_id"]]]
        assert seen.kernels == len(launched)
        assert seen.kernel_ns == sum(row["end_ns"] - row["start_ns"] for row in launched)
        waits = [row for call in calls for row in waits_in[call["span_id"]]]
        assert seen.sync_calls == len(waits)
        assert seen.sync_ns == sum(row["end_ns"] - row["start_ns"] for row in waits)
        if len(raw.kernels) == 1:
            (device,) = raw.kernels
            active = sum(raw.active_ns(device, r["start_ns"], r["end_ns"]) for r in calls)
            assert seen.filled == pytest.approx(active / seen.duration_ns, abs=1e-3)
            assert seen.busy is not None
            assert seen.busy >= (seen.filled or 0.0) - 1e-9


def test_the_causes_that_the_files_are_known_for(taken: Any) -> None:
    h100, _ = taken("nsys/h100_2gpu_1s.sqlite")
    first = max((w for w in h100.windows if w.cause), key=lambda w: w.score)
    assert first.target.endswith("aten::item/aten::_local_scalar_dense")
    assert first.cause.kind is CauseKind.WAITING_ON_SYNC
    assert first.cause.advice.startswith("remove the .item()")
    rank0, _ = taken("kineto/rank0.json.gz")
    first = max((w for w in rank0.windows if w.cause), key=lambda w: w.score)
    assert first.cause.evidence.sync_name == "cudaMemcpyAsync"
    assert first.cause.advice.startswith("copy from pinned memory")
    nccl, _ = taken("kineto/nccl_data.json.gz")
    kinds = {w.cause.kind for w in nccl.windows if w.cause}
    assert CauseKind.LAUNCH_BOUND in kinds  # a small network, eager
