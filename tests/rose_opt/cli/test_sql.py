from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rose_opt.cli import app
from rose_opt.sql import queries, views
from tests.rose_opt.facts.factory import Recording
from tests.rose_opt.facts.programs import ppo
from tests.rose_opt.sql.traces import sampled, with_states

RUNNER = CliRunner()
PAIRS = "SELECT path, calls FROM nodes WHERE leaf ORDER BY path LIMIT 2"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.parquet"
    return sampled(with_states(ppo(Recording()))).write(path)


def run(*arguments: str | Path, stdin: str = "") -> Any:
    return RUNNER.invoke(app, ["sql", *map(str, arguments)], input=stdin)


def test_table(trace: Path) -> None:
    result = run(trace, PAIRS)
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["path", "calls"],
        ["iteration/learn/trainer.update", "3.0"],
        ["iteration/policy.load", "1.0"],
    ]
    assert result.stderr == ""


def test_csv_quotes_what_it_must(trace: Path) -> None:
    query = "SELECT 'a,\"b\"' AS x, NULL AS y, [1, 2] AS z, true AS t UNION ALL SELECT 'c', 1, [], false"
    result = run(trace, f"{query} ORDER BY x", "--format", "csv")
    assert list(csv.reader(io.StringIO(result.stdout))) == [
        ["x", "y", "z", "t"],
        ['a,"b"', "", "[1, 2]", "true"],
        ["c", "1", "[]", "false"],
    ]


def test_json_is_one_array_of_objects(trace: Path) -> None:
    query = "SELECT 1::HUGEINT AS n, 'nan'::DOUBLE AS x, 1.5::DECIMAL(3, 1) AS d, {'a': [NULL, 'b']} AS s, map(['k'], [2]) AS m"
    result = run(trace, query, "--format", "json")
    assert json.loads(result.stdout) == [
        {"n": 1, "x": None, "d": 1.5, "s": {"a": [None, "b"]}, "m": {"k": 2}}
    ]
    assert json.loads(run(trace, f"{PAIRS} OFFSET 1000", "--format", "json").stdout) == []


def test_markdown_escapes_bars_and_aligns_numbers(trace: Path) -> None:
    result = run(trace, "SELECT 'a|b' AS x, 2 AS n", "--format", "markdown")
    assert result.stdout.splitlines() == ["| x | n |", "|---|---:|", "| a\\|b | 2 |"]


def test_a_table_says_that_rows_were_left_out(trace: Path) -> None:
    query = "SELECT range AS n FROM range(150) ORDER BY n"
    shown = run(trace, query)
    assert len(shown.stdout.splitlines()) == 101
    assert shown.stderr == "the first 100 rows; ask for more with --limit\n"
    assert len(run(trace, query, "--format", "csv").stdout.splitlines()) == 151
    some = run(trace, query, "--format", "csv", "--limit", "3")
    assert some.stdout.splitlines() == ["n", "0", "1", "2"]
    assert "the first 3 rows" in some.stderr
    assert run(trace, query, "--limit", "150").stderr == ""


def test_markup_in_values_is_text(trace: Path) -> None:
    assert run(trace, "SELECT '[red]x[/red]' AS \"[b]\"").stdout.split() == ["[b]", "[red]x[/red]"]


