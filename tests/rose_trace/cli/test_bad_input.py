"""Every command that reads a file, on every kind of bad input: one clear error, never a traceback."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import typer
from typer.testing import CliRunner, Result

import rose_exec.cli
import rose_opt.cli
import rose_trace.cli
from rose_trace.parquet import METADATA_KEY, beside, read_metadata, read_spans
from tests.rose_opt.facts.factory import Recording
from tests.rose_opt.facts.programs import ppo

pq: Any = pyarrow.parquet
RUNNER = CliRunner()
APPS: dict[str, typer.Typer] = {
    "rose-trace": rose_trace.cli.app,
    "rose-opt": rose_opt.cli.app,
    "rose-exec": rose_exec.cli.app,
}
HOUSE_FORM = re.compile(r"\S.*: expected .+, got .+\. \S.*\.?")
HUGE_BYTES = 1 << 40  # sparse: nothing may read it whole

READS_TRACE = {
    "rose-trace info": "info {file}",
    "rose-trace export": "export {file} -o {new}.json",
    "rose-opt windows": "windows {file}",
    "rose-opt plan": "plan {file} --cores 2",
    "rose-opt graph": "graph {file}",
    "rose-opt report": "report {file} -o {new}.html",
    "rose-opt report planned": "report {good} {file} -o {new}.html",
    "rose-opt sql": "sql {file} FROM{space}nodes",
    "rose-opt verify": "verify {file} {good}",
    "rose-opt verify second": "verify {good} {file}",
}
READS_PLAN = {
    "rose-opt explain": "explain {file}",
    "rose-opt report plan": "report {good} --plan {file} -o {new}.html",
    "rose-exec check": "check {file}",
    "rose-exec run": "run {file} {script}",
}
READS_PROFILE = {"rose-trace import": "import {file} -o {new}.parquet"}
READS_PARTS = {"rose-trace recover": "recover {new}.parquet --parts {file}"}
READS_NOTHING = {"rose-trace build"}
BUILDS_FACTS = ["rose-opt windows", "rose-opt graph"]


def test_every_command_is_here() -> None:
    known = {
        " ".join(name.split()[:2])
        for commands in (READS_TRACE, READS_PLAN, READS_PROFILE, READS_PARTS)
        for name in commands
    }
    found = {
        f"{program} {command.name or getattr(command.callback, '__name__', '')}"
        for program, app in APPS.items()
        for command in app.registered_commands
    }
    assert found == known | READS_NOTHING


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small good trace with activity, and its plan."""
    recording = ppo(Recording())
    recording.sample(0, 1_000, 0.25)
    path = recording.write(tmp_path_factory.mktemp("made") / "good.parquet")
    plan = RUNNER.invoke(APPS["rose-opt"], ["plan", str(path), "--format", "json", "--cores", "2"])
    path.with_name("good.json").write_text(plan.stdout)
    return path


@pytest.fixture
def good(made: Path, tmp_path: Path) -> Path:
    """The good trace in a place of its own."""
    for file in made.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / made.name


def run(command: str, arguments: str, file: Path, good: Path) -> Result:
    script = good.with_name("script.py")
    script.write_text("raise SystemExit('the script ran')")
    names = {"file": file, "good": good, "new": good.with_name("new"), "script": script}
    given = [word.format(**names, space=" ") for word in arguments.split()]
    return RUNNER.invoke(APPS[command.split()[0]], given)


def assert_refused(result: Result, subject: str = "") -> None:
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 3, result.output
    assert result.stdout == ""
    message = result.stderr.strip()
    assert "Traceback" not in message
    assert HOUSE_FORM.fullmatch(message), message
    assert subject in message


def empty(good: Path, file: Path) -> None:
    file.write_bytes(b"")


def truncated(good: Path, file: Path) -> None:
    file.write_bytes(good.read_bytes()[:-20])


def half(good: Path, file: Path) -> None:
    data = good.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def random_bytes(good: Path, file: Path) -> None:
    file.write_bytes(np.random.default_rng(0).bytes(100_000))


def foreign(good: Path, file: Path) -> None:
    pq.write_table(pa.table({"a": [1], "start_ns": [2]}), file)


