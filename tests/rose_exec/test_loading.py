"""A plan that does not fit is refused or not used; it never changes what the program computes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rose_exec.cli import app
from rose_exec.replay import NativeOrderWarning, Replay, replay
from rose_opt.plan import Plan, PlanError, PlanRefused
from tests.main_program import run_natively, run_planned
from tests.rose_exec import programs
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.test_replay import REWIRE, SPLIT, assert_identical, native

ROOT = Path(__file__).parents[2]
ILLEGAL = "rewire{node=iteration/policy.load beside=iteration/rollout}"
CONFLICT = (
    "rewire(iteration/policy.load beside iteration/rollout): expected no conflicting access, got read "
    "of 'policy.weights' against refresh of 'policy.weights' (iteration/rollout/interact/policy.act/"
    "policy.encode before iteration/policy.load). Keep the native order, or let policy.load work on a "
    "state of its own that a later node copies over."
)


def plan_for(*transforms: str) -> Plan:
    return observed_plan(programs.build, *transforms, rows=programs.ROWS, processes=("trainer",))


def edited(plan: Plan, path: str, **changes: Any) -> Plan:
    """The plan with one node altered."""
    nodes = tuple(
        dataclasses.replace(node, **changes) if node.path == path else node for node in plan.nodes
    )
    assert nodes != plan.nodes
    return dataclasses.replace(plan, nodes=nodes)


def test_a_plan_that_asks_for_an_illegal_overlap_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan_for(ILLEGAL).save(path)
    with pytest.raises(PlanRefused) as caught:
        replay(path)
    assert str(caught.value) == CONFLICT


def test_hiding_the_accesses_in_the_plan_does_not_help(tmp_path: Path) -> None:
    plan = plan_for(ILLEGAL)
    silent = tuple(dataclasses.replace(node, accesses=(), opaque=False) for node in plan.nodes)
    path = tmp_path / "plan.json"
    dataclasses.replace(plan, nodes=silent).save(path)
    with pytest.raises(PlanRefused) as caught:
        replay(path)
    assert str(caught.value) == CONFLICT


def test_hiding_a_node_does_not_help_either() -> None:
    plan = plan_for(ILLEGAL)
    kept = tuple(
        node for node in plan.nodes if "policy.a" not in node.path and "value" not in node.name
    )
    changed = dataclasses.replace(plan, nodes=kept)
    with replay(changed, build=programs.build) as session:
        found = [session.built() for _ in range(2)]
    assert_identical(found, native())


def test_a_plan_for_changed_code_is_not_used() -> None:
    plan = plan_for(SPLIT, "interleave", "merge", REWIRE)
    place = "iteration/rollout/interact/simulator.step"
    found = next(node for node in plan.nodes if node.path == place)
    changed = edited(plan, place, fingerprint="0" * 16)
    message = (
        "Plan: expected simulator.step (tests.rose_exec.programs:Simulator.step) with fingerprint "
        f"{'0' * 16}, got {found.fingerprint}. Its code or declaration changed since the trace: record and "
        "plan again."
    )
    with pytest.raises(PlanRefused) as caught:
        replay(changed, strict=True).__enter__()
    assert str(caught.value) == message
    with contextlib.ExitStack() as stack:
        with pytest.warns(NativeOrderWarning) as warned:
            session = stack.enter_context(replay(changed, build=programs.build))
        assert str(warned[0].message) == f"{message} Running in native order."
        runs_natively(session, message)


def runs_natively(session: Replay, reason: str) -> None:
    assert (session.native, session.reason) == (True, reason)
    assert session._placement.workers == {}
    assert_identical([session.built() for _ in range(2)], native())


def test_a_plan_for_a_definition_that_is_gone_is_not_used() -> None:
    plan = plan_for(REWIRE)
    changed = edited(plan, "iteration/policy.load", key="tests.rose_exec.programs:Policy.gone")
    message = (
        "Plan: expected node policy.load (tests.rose_exec.programs:Policy.gone), got no such definition. The "
        "code changed since the trace: record and plan again."
    )
    with pytest.raises(PlanRefused) as caught:
        replay(changed, build=programs.build, strict=True).__enter__()
    assert str(caught.value) == message
    with contextlib.ExitStack() as stack:
        with pytest.warns(NativeOrderWarning, match="got no such definition"):
            session = stack.enter_context(replay(changed, build=programs.build))
        assert session.native  # the components are in their workers by now: program order, there
        assert_identical([session.built() for _ in range(2)], native())


def test_a_component_that_is_declared_differently_is_refused() -> None:
    plan = plan_for(SPLIT, "interleave", "merge")
    components = tuple(dataclasses.replace(c, batch_states=("other",)) for c in plan.components)
    with pytest.raises(PlanRefused, match="with batch states \\['other'\\], got"):
        replay(dataclasses.replace(plan, components=components), strict=True).__enter__()


def test_a_plan_that_keeps_the_native_order_starts_no_workers() -> None:
    plan = dataclasses.replace(plan_for(), kept_native=True, reason="two cores are full already")
    with replay(plan, build=programs.build, strict=True) as session:
        runs_natively(session, "two cores are full already")


def of_version_99(text: str) -> str:
    return json.dumps({**json.loads(text), "version": 99})


def truncated(text: str) -> str:
    return text[: len(text) // 2]


def other(_: str) -> str:
    return "[1]"


def incomplete(_: str) -> str:
    return json.dumps({"version": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_version_99, r": expected plan version 1, got 99\. Plan again with this version\.$"),
        (truncated, r": expected a JSON plan, got .*\. Make one with"),
        (other, r": expected a plan, got other JSON\. Make one with"),
        (incomplete, r": expected a complete plan, got KeyError"),
    ],
)
def test_a_file_that_is_no_plan(change: Callable[[str], str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(change(plan_for().to_json()))
    with pytest.raises(PlanError, match=message):
        replay(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"nowhere\.json: expected a plan file, got .*No such file"):
        replay(tmp_path / "nowhere.json")


def test_check_from_the_command_line(tmp_path: Path) -> None:
    good, bad, changed = (tmp_path / name for name in ("good.json", "bad.json", "changed.json"))
    plan = plan_for(SPLIT, "interleave", "merge", REWIRE)
    plan.save(good)
    plan_for(ILLEGAL).save(bad)
    edited(plan, "iteration/policy.load", fingerprint="f" * 16).save(changed)
    told = CliRunner().invoke(app, ["check", str(good), "tests.rose_exec.programs"])
    count = len(plan.nodes)
    assert (told.exit_code, told.stdout) == (
        0,
        f"{good}: legal; {count} of {count} nodes checked against the code.\n",
    )
    told = CliRunner().invoke(app, ["check", str(bad)])
    assert (told.exit_code, told.stderr) == (3, f"{CONFLICT}\n")
    told = CliRunner().invoke(app, ["check", str(changed)])
    assert told.exit_code == 3
    assert told.stderr.startswith(
        "Plan: expected policy.load (tests.rose_exec.programs:Policy.load)"
    )


SCRIPT = """
import os, sys
from typing import Any, NamedTuple
import numpy as np
import rose_trace as rose

