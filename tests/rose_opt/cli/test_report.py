from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rose_opt.cli import app
from tests.rose_opt.facts.factory import Recording
from tests.rose_opt.facts.programs import ppo
from tests.rose_opt.report import embedded

RUNNER = CliRunner()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return ppo(Recording()).write(tmp_path / "trace.parquet")


def test_one_trace_gives_a_page(trace: Path) -> None:
    output = trace.with_name("report.html")
    result = RUNNER.invoke(app, ["report", str(trace), "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert str(output) in result.stdout
    page = output.read_text()
    assert len(embedded.invocations(page)) == 1
    assert "<h2>Plan</h2>" not in page


def test_two_traces_and_a_plan_give_one_page(trace: Path) -> None:
    planned = ppo(Recording()).write(trace.with_name("planned.parquet"))
    plan, output = trace.with_name("plan.json"), trace.with_name("report.html")
    RUNNER.invoke(app, ["plan", str(trace), "-o", str(plan), "--cores", "2"])
    arguments = ["report", str(trace), str(planned), "--plan", str(plan), "-o", str(output)]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    page = output.read_text()
    assert len(embedded.invocations(page)) == 2
    assert "<h2>Plan</h2>" in page


def test_the_same_input_gives_the_same_charts(trace: Path) -> None:
    pages: list[str] = []
    for name in ("a.html", "b.html"):
        RUNNER.invoke(app, ["report", str(trace), "-o", str(trace.with_name(name))])
        pages.append(trace.with_name(name).read_text())
    first, second = (
        [{name: list(column) for name, column in table.items()} for table in embedded.sources(page)]
        for page in pages
    )
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.parquet"], "missing.parquet: expected a trace, got no such file"),
        (["{trace}", "missing.parquet"], "missing.parquet: expected a trace"),
        (["{trace}", "--plan", "missing.json"], "missing.json: expected a plan file"),
        (["{trace}", "--plan", "{trace}"], "expected a plan file"),
        (["{trace}", "--iteration", "7"], "expected an iteration in 0..1, got 7"),
        (["{trace}", "-o", "{folder}/none/report.html"], "none/report.html"),
    ],
)
def test_bad_input_is_one_clear_line(trace: Path, arguments: list[str], message: str) -> None:
    filled = [text.format(trace=trace, folder=trace.parent) for text in arguments]
    if "-o" not in filled:
        filled += ["-o", str(trace.with_name("report.html"))]
    result = RUNNER.invoke(app, ["report", *filled])
    assert result.exit_code == 3
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not trace.with_name("report.html").exists()
