from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rose_opt.cli import app
from rose_opt.facts import build_facts
from tests.conftest import Golden
from tests.rose_opt.facts.factory import Recording
from tests.rose_opt.facts.programs import ppo
from tests.rose_opt.report.recordings import stretched

RUNNER = CliRunner()
SPLIT = (
    "split-spatial{loop=iteration/rollout/interact groups=2},"
    "interleave{loop=iteration/rollout/interact},merge{loop=iteration/rollout/interact}"
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return stretched(ppo(Recording())).write(tmp_path / "trace.parquet")


@pytest.fixture
def plan(trace: Path) -> Path:
    """A plan that splits the interaction loop."""
    file = trace.with_name("plan.json")
    arguments = ["plan", str(trace), "-o", str(file), "--cores", "4", "--bits", "any"]
    result = RUNNER.invoke(app, [*arguments, "--transforms", SPLIT])
    assert result.exit_code == 0, result.output
    return file


def test_text_of_a_small_program(trace: Path, golden: Golden) -> None:
    result = RUNNER.invoke(app, ["graph", str(trace)])
    assert result.exit_code == 0, result.output
    golden.check("graph/ppo.txt", result.stdout)


def test_text_of_what_a_plan_makes_of_it(trace: Path, plan: Path, golden: Golden) -> None:
    result = RUNNER.invoke(app, ["graph", str(trace), "--plan", str(plan)])
    assert result.exit_code == 0, result.output
    golden.check("graph/ppo-split.txt", result.stdout)


def test_a_text_file_holds_what_is_printed(trace: Path) -> None:
    output = trace.with_name("graph.txt")
    assert RUNNER.invoke(app, ["graph", str(trace), "-o", str(output)]).exit_code == 0
    assert output.read_text() == RUNNER.invoke(app, ["graph", str(trace)]).stdout


def test_svg_has_a_box_for_every_node(trace: Path) -> None:
    output = trace.with_name("graph.svg")
    result = RUNNER.invoke(app, ["graph", str(trace), "-o", str(output)])
    assert result.exit_code == 0, result.output
    drawing = ET.parse(output)
    titles = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [node.path for node in build_facts(trace).graph.subtree("iteration")]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.parquet"], 3, "missing.parquet: expected a trace, got no such file"),
        (["{trace}", "--plan", "missing.json"], 3, "missing.json: expected a plan file"),
        (["{trace}", "-o", "graph.png"], 2, "expected a file that ends in .svg or .txt"),
        (["{trace}", "-o", "{folder}/none/graph.svg"], 3, "none/graph.svg"),
    ],
)
def test_bad_input_is_told(trace: Path, arguments: list[str], code: int, message: str) -> None:
    filled = [text.format(trace=trace, folder=trace.parent) for text in arguments]
    result = RUNNER.invoke(app, ["graph", *filled])
    assert result.exit_code == code
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_a_plan_of_another_program_is_refused(trace: Path, plan: Path) -> None:
    other = Recording()
    with other.iteration():
        other.node("f", ns=100, pure=True)
    path = other.write(trace.with_name("other.parquet"))
    result = RUNNER.invoke(app, ["graph", str(path), "--plan", str(plan)])
    assert result.exit_code == 3
    assert "expected a node of the recorded graph" in result.stderr
