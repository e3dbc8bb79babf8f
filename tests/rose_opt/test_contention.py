"""Contention from traces: what is fitted, from which anchors, and what a plan makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rose_opt.cli import app
from rose_opt.contention import MeasuredContention, contention_between, measured_contention
from rose_opt.facts import Facts, build_facts
from rose_opt.facts.overlaps import overlapped_invocations
from rose_opt.optimize import plan
from rose_opt.plan import Plan
from rose_opt.settings import PlanSettings
from rose_opt.simulator import Contention
from rose_opt.simulator.execution import SimulatedExecution
from tests.rose_opt.facts.factory import Recording
from tests.rose_opt.facts.programs import ppo as recorded_ppo
from tests.rose_opt.programs import ACT, INTERACT, STEP, UPDATE
from tests.rose_opt.test_optimize import SPLIT, TWO_CORES, balanced

NS_STEP, NS_ACT = 600, 300  # of the recorded program


def beside(slowed: float, shared: float = 1.0, steps: int = 12) -> Recording:
    """A recording whose steps run on a thread of their own beside the policy.

    Args:
        slowed: What a step loses per second beside the policy.
        shared: Share of the policy's time that it runs beside.
        steps: Steps of an epoch.
    """
    recording = recorded_ppo(Recording(), steps=steps)
    latest: dict[str, int] = {}
    for number, row in enumerate(recording.rows):
        if row["path"] == ACT:
            latest = {"start": row["start_ns"]}
        elif row["path"] == STEP and number % 3:  # the others run alone
            overlap = round(shared * NS_ACT)
            row["thread"] = 2
            row["start_ns"] = latest["start"] + NS_ACT - overlap
            row["end_ns"] = row["start_ns"] + NS_STEP + round(slowed * overlap)
    return recording


def fitted(tmp_path: Path, recording: Recording, facts: Facts | None = None) -> MeasuredContention:
    native = build_facts(recorded_ppo(Recording()).write(tmp_path / "trace.parquet"))
    return measured_contention(facts or native, [recording.write(tmp_path / "planned.parquet")])


def test_overlaps_are_read_with_what_ran_beside(tmp_path: Path) -> None:
    trace = beside(0.5, shared=0.5, steps=2).write(tmp_path / "planned.parquet")
    found = overlapped_invocations(trace, "iteration", [ACT, STEP])
    overlapped = [item for item in found if item.path == STEP and item.beside_ns]
    assert overlapped
    assert {tuple(item.beside_ns.items()) for item in overlapped} == {((ACT, 150),)}
    assert {item.duration_ns for item in overlapped} == {675}
    acts = [item for item in found if item.path == ACT and item.beside_ns]
    assert [item.beside_ns for item in acts] == [{STEP: 150}] * len(overlapped)
    serial = recorded_ppo(Recording()).write(tmp_path / "serial.parquet")
    assert overlapped_invocations(serial, "iteration", [ACT, STEP]) == ()


@pytest.mark.parametrize("slowed", [0.0, 0.3, 0.83])
def test_what_a_node_loses_beside_another_is_found(tmp_path: Path, slowed: float) -> None:
    found = fitted(tmp_path, beside(slowed))
    assert found.kappa[STEP, ACT] == pytest.approx(slowed, abs=0.002)
    assert found.kappa[ACT, STEP] == 0.0
    assert found.sources == ("planned.parquet",)
    assert found.anchored[STEP] == "recorded"


def test_what_the_machine_did_besides_is_left_out(tmp_path: Path) -> None:
    recording = beside(0.3)
    steps = [row for row in recording.rows if row["path"] == STEP and row["thread"] == 2]
    for row in steps[::7]:
        row["end_ns"] += 40 * NS_STEP
    assert fitted(tmp_path, recording).kappa[STEP, ACT] == pytest.approx(0.3, abs=0.01)


def test_probes_are_the_reference_where_there_are_any(tmp_path: Path) -> None:
    native = recorded_ppo(Recording())
    native.probes = [
        {
            "run": "test",
            "path": STEP,
            "variant": "whole",
            "groups": 1,
            "group": 0,
            "threads": 2,
            "duration_ns": 450,
            "cpu_ns": 450,
            "identical": True,
            "iteration": [0, 0, 0],
        }
    ]
    facts = build_facts(native.write(tmp_path / "probed.parquet"))
    found = fitted(tmp_path, beside(0.0), facts)
    assert found.anchored[STEP] == "probes"
    assert found.kappa[STEP, ACT] == pytest.approx((600 - 450) / 300, abs=0.01)


def test_nothing_seen_together_is_nothing_known(tmp_path: Path) -> None:
    found = fitted(tmp_path, recorded_ppo(Recording()))
    assert found == MeasuredContention()


def slowed(kappa: Mapping[tuple[str, str], float]) -> tuple[Plan, Plan]:
    """Plans of one program without and with contention, forced to the split."""
    forced = replace(TWO_CORES, transforms=",".join(SPLIT))
    known = MeasuredContention(kappa, ("planned.parquet",))
    return plan(balanced(), forced), plan(balanced(), forced, known)


def test_predictions_are_what_the_executor_would_take_under_it() -> None:
    kappa = {(ACT, STEP): 0.3, (STEP, ACT): 0.3, (STEP, STEP): 0.2}
    free, crowded = slowed(kappa)
    assert crowded.predicted.iteration_ns > 1.1 * free.predicted.iteration_ns
    taken = SimulatedExecution(balanced(), rates=Contention(kappa)).iteration(crowded).duration_ns
    assert taken == pytest.approx(crowded.predicted.iteration_ns, rel=0.02)
    assert crowded.predicted.lower_bound_ns > free.predicted.lower_bound_ns


def test_contention_can_make_the_native_order_win() -> None:
    kappa = {(ACT, STEP): 0.7, (STEP, ACT): 0.7, (STEP, STEP): 0.6}
    assert not plan(balanced(), TWO_CORES).kept_native
    assert plan(balanced(), TWO_CORES, MeasuredContention(kappa)).kept_native


def test_moved_loops_pay_for_what_runs_beside_them() -> None:
    rewire = "rewire{node=iteration/learn beside=iteration/rollout}"
    forced = PlanSettings(cores=8.0, transforms=rewire)
    known = MeasuredContention({(STEP, UPDATE): 0.5})
    free, crowded = plan(balanced(), forced), plan(balanced(), forced, known)
    assert free.predicted.iteration_ns < crowded.predicted.iteration_ns < free.predicted.native_ns
    between = contention_between(balanced(), known.kappa, [INTERACT, "iteration/learn"])
    # 70 of 97 ms of the loop are steps, and learning is nothing but updates.
    assert between == {(INTERACT, "iteration/learn"): pytest.approx(0.5 * 70 / 97)}


def test_the_plan_says_what_was_used_and_what_nobody_knows() -> None:
    free, crowded = slowed({(ACT, STEP): 0.3, (STEP, ACT): 0.25})
    assert crowded.settings["contention"]["kappa"] == [[ACT, STEP, 0.3], [STEP, ACT, 0.25]]
    assert crowded.settings["contention"]["sources"] == ["planned.parquet"]
    told = next(note for note in crowded.notes if note.startswith("Contention as seen in"))
    assert told == (
        "Contention as seen in planned.parquet: policy.act loses 30% of its speed beside sim.step, sim.step "
        "loses 25% of its speed beside policy.act."
    )
    unknown = next(note for note in crowded.notes if note.startswith("Not known"))
    assert "sim.step beside sim.step." in unknown
    assert "policy.act beside sim.step, sim.step beside sim.step." in free.notes[-1]
    assert Plan.from_json(crowded.to_json()) == crowded


def test_plan_takes_observed_traces_and_the_trace_itself(tmp_path: Path) -> None:
    native = recorded_ppo(Recording()).write(tmp_path / "trace.parquet")
    planned = beside(0.4).write(tmp_path / "planned.parquet")

    def contention(*arguments: str) -> dict[str, object]:
        result = CliRunner().invoke(app, ["plan", *arguments, "--cores", "2", "--format", "json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)["settings"]["contention"]

    assert contention(str(native))["kappa"] == []
    seen = contention(str(native), "--observed", str(planned))
    assert seen["sources"] == ["planned.parquet"]
    assert [ACT, STEP, 0.0] in seen["kappa"]  # pyright: ignore[reportOperatorIssue]
    missing = CliRunner().invoke(app, ["plan", str(native), "--observed", "missing.parquet"])
    assert missing.exit_code == 3
