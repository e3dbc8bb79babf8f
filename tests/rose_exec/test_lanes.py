"""A plan with lanes opens the composites around them and computes the native result."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rose_trace as rose
from rose_exec.replay import replay
from rose_opt.plan import Lane, Plan
from tests.rose_exec import programs
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.test_replay import CHAINS, SPLIT, assert_identical, native

ACT = "iteration/rollout/interact/policy.act"
LANES = (Lane(f"{ACT}/policy.encode", "encode", 104), Lane(f"{ACT}/policy.denoise", "denoise"))


def with_lanes(transform: str, *processes: str) -> Plan:
    made = observed_plan(
        programs.build, transform, "interleave", "merge", rows=programs.ROWS, processes=processes
    )
    return dataclasses.replace(made, lanes=LANES)


@pytest.mark.parametrize("transform", [SPLIT, CHAINS], ids=["split", "chains"])
@pytest.mark.parametrize("processes", [(), ("policy",)], ids=["inline", "process"])
def test_lanes_change_no_bit(transform: str, processes: tuple[str, ...]) -> None:
    with replay(with_lanes(transform, *processes), build=programs.build, strict=True) as session:
        planned = [session.built() for _ in range(2)]
    assert_identical(planned, native())


@pytest.mark.parametrize("opened", [True, False])
def test_only_composites_around_lanes_are_opened(tmp_path: Path, opened: bool) -> None:
    plan = with_lanes(SPLIT)
    if not opened:
        plan = dataclasses.replace(plan, lanes=())
    with (
        rose.record(tmp_path / "t.parquet", activity="none"),
        replay(plan, build=programs.build, strict=True) as session,
    ):
        session.built()
    rows = pq.read_table(tmp_path / "t.parquet").to_pylist()
    waited = {row["path"] for row in rows if row["wait_ns"] is not None}
    tasks = {f"{ACT}/policy.encode", f"{ACT}/policy.denoise"} if opened else {ACT}
    assert {path for path in waited if path.startswith(ACT)} == tasks
