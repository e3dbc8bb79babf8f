"""A plan with lanes opens the composites around them and computes the native result."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import rose_trace as rose
from rose_exec.driver import Driver
from rose_exec.quota.quota import QuotaError
from rose_exec.replay import replay
from rose_exec.tune import TuneSettings, tune
from rose_opt.measure import QuotaLevel
from rose_opt.plan import Lane, Plan
from rose_trace import hooks
from rose_trace.component import program
from tests.rose_exec import programs
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.test_replay import CHAINS, SPLIT, assert_identical, native
from tests.rose_exec.test_tune import Offered, offered

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
    table: Any = pq.read_table(tmp_path / "t.parquet")  # pyright: ignore[reportUnknownMemberType]
    rows = table.to_pylist()
    waited = {row["path"] for row in rows if row["wait_ns"] is not None}
    tasks = {f"{ACT}/policy.encode", f"{ACT}/policy.denoise"} if opened else {ACT}
    assert {path for path in waited if path.startswith(ACT)} == tasks


class Opening(Offered):
    """Offers to open the composites of whatever plan was found."""

    def opened(self, plan: Plan) -> Plan:
        return dataclasses.replace(plan, lanes=unlimited())


def unlimited() -> tuple[Lane, ...]:
    return tuple(dataclasses.replace(lane, sms=0) for lane in LANES)


class Clock:
    """Ticks by what runs: natively, with a plan, with a plan and a lane of so many SMs."""

    def __init__(self, by_sms: dict[int, int]) -> None:
        self.now, self.by_sms = 0, by_sms

    def __call__(self) -> int:
        driver = hooks.active
        if not isinstance(driver, Driver):
            self.now += 20
        else:
            lane = driver._calls.lanes.get(LANES[0].path)
            self.now += 10 if lane is None else self.by_sms.get(lane.sms, 15)
        return self.now


@pytest.mark.parametrize(
    ("by_sms", "sms"), [({0: 9, 24: 7, 16: 5, 8: 8}, 16), ({0: 8}, 0), ({0: 12, 16: 11}, None)]
)
def test_the_limit_of_a_lane_is_searched_in_live_iterations(
    tmp_path: Path, by_sms: dict[int, int], sms: int | None
) -> None:
    with program():
        iteration = programs.build()
    plan = dataclasses.replace(with_lanes(SPLIT), lanes=())
    search = Opening({SPLIT: plan}, offered().base, "iteration", 1.0)
    levels = [QuotaLevel(k, 8 * k, 25 * k) for k in range(1, 5)]
    results: list[Any] = []
    tuning = tune(
        iteration,
        folder=tmp_path,
        rounds=1,
        search=lambda _: search,
        on_iteration=lambda _, result: results.append(result),
        settings=TuneSettings(activity="none", clock=Clock(by_sms), levels=lambda: levels),
    )
    assert tuning.plan is not None
    assert tuning.quota is not None
    found = tuning.plan.lanes
    assert [lane.sms for lane in found] == ([] if sms is None else [sms, 0])
    assert_identical(results, native(len(results)))  # every trial was training
    tried = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert sum(entry["what"] == "quota trial" for entry in tried) >= len(tuning.quota.trials)


def test_a_machine_without_levels_keeps_the_plan(tmp_path: Path) -> None:
    with program():
        iteration = programs.build()

    def none() -> list[QuotaLevel]:
        raise QuotaError("GreenContext: expected a CUDA device that torch can use, got none.")

    plan = dataclasses.replace(with_lanes(SPLIT), lanes=())
    tuning = tune(
        iteration,
        folder=tmp_path,
        rounds=1,
        search=lambda _: Opening({SPLIT: plan}, offered().base, "iteration", 1.0),
        settings=TuneSettings(activity="none", clock=Clock({}), levels=none),
    )
    assert tuning.plan is not None
    assert not tuning.plan.lanes
    assert any(note.startswith("Lanes: not opened: GreenContext") for note in tuning.notes)


def test_lanes_of_other_nodes_need_another_session() -> None:
    with (
        replay(with_lanes(SPLIT), build=programs.build, strict=True) as session,
        pytest.raises(ValueError, match="Start another session"),
    ):
        session.set_lanes(LANES[:1])