def test_query_from_a_file_or_standard_input(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "query.sql"
    file.write_text(f"-- the first\n{PAIRS};\n")
    expected = run(trace, PAIRS).stdout
    assert run(trace, "--file", file).stdout == expected
    assert run(trace, "-", stdin=PAIRS).stdout == expected
    assert run(trace, "--file", "-", stdin=PAIRS).stdout == expected
    assert run(trace, stdin=PAIRS).stdout == expected


def test_named_query(trace: Path) -> None:
    result = run(trace, "--query", "idle-time-by-node", "--format", "csv")
    assert result.exit_code == 0
    assert result.stdout == run(trace, queries()["idle-time-by-node"].sql, "--format", "csv").stdout


def test_two_traces(trace: Path) -> None:
    result = run(
        trace, trace, "SELECT count(*) AS n FROM before.spans JOIN after.spans USING (span_id)"
    )
    assert result.stdout.split() == ["n", "130"]
    named = run(
        f"one={trace}", f"two={trace}", f"three={trace}", "SELECT count(*) AS n FROM three.spans"
    )
    assert named.stdout.split() == ["n", "130"]
    assert run(trace, trace, "--query", "activity-before-after").exit_code == 0


def test_list_prints_views_and_queries(trace: Path) -> None:
    text = run("--list").stdout
    for view in views().values():
        assert f"{view.name}: {view.meaning}" in text
    for name in queries():
        assert f"  {name} " in text
    described = json.loads(run("--list", "--format", "json").stdout)
    assert [view["name"] for view in described["views"]] == list(views())
    columns = list(csv.DictReader(io.StringIO(run("--list", "--format", "csv").stdout)))
    assert {"view": "waits", "column": "late_ns", "unit": "ns"}.items() <= next(
        row for row in columns if row["column"] == "late_ns"
    ).items()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["FROM nodes"], 3, "FROM nodes: expected a trace, got no such file"),
        ([], 2, "expected a trace, got none"),
        (["missing.parquet", "FROM nodes"], 3, "missing.parquet: expected a trace"),
        (["TRACE", "FROM nodess"], 2, "Did you mean nodes?"),
        (["TRACE", "COPY spans TO 'x.csv'"], 2, "expected a statement that only reads, got COPY"),
        (["TRACE", "FROM spans", "--query", "losses"], 2, "expected one query, got 2"),
        (["TRACE", "--query", "idle-time"], 2, "Did you mean idle-time-by-node?"),
        (["TRACE", "--query", "activity-before-after"], 2, "expected the traces before and after"),
        (["TRACE", "TRACE", "--query", "losses"], 2, "query losses: expected one trace, got 2"),
        (["TRACE", "TRACE", "TRACE", "FROM nodes"], 2, "expected NAME=PATH"),
        (["a=TRACE", "A=TRACE", "FROM nodes"], 2, "expected a new name, got 'A'"),
        (["TRACE", "--file", "missing.sql"], 2, "missing.sql"),
        (["TRACE", "TRACE", "FROM nodes"], 2, "Write before.nodes or after.nodes."),
    ],
)
def test_what_cannot_be_answered_is_one_message(
    trace: Path, arguments: list[str], code: int, message: str
) -> None:
    result = run(*(argument.replace("TRACE", str(trace)) for argument in arguments))
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_a_query_that_fails_among_later_rows_is_one_message(trace: Path) -> None:
    query = "SELECT CASE WHEN range > 50_000 THEN error('late') END AS x FROM range(100_000)"
    result = run(trace, query, "--format", "csv")
    assert result.exit_code == 2
    assert "late" in result.stderr


def test_an_incomplete_trace_is_said_in_one_line(tmp_path: Path) -> None:
    recording = ppo(Recording(reasons=["process main (1) was killed"]))
    trace = recording.write(tmp_path / "trace.parquet")
    result = run(trace, PAIRS, "--format", "csv")
    assert result.exit_code == 0
    assert result.stderr == (
        f"{trace}: incomplete, so answers may be (process main (1) was killed)\n"
    )
    assert result.stdout.startswith("path,calls\n")


def test_the_trace_stays_as_it_was(trace: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in trace.parent.iterdir()}
    for name, query in queries().items():
        assert run(*[trace] * (len(query.schemas) or 1), "--query", name).exit_code == 0, name
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in trace.parent.iterdir()}
    assert before == after


def test_prompt_answers_until_the_end_of_input(trace: Path) -> None:
    """At a terminal; statements go over lines, and an error ends none but itself."""
    controller, terminal = pty.openpty()
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from rose_opt.cli import app; app()",
            "sql",
            str(trace),
            "--format",
            "csv",
        ],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TERM": "dumb", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    os.close(terminal)
    os.write(controller, b"FROM nodess;\nSELECT count(*) AS n\nFROM spans;\nexit\n")
    output, errors = child.communicate(timeout=600)
    os.close(controller)
    assert child.returncode == 0, errors
    assert "n\n130\n" in output.replace("\r", "")
    assert "Did you mean nodes?" in errors
