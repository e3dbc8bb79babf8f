from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from rose_trace.cli import app
from rose_trace.parquet import read_spans
from tests.rose_trace.interop.random_traces import RandomProgram, write_trace

SEED = 11


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    program = RandomProgram(Random(SEED))
    return write_trace(tmp_path / "t.parquet", program.rows, program.activity())


def test_it_says_what_was_written(trace: Path, tmp_path: Path) -> None:
    program = RandomProgram(Random(SEED))
    samples = len(program.activity())
    out = tmp_path / "t.pftrace"
    code, shown, errors = run("export", trace, "-o", out)
    assert (code, errors) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert lines["written"] == str(out)
    assert lines["format"] == "perfetto"
    assert lines["spans"] == str(len(program.rows))
    assert lines["activity"] == f"{samples} samples, an estimate"
    assert int(lines["flows"]) > 0


def test_a_format_may_be_named_whatever_the_name_ends_in(trace: Path, tmp_path: Path) -> None:
    code, shown, _ = run("export", trace, "-o", tmp_path / "out", "--format", "otlp-json")
    assert code == 0
    assert "format    otlp-json" in shown
    assert "resourceSpans" in json.loads((tmp_path / "out").read_text())
    code, _, errors = run("export", trace, "-o", tmp_path / "out.txt")
    assert code == 3
    assert errors.startswith(f"{tmp_path / 'out.txt'}: expected a name that ends in .pftrace")
    assert errors.count("\n") == 1


def test_an_incomplete_trace_is_exported_with_one_line_of_warning(tmp_path: Path) -> None:
    rows = RandomProgram(Random(SEED)).rows
    trace = write_trace(tmp_path / "t.parquet", rows, reasons=["process w lost 2 rows"])
    for name in ("a.pftrace", "a.json", "a.otlp.json", "a.otlp.pb"):
        code, _, errors = run("export", trace, "-o", tmp_path / name)
        assert code == 0
        assert errors == (
            f"{trace}: expected a complete trace, got one that lost rows (process w lost 2 rows). "
            "What is left of it was exported.\n"
        )
    code, shown, _ = run("import", tmp_path / "a.otlp.pb", "-o", tmp_path / "again.parquet")
    assert code == 0
    assert "complete  no" in shown
    assert "- process w lost 2 rows" in shown
    assert read_spans(tmp_path / "again.parquet").num_rows == len(rows)


def test_what_is_no_trace_is_refused_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "no.parquet").write_text("{}")
    code, shown, errors = run("export", tmp_path / "no.parquet", "-o", tmp_path / "a.json")
    assert (code, shown) == (3, "")
    assert errors.startswith(f"{tmp_path / 'no.parquet'}: expected a Parquet file, got")
    assert errors.count("\n") == 1
    assert not (tmp_path / "a.json").exists()