def directory(good: Path, file: Path) -> None:
    file.mkdir()


def missing(good: Path, file: Path) -> None:
    pass


def huge(good: Path, file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(HUGE_BYTES)


def _said(good: Path, file: Path, **changed: Any) -> None:
    """The good trace, whose metadata say something else."""
    table: Any = pq.read_table(good)
    info = json.loads(table.schema.metadata[METADATA_KEY]) | changed
    metadata = {METADATA_KEY: json.dumps(info).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), file)


def older(good: Path, file: Path) -> None:
    _said(good, file, schema_version=0)


def newer(good: Path, file: Path) -> None:
    _said(good, file, schema_version=99, unheard_of=1)


def broken_metadata(good: Path, file: Path) -> None:
    _said(good, file, processes=[{"pid": 1}])


def other_columns(good: Path, file: Path) -> None:
    """The metadata of a trace on a table that is none."""
    metadata = pq.read_schema(good).metadata
    pq.write_table(pa.table({"run": ["r"]}).replace_schema_metadata(metadata), file)


def other_types(good: Path, file: Path) -> None:
    """The columns of a trace by name, all of them numbers."""
    schema = pq.read_schema(good)
    columns = {name: pa.array([1, 2, 3]) for name in schema.names}
    pq.write_table(pa.table(columns).replace_schema_metadata(schema.metadata), file)


def damaged(good: Path, file: Path) -> None:
    """A good footer over columns of noise."""
    data = bytearray(good.read_bytes())
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[4:footer] = np.random.default_rng(1).bytes(footer - 4)
    file.write_bytes(bytes(data))


Spoil = Callable[[Path, Path], None]
SPOILED: list[Spoil] = [
    missing, empty, truncated, half, random_bytes, foreign, directory, huge,
    older, newer, broken_metadata, other_columns,
]  # fmt: skip
UNREADABLE: list[Spoil] = [other_types, damaged]
FOOTER_ONLY = ("rose-trace info",)
USAGE = 2  # sql: an error that only the query brought up


@pytest.mark.parametrize("spoil", [*SPOILED, *UNREADABLE], ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("command", READS_TRACE)
def test_a_spoiled_trace(command: str, spoil: Spoil, good: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    spoil(good, file)
    result = run(command, READS_TRACE[command], file, good)
    if spoil in UNREADABLE and command in FOOTER_ONLY:
        assert result.exit_code == (0 if spoil is damaged else 3)  # says what the footer says
    elif spoil is damaged and command == "rose-opt sql" and result.exit_code == USAGE:
        assert isinstance(result.exception, SystemExit)
        assert "Traceback" not in result.stderr
    else:
        assert_refused(result, str(file))
        assert not [*tmp_path.glob("new*")]


@pytest.mark.parametrize("table", ["activity", "probes"])
@pytest.mark.parametrize(
    "spoil",
    [*SPOILED[1:], *UNREADABLE],
    ids=lambda spoil: spoil.__name__,
)
@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=[pytest.mark.slow] if n else []) for n, c in enumerate(BUILDS_FACTS)],
)
def test_a_spoiled_table_beside_the_trace(
    command: str, table: str, spoil: Spoil, good: Path
) -> None:
    file = beside(good, table)
    file.unlink(missing_ok=True)
    spoil(good, file)
    result = run(command, READS_TRACE[command], good, good)
    assert_refused(result, file.name)


@pytest.mark.parametrize("command", BUILDS_FACTS)
def test_without_activity_there_is_less_to_say(command: str, good: Path) -> None:
    beside(good, "activity").unlink()
    assert run(command, READS_TRACE[command], good, good).exit_code == 0


