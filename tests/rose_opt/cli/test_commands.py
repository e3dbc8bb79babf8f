from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rose_opt.cli import app
from rose_opt.plan import Plan
from tests.rose_opt.facts.factory import Recording
from tests.rose_opt.facts.programs import ppo
from tests.rose_opt.sql.traces import recorded

RUNNER = CliRunner()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A recorded PPO program."""
    return ppo(Recording()).write(tmp_path / "trace.parquet")


def test_a_second_plan_of_the_same_trace_is_byte_identical(trace: Path) -> None:
    outputs = [trace.with_name(name) for name in ("a.json", "b.json")]
    for output in outputs:
        result = RUNNER.invoke(app, ["plan", str(trace), "-o", str(output), "--cores", "2"])
        assert result.exit_code == 0, result.output
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert str(trace.parent) not in outputs[0].read_text()


def test_plan_prints_json(trace: Path) -> None:
    result = RUNNER.invoke(app, ["plan", str(trace), "--cores", "2", "--format", "json"])
    assert Plan.from_json(result.stdout).settings["cores"] == 2.0


def test_explain_reads_a_plan_back(trace: Path) -> None:
    output = trace.with_name("plan.json")
    planned = RUNNER.invoke(app, ["plan", str(trace), "-o", str(output), "--cores", "2"])
    explained = RUNNER.invoke(app, ["explain", str(output)])
    assert explained.exit_code == 0
    assert explained.stdout == planned.stdout


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sampled trace, and the same in full as `full.parquet` beside it."""
    folder = tmp_path_factory.mktemp("sampled")
    recorded(folder / "full.parquet", steps=8)
    return recorded(folder / "some.parquet", steps=8, sampled=2)


@pytest.mark.parametrize(
    "command",
    [
        ["sql", "TRACE", "SELECT path FROM nodes", "--format", "csv"],
        ["graph", "TRACE"],
        ["windows", "TRACE", "--format", "json"],
        ["plan", "TRACE", "--cores", "2", "--format", "json"],
        ["report", "TRACE", "-o", "PAGE"],
    ],
    ids=lambda words: words[0],
)
def test_a_sampled_trace_is_said_in_one_line(
    command: list[str], some: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    words = [{"TRACE": str(some), "PAGE": str(page)}.get(word, word) for word in command]
    result = RUNNER.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.stderr == (
        f"{some}: sampled, so rows are left out: of inner loops the first and last 2 iterations have rows, the "
        "others only sums, and durations of single invocations in those are estimates.\n"
    )
    assert result.stdout
    full = some.with_name("full.parquet")
    assert RUNNER.invoke(app, [str(full) if w == str(some) else w for w in words]).stderr == ""


def test_verify_tells_equal_from_different(trace: Path) -> None:
    other = ppo(Recording(), steps=3).write(trace.with_name("other.parquet"))
    same = RUNNER.invoke(app, ["verify", str(trace), str(trace)])
    assert same.exit_code == 0
    assert same.stdout.startswith("equal: ")
    different = RUNNER.invoke(app, ["verify", str(trace), str(other), "--format", "json"])
    assert different.exit_code == 3
    assert not json.loads(different.stdout)["equal"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "missing.parquet"], "missing.parquet"),
        (["explain", "missing.json"], "expected a plan file"),
        (["verify", "missing.parquet", "missing.parquet"], "missing.parquet"),
    ],
)
def test_refused_inputs_give_one_line_and_code_3(arguments: list[str], message: str) -> None:
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 3
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_a_forced_illegal_composition_is_refused(trace: Path) -> None:
    asked = "rewire{node=iteration/policy.load beside=iteration/rollout}"
    result = RUNNER.invoke(app, ["plan", str(trace), "--transforms", asked])
    assert result.exit_code == 3
    assert "refresh of 'policy.weights'" in result.stderr


def test_wrong_usage_is_code_2(trace: Path) -> None:
    assert RUNNER.invoke(app, ["plan", str(trace), "--bits", "some"]).exit_code == 2
    assert RUNNER.invoke(app, ["plan", str(trace), "--max-groups", "1"]).exit_code == 2
