"""A small CUDA program from recording to rows: device ends, streams, NVTX ranges, the source of activity."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import rose_trace as rose
from rose_trace import nvtx
from rose_trace.component import program
from rose_trace.parquet import beside, read_spans

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

Rows = list[dict[str, Any]]
cuda: Any = torch.cuda
DEVICE_MS = 30.0


def busy(milliseconds: float) -> None:
    cuda._sleep(round(milliseconds * 1.9e6))


@rose.component
class Policy:
    """Works on the device without waiting for it."""

    def __init__(self) -> None:
        self.weights = torch.ones(64, 64, device="cuda")
        self.aside = torch.cuda.Stream()

    @rose.node(reads="weights")
    def act(self, obs: torch.Tensor) -> torch.Tensor:
        busy(DEVICE_MS)
        return obs @ self.weights

    @rose.node(updates="weights")
    def learn(self) -> None:
        """Neither takes nor returns a tensor, and yet the device works."""
        busy(DEVICE_MS)
        self.weights.mul_(0.5)

    @rose.node(reads="weights")
    def elsewhere(self, obs: torch.Tensor) -> torch.Tensor:
        busy(DEVICE_MS)
        return obs + 1


@rose.node(pure=True)
def count(items: int) -> int:
    return sum(range(items))


def of(rows: Rows, node: str) -> Rows:
    return [row for row in rows if row["node"] == node]


def test_invocations_last_until_their_device_work_is_done(tmp_path: Path) -> None:
    with program():  # names begin anew
        policy = Policy()
    obs = torch.ones(8, 64, device="cuda")
    finished: dict[str, list[int]] = {"policy.act": [], "policy.learn": []}

    @rose.iteration(name="steps")
    def steps() -> None:
        for _ in range(5):
            policy.act(obs)
            count(10_000)  # the CPU goes on while the device works
            torch.cuda.synchronize()
            finished["policy.act"].append(time.time_ns())
            policy.learn()
            torch.cuda.synchronize()
            finished["policy.learn"].append(time.time_ns())
            with torch.cuda.stream(policy.aside):
                policy.elsewhere(obs)
            torch.cuda.synchronize()

    steps()  # warm
    for moments in finished.values():
        moments.clear()
    path = tmp_path / "trace.parquet"
    with rose.record(path, activity="none") as recording:
        steps()
    assert recording.info is not None
    assert recording.info.complete
    rows = read_spans(path).to_pylist()
    for node, moments in finished.items():
        for row, done_ns in zip(of(rows, node), moments, strict=True):
            assert row["stream"] == 0
            assert row["device_end_ns"] - row["start_ns"] > DEVICE_MS * 0.5e6
            assert row["device_end_ns"] > row["end_ns"]
            assert -20_000 <= done_ns - row["device_end_ns"] <= 1_000_000
    for row in of(rows, "count"):
        assert row["device_end_ns"] is None or row["device_end_ns"] == row["end_ns"]
    assert {row["stream"] for row in of(rows, "policy.elsewhere")} == {policy.aside.stream_id}


def test_rows_whose_device_still_works_at_the_end_are_waited_for(tmp_path: Path) -> None:
    with program():  # names begin anew
        policy = Policy()
    obs = torch.ones(8, 64, device="cuda")
    torch.cuda.synchronize()
    path = tmp_path / "trace.parquet"
    with rose.record(path, activity="none"):
        policy.act(obs)
        for _ in range(10):
            policy.act(obs)
    rows = read_spans(path).to_pylist()
    rows = of(rows, "policy.act")
    ends = [row["device_end_ns"] for row in rows]
    assert len(ends) == 11
    assert all(end is not None for end in ends)
    assert ends == sorted(ends)
    assert ends[-1] - rows[-1]["end_ns"] > DEVICE_MS * 5e6


def test_activity_of_a_recorded_program(tmp_path: Path) -> None:
    big = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    @rose.node(pure=True)
    def products() -> torch.Tensor:
        begin = time.perf_counter()
        out = big
        while time.perf_counter() - begin < 1.5:
            out = torch.mm(big, big)
            torch.cuda.synchronize()
        return out

    @rose.node(pure=True)
    def host() -> int:
        begin, turns = time.perf_counter(), 0
        while time.perf_counter() - begin < 1.5:
            turns += 1
        return turns

    @rose.iteration(name="phases")
    def phases() -> None:
        products()
        host()

    path = tmp_path / "trace.parquet"
    with rose.record(path) as recording:
        for _ in range(2):
            phases()
    assert recording.info is not None
    about = recording.info.activity
    print(about)
    assert about["source"] in ("pm-sampling", "gpm", "nvml-utilisation")
    parquet: Any = importlib.import_module("pyarrow.parquet")  # its stubs are incomplete
    samples: Rows = parquet.read_table(beside(path, "activity")).to_pylist()
    rows = read_spans(path).to_pylist()

    def mean(node: str) -> float:
        parts = [
            (s["end_ns"] - s["start_ns"], s["activity"])
            for row in of(rows, node)
            for s in samples
            if s["device"] == "cuda:0"
            and s["start_ns"] >= row["start_ns"] + 400_000_000
            and s["end_ns"] <= row["end_ns"]
        ]
        return sum(ns * share for ns, share in parts) / sum(ns for ns, _ in parts)

    print({node: mean(node) for node in ("products", "host")})
    assert mean("products") > 0.6
    assert mean("host") < 0.2


def test_nvtx_ranges_around_cuda_work_carry_the_span_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    real = nvtx.ranges

    class Domain:
        """The real domain, and what goes into it."""

        def __init__(self, name: str) -> None:
            self.domain = real.get_domain(name)

        def get_event_attributes(self, *, message: str, payload: int) -> Any:
            seen.append((message, payload))
            return self.domain.get_event_attributes(message=message, payload=payload)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.domain, name)

    class Library:
        get_domain = Domain

    monkeypatch.setattr(nvtx, "ranges", Library)
    policy = Policy()
    path = tmp_path / "trace.parquet"
    with rose.record(path, activity="none", nvtx=True):
        result = policy.act(torch.ones(8, 64, device="cuda"))
        policy.learn()
    assert result[0, 0].item() == 64.0
    rows = read_spans(path).to_pylist()
    assert [(name, payload % 2**64) for name, payload in seen] == [
        (row["node"], row["span_id"]) for row in rows
    ]