@pytest.mark.parametrize("command", READS_TRACE)
def test_a_trace_without_rows(command: str, good: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    pq.write_table(pq.read_table(good).slice(0, 0), file)
    result = run(command, READS_TRACE[command], file, good)
    assert "Traceback" not in result.output
    if command in {"rose-trace info", "rose-trace export"}:
        assert result.exit_code == 0, result.output
    elif "verify" in command:
        assert result.exit_code == 3
        assert result.stdout.startswith("different: ")
    else:
        assert_refused(result, str(file))


REASON = "process worker (pid 7) lost 12 rows"


@pytest.mark.parametrize("command", READS_TRACE)
def test_losses_are_shown_by_every_command(command: str, good: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    _said(good, file, complete=False, reasons=[REASON])
    shutil.copy(beside(good, "activity"), beside(file, "activity"))
    result = run(command, READS_TRACE[command], file, good)
    assert REASON in result.output
    if result.exit_code:
        assert_refused(result, str(file))


@pytest.mark.parametrize(
    "command", ["windows", "windows --format json", "plan --format json", "graph"]
)
def test_losses_are_shown_where_they_are_allowed(command: str, good: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    _said(good, file, complete=False, reasons=[REASON])
    result = run("rose-opt", f"{command} {{file}} --allow-incomplete", file, good)
    assert result.exit_code == 0, result.output
    assert REASON in result.stderr
    if "json" in command:
        json.loads(result.stdout)


def plan_of(good: Path) -> dict[str, Any]:
    return json.loads(good.with_suffix(".json").read_text())


def plan_truncated(good: Path, file: Path) -> None:
    file.write_text(json.dumps(plan_of(good))[:-40])


def plan_foreign(good: Path, file: Path) -> None:
    file.write_text('{"name": "something else", "version": 3}')


def plan_list(good: Path, file: Path) -> None:
    file.write_text("[1, 2]")


def plan_nested(good: Path, file: Path) -> None:
    file.write_text("[" * 200_000)


def plan_newer(good: Path, file: Path) -> None:
    plan = plan_of(good)
    version = next(key for key in plan if "version" in key and isinstance(plan[key], int))
    file.write_text(json.dumps(plan | {version: 99}))


def plan_other_types(good: Path, file: Path) -> None:
    plan = plan_of(good)
    file.write_text(json.dumps(plan | {"nodes": {"a": 1}, "predicted": []}))


SPOILED_PLANS: list[Spoil] = [
    missing, empty, random_bytes, directory, huge, truncated, plan_truncated, plan_foreign,
    plan_list, plan_nested, plan_newer, plan_other_types,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILED_PLANS, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("command", READS_PLAN)
def test_a_spoiled_plan(command: str, spoil: Spoil, good: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    spoil(good, file)
    assert_refused(run(command, READS_PLAN[command], file, good), str(file))


def profile_truncated(good: Path, file: Path) -> None:
    file.write_text('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, ')


def profile_gzip_cut(good: Path, file: Path) -> None:
    file.write_bytes(gzip.compress(np.random.default_rng(0).bytes(10_000))[:-500])


def profile_foreign(good: Path, file: Path) -> None:
    file.write_text('{"a": 1}')


def profile_without_rows(good: Path, file: Path) -> None:
    file.write_text('{"traceEvents": []}')


def profile_sqlite_cut(good: Path, file: Path) -> None:
    file.write_bytes(b"SQLite format 3\0" + bytes(84))


SPOILED_PROFILES: list[Spoil] = [
    missing, empty, truncated, random_bytes, foreign, directory, huge, profile_truncated,
    profile_gzip_cut, profile_foreign, profile_without_rows, profile_sqlite_cut, plan_nested,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILED_PROFILES, ids=lambda spoil: spoil.__name__)
def test_a_spoiled_profile(spoil: Spoil, good: Path, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    spoil(good, file)
    result = run("rose-trace", READS_PROFILE["rose-trace import"], file, good)
    assert_refused(result, str(file))
    assert not [*tmp_path.glob("new*")]


HEADER: dict[str, Any] = {
    "run": "r",
    "schema_version": 1,
    "producer": {},
    "pid": 2**30,
    "activity": {},
}


def parts_empty(good: Path, file: Path) -> None:
    file.mkdir()


def parts_cut(good: Path, file: Path) -> None:
    file.mkdir()
    (file / "run.json").write_text(json.dumps(HEADER)[:-5])


def parts_foreign(good: Path, file: Path) -> None:
    file.mkdir()
    (file / "run.json").write_text("[1]")


def parts_without_pid(good: Path, file: Path) -> None:
    file.mkdir()
    (file / "run.json").write_text(json.dumps({k: v for k, v in HEADER.items() if k != "pid"}))


def parts_newer(good: Path, file: Path) -> None:
    file.mkdir()
    (file / "run.json").write_text(json.dumps(HEADER | {"schema_version": 99}))


def parts_binary(good: Path, file: Path) -> None:
    file.mkdir()
    random_bytes(good, file / "run.json")


SPOILED_PARTS: list[Spoil] = [
    missing, empty, random_bytes, parts_empty, parts_cut, parts_foreign, parts_without_pid,
    parts_newer, parts_binary,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILED_PARTS, ids=lambda spoil: spoil.__name__)
def test_spoiled_parts(spoil: Spoil, good: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.parts"
    spoil(good, file)
    result = run("rose-trace", READS_PARTS["rose-trace recover"], file, good)
    assert_refused(result, str(file))
    assert not [*tmp_path.glob("new*")]


def test_whatever_lies_among_the_parts_is_told_and_nothing_else_is_lost(tmp_path: Path) -> None:
    """Streams of noise, of other columns and of another program; damaged manifests; foreign names."""
    import rose_trace as rose

    work = rose.node(pure=True, name="work")(lambda: None)
    path = tmp_path / "new.parquet"
    with rose.record(path, activity="none") as recording:
        for _ in range(10):
            work()
        recording.recorder.buffers.flush()
        parts = Path(recording.settings.directory)
        [stream] = parts.glob("*.arrow")
        kept = {stream.name: stream.read_bytes(), "run.json": (parts / "run.json").read_bytes()}
    run_id = read_metadata(path).run
    path.unlink()
    parts.mkdir()
    header = json.loads(kept.pop("run.json")) | {"pid": 2**30}
    (parts / "run.json").write_text(json.dumps(header))
    [data] = kept.values()
    dead = 2**30
    (parts / f"main-{dead}-1.spans.arrow").write_bytes(data)
    (parts / f"noise-{dead}-2.spans.arrow").write_bytes(np.random.default_rng(2).bytes(9_999))
    (parts / f"empty-{dead}-3.spans.arrow").write_bytes(b"")
    (parts / f"zeros-{dead}-4.spans.arrow").write_bytes(bytes(5_000))
    other = pa.table({"a": [1]})
    stream = parts / f"other-{dead}-5.spans.arrow"
    with pa.OSFile(str(stream), "wb") as sink, pa.ipc.new_stream(sink, other.schema) as writer:
        writer.write_table(other)
    (parts / "unnamed.arrow").write_bytes(data)
    (parts / f"badly-{dead}-6.spans.arrow").write_bytes(data)
    (parts / f"badly-{dead}-6.json").write_text('{"rows": 5}')
    (parts / "notes.json").write_text("{}")
    result = RUNNER.invoke(APPS["rose-trace"], ["recover", str(path), "--format", "json"])
    assert result.exit_code == 0, result.output
    info = json.loads(result.stdout)
    assert (info["run"], info["complete"], info["rows"]["spans"]) == (run_id, False, 20)
    told = "\n".join(info["reasons"])
    for role in ("main", "noise", "empty", "zeros", "other", "badly"):
        assert f"process {role} (pid {dead}) ended without closing its trace" in told
    for role in ("noise", "zeros", "other"):
        assert (
            f"process {role} (pid {dead}) ended without closing its trace, its last batch" in told
        )
    assert "unnamed in new.parquet.parts is of other origin" in told
    assert "notes in new.parquet.parts is of other origin" in told
    assert read_spans(path).num_rows == 20
    assert not parts.exists()


def test_a_run_killed_before_its_first_row_is_not_complete(tmp_path: Path) -> None:
    path = tmp_path / "new.parquet"
    parts = tmp_path / "new.parquet.parts"
    parts.mkdir()
    (parts / "run.json").write_text(json.dumps(HEADER))
    assert RUNNER.invoke(APPS["rose-trace"], ["recover", str(path)]).exit_code == 0
    info = read_metadata(path)
    assert info == replace(
        info,
        complete=False,
        reasons=[f"process main (pid {2**30}) ended without closing its trace"],
        rows={"spans": 0, "activity": 0},
    )
