"""Lanes on a device: phases overlap, limits limit, and what writes keeps its order with what reads."""

from __future__ import annotations

import dataclasses
import gc
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import rose_trace as rose
from rose_exec.quota.green import GreenQuota
from rose_exec.replay import replay
from rose_exec.workers.job import Job
from rose_exec.workers.lanes import Lanes
from rose_opt.plan import Lane, Plan
from rose_trace import pytree
from rose_trace.component import program
from rose_trace.frames import Frame
from rose_trace.legality import AccessSet
from tests.gpu import lane_programs as programs
from tests.rose_exec.observe import observed_plan

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

SPLIT = "split-spatial{loop=iteration/rollout/interact groups=2}"
ACT = "iteration/rollout/interact/policy.act"
cuda: Any = torch.cuda


def plan(sms: int, *processes: str) -> Plan:
    made = observed_plan(
        programs.build, SPLIT, "interleave", "merge", rows=programs.ROWS, processes=processes
    )
    lanes = (Lane(f"{ACT}/policy.encode", "encode", sms), Lane(f"{ACT}/policy.denoise", "denoise"))
    return dataclasses.replace(made, lanes=lanes)


def native() -> list[Any]:
    with program():
        iteration = programs.build()
        return [iteration() for _ in range(2)]


def assert_identical(a: Any, b: Any) -> None:
    left, one = pytree.flatten(a)
    right, two = pytree.flatten(b)
    assert one == two
    assert all(torch.equal(x, y) for x, y in zip(left, right, strict=True))


@pytest.mark.parametrize("processes", [(), ("policy",)], ids=["inline", "process"])
@pytest.mark.parametrize("sms", [0, 64])
def test_lanes_change_no_bit(sms: int, processes: tuple[str, ...]) -> None:
    with replay(plan(sms, *processes), build=programs.build, strict=True) as session:
        planned = [session.built() for _ in range(2)]
    assert_identical(planned, native())
    gc.collect()


def test_phases_of_two_groups_are_on_two_streams(tmp_path: Path) -> None:
    with (
        rose.record(tmp_path / "t.parquet", activity="none"),
        replay(plan(64), build=programs.build, strict=True) as session,
    ):
        session.built()
        session.built()
    table: Any = pq.read_table(tmp_path / "t.parquet")  # pyright: ignore[reportUnknownMemberType]
    rows = table.to_pylist()
    streams = {
        name: {row["stream"] for row in rows if row["path"] == f"{ACT}/policy.{name}"}
        for name in ("encode", "denoise")
    }
    assert None not in streams["encode"] | streams["denoise"]
    assert streams["encode"].isdisjoint(streams["denoise"])


def job(lane: str = "", sms: int = 0) -> Job:
    return Job(
        "n", "", "", pytree.flatten(((), {}))[1], (), Frame(), AccessSet(), lane=lane, sms=sms
    )


def test_what_writes_waits_for_what_reads_and_the_other_way_round() -> None:
    lanes = Lanes()
    weights = torch.zeros(1 << 20, device="cuda")
    read: list[tuple[int, torch.Tensor]] = []
    for value in range(3):
        with lanes.on(job("a")):
            cuda._sleep(20_000_000)
            read.append((value, weights.clone()))
        with lanes.on(job("b")):
            read.append((value, weights.clone()))
        with lanes.on(job()):  # in no lane: it comes after both, and before what follows
            cuda._sleep(5_000_000)
            weights.fill_(value + 1)
    torch.cuda.synchronize()
    for value, found in read:
        assert bool((found == value).all())


def test_two_lanes_run_at_the_same_time() -> None:
    lanes = Lanes()
    with lanes.on(job("a")):
        cuda._sleep(100)
    with lanes.on(job("b")):
        cuda._sleep(100)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with lanes.on(job("a")):
        cuda._sleep(100_000_000)
        alone = cuda.Event()
        alone.record()
    with lanes.on(job("b")):
        cuda._sleep(1_000_000)
        short = cuda.Event()
        short.record()
    short.synchronize()
    assert not alone.query(), "the long lane still runs when the short one is done"
    alone.synchronize()
    assert time.perf_counter() - begin < 5.0


def test_a_limit_limits() -> None:
    smallest = GreenQuota().levels[0].sms
    lanes = Lanes()
    big = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def took(sms: int) -> float:
        with lanes.on(job("a", sms)):
            torch.mm(big, big)
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            start.record()
            for _ in range(3):
                torch.mm(big, big)
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    whole = took(0)
    assert took(smallest) > 4 * whole
    assert took(0) < 2 * whole


def test_a_limit_that_the_device_does_not_have_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lanes = Lanes()
    for name in ("a", "b"):
        with lanes.on(job(name, 3)):
            assert torch.ones(4, device="cuda").sum().item() == 4.0
    (told,) = [record.message for record in caplog.records]
    assert "got 3 SMs" in told
    assert "runs without a limit" in told