class Decision(NamedTuple):
    action: Any
    pid: int

@rose.component
class Robot:
    def __init__(self, seed):
        self.seed, self.state = seed, np.full(3, float(seed))

    @rose.node(reads="state")
    def look(self):
        return self.state * 2

    @rose.node(pure=True)
    def decide(self, seen):
        return Decision(np.sin(seen), os.getpid())

    @rose.node
    def act(self):  # runs whole where the component lives
        return self.decide(self.look())

    @rose.node(updates="state")
    def move(self, decision):
        self.state = self.state + decision.action
        return Decision(self.state.copy(), os.getpid())

def build():
    robot = Robot(3)

    @rose.iteration
    def iteration():
        for _ in range(2):
            moved = robot.move(robot.act())
        return moved

    return iteration

if __name__ == "__main__":
    if sys.argv[1] == "plan":
        from tests.rose_exec.observe import observed_plan

        observed_plan(build, processes=("robot",)).save(sys.argv[2])
        raise SystemExit
    iteration = build()
    for _ in range(2):
        last = iteration()
    print(last.action.tolist(), last.pid == os.getpid(), sys.argv[1:])
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SCRIPT)
    with pytest.raises(SystemExit) as ended:
        run_natively(path, "plan", str(path.with_name("plan.json")))
    assert ended.value.code is None
    return path


@pytest.fixture(scope="module")
def natively(script: Path) -> str:
    """The values that the script prints without a plan."""
    values, _, rest = run_natively(script, "go").partition("] ")
    assert rest == "True ['go']\n"
    return values


def run(folder: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_script_with_a_plan_in_its_environment(script: Path, natively: str) -> None:
    planned = run(script.parent, "train.py", "go", ROSE_PLAN="plan.json")
    assert planned == f"{natively}] False ['go']\n"


def test_a_script_run_by_the_command(script: Path, natively: str) -> None:
    planned = run_planned(script.with_name("plan.json"), script, "go", "--fast")
    assert planned == f"{natively}] False ['go', '--fast']\n"


def test_a_script_run_by_the_command_line(script: Path, natively: str) -> None:
    start = "from rose_exec.cli import app; app()"
    planned = run(script.parent, "-c", start, "run", "plan.json", "train.py", "go", "--fast")
    assert planned == f"{natively}] False ['go', '--fast']\n"


PLANNED_FROM_THE_START = """
import importlib, runpy, sys

for first in {first}:
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("rose_")]:
        del sys.modules[name]
    importlib.import_module(first)
    import rose_exec, rose_trace.hooks
    print(first, type(rose_trace.hooks.active).__module__)

from rose_opt.plan import PlanError

sys.argv = ["train.py", "go"]
try:
    runpy.run_path("train.py", run_name="__main__")
except PlanError as error:
    print(error)
"""


def test_a_plan_in_the_environment_needs_no_order_of_imports_and_is_read_at_the_first_call(
    script: Path,
) -> None:
    orders = ["rose_exec", "rose_trace", "rose_exec.readiness"]
    code = PLANNED_FROM_THE_START.format(first=orders)
    *imported, told = run(script.parent, "-c", code, ROSE_PLAN="none.json").splitlines()
    assert imported == [f"{first} rose_exec.environment" for first in orders]
    assert told.startswith("none.json: expected a plan file, got")


def test_a_plan_that_cannot_be_used_ends_the_command(script: Path) -> None:
    told = CliRunner().invoke(app, ["run", str(script.with_name("none.json")), str(script)])
    assert told.exit_code == 3
    assert "expected a plan file, got" in told.stderr
