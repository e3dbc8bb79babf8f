"""The whole path on a small program: record, probe, plan, replay; the result is the native one."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

import examples.demo.__main__ as demo
import rose_trace as rose
from examples.demo.compare import Run
from examples.demo.program import Config, build
from rose_opt.facts import build_facts
from rose_opt.optimize import plan
from rose_opt.settings import PlanSettings

pytestmark = pytest.mark.usefixtures("workers_from_a_clean_process")
# 64 rows, as in the demo: halves keep the bits.
SMALL = Config(epochs=2, steps=2, chunk=2)
INTERACT = "iteration/rollout/interact"
EVERYTHING = (
    f"split-spatial{{loop={INTERACT} groups=2}},interleave{{loop={INTERACT}}},merge{{loop={INTERACT}}},"
    "rewire{node=iteration/learn beside=iteration/rollout}"
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "trace.parquet"
    demo.record(SMALL, path)
    return path


def test_probes_find_halves_and_shards_identical(trace: Path) -> None:
    probes = build_facts(trace).probes
    compared = {(Path(p.path).name, p.variant): p.identical for p in probes if p.groups == 2}
    assert {
        ("policy.act", "part"),
        ("policy.value", "part"),
        ("simulator.reset", "shard"),
        ("simulator.step", "shard"),
    } <= compared.keys()
    assert all(compared.values())


def test_overlap_leaves_every_bit_as_it_was(trace: Path, tmp_path: Path) -> None:
    chosen = plan(build_facts(trace), PlanSettings(transforms=EVERYTHING))
    assert not chosen.kept_native
    file = tmp_path / "plan.json"
    chosen.save(file)
    native, planned, kept = demo.compare(SMALL, file, iterations=2)
    assert kept == ""
    assert planned.trajectories == native.trajectories
    assert planned.weights == native.weights
    # Training moves on, so equal digests are no accident of standing still.
    assert len(set(native.trajectories)) == len(native.trajectories) == 3
    found = demo.findings(native, planned, chosen, kept)
    assert (found["weights_identical"], found["trajectories_identical"]) == (True, True)


def test_findings_report_a_difference(trace: Path) -> None:
    chosen = plan(build_facts(trace), PlanSettings(min_gain=0.999))
    assert chosen.kept_native
    with rose.program():
        program = build(SMALL)
    # The first iteration warms up; 512 environment steps took 2 s and 1 s.
    native, planned = (
        Run(name, program, nullcontext, [9, *([seconds * 10**9] * 3)], [-3.0, -1.0], ["a"], "w")
        for name, seconds in (("native", 2), ("planned", 1))
    )
    found = demo.findings(native, planned, chosen, "")
    assert (found["native_steps_per_s"], found["planned_steps_per_s"]) == (256.0, 512.0)
    assert (found["speedup"], found["iterations"]) == (2.0, 3)
    assert (found["kept_native"], found["reason"]) == (True, chosen.reason)
    assert (found["weights_identical"], found["trajectories_identical"]) == (True, True)
    assert json.loads(json.dumps(found)) == found
    planned.weights, planned.trajectories = "v", ["b"]
    found = demo.findings(native, planned, chosen, "")
    assert (found["weights_identical"], found["trajectories_identical"]) == (False, False)
    assert "weights DIFFERENT, trajectories DIFFERENT" in "\n".join(demo.summary(found))


def test_unknown_task_is_a_usage_error() -> None:
    import typer

    app = typer.Typer()
    app.command()(demo.main)
    result = CliRunner().invoke(app, ["--task", "Walker"])
    assert result.exit_code == 2
    assert "expected Pusher-v5 or Reacher-v5" in result.output
