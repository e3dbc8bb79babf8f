from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import rose_trace as rose
from rose_trace import parquet
from rose_trace.cli import app
from rose_trace.parquet import (
    TraceError,
    beside,
    read_metadata,
    read_spans,
    read_table,
    write_table,
)
from rose_trace.schema import PROBES, SPANS

pq: Any = pyarrow.parquet


@rose.node(pure=True)
def work(x: int) -> int:
    return x


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.parquet"
    with rose.record(path, activity="cpu"):
        for i in range(100):
            work(i)
    return path


def test_the_files_have_the_schemas_and_the_metadata(trace: Path) -> None:
    spans = read_spans(trace)
    assert spans.schema.equals(SPANS)
    assert spans.num_rows == 100
    assert pq.ParquetFile(trace).metadata.row_group(0).column(0).compression == "ZSTD"
    info = read_metadata(trace)
    assert info.complete
    assert info.schema_version == 1
    assert info.rows["spans"] == 100
    [process] = info.processes
    assert process.expected == process.rows == info.rows
    opened, closed = process.clocks
    assert opened[0] <= spans["start_ns"][0].as_py() <= spans["end_ns"][-1].as_py() <= closed[0]
    assert info.activity["source"] == "cpu"
    assert info.activity["resolution_ns"] == 50_000_000
    assert read_metadata(beside(trace, "activity")).run == info.run
    assert sorted(p.name for p in trace.parent.iterdir()) == [
        "trace.activity.parquet",
        "trace.parquet",
    ]


def test_duckdb_reads_it_directly(trace: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    query = (
        f"select count(*), max(inputs[1].slot), min(len(outputs)), any_value(node) from '{trace}'"
    )
    assert duckdb.sql(query).fetchall() == [(100, "0", 1, "work")]


def test_row_groups_are_merged_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small batches from several streams, with long invocations that begin early and end late."""
    monkeypatch.setattr(parquet, "ROW_GROUP", 64)
    path = tmp_path / "t.parquet"

    @rose.node
    def outer(n: int) -> None:
        for i in range(n):
            work(i)
            if i % 10 == 0:
                recording.recorder.buffers.flush()

    with rose.record(path, activity="none") as recording:
        for n in (30, 200, 70):
            outer(n)
    assert pq.ParquetFile(path).metadata.num_row_groups >= 5
    rows = read_spans(path).to_pylist()
    assert len(rows) == 303
    assert [r["start_ns"] for r in rows] == sorted(r["start_ns"] for r in rows)
    assert [r["ordinal"] for r in rows if r["node"] == "work"] == [
        *range(30),
        *range(200),
        *range(70),
    ]
    parents = {r["span_id"] for r in rows if r["node"] == "outer"}
    assert all(
        r["parent_id"] in parents and r["path"] == "outer/work" for r in rows if r["node"] == "work"
    )


def test_probes_lie_beside_the_trace(trace: Path) -> None:
    row: dict[str, Any] = dict.fromkeys(PROBES.names)
    row |= {"run": "r", "path": "it/sim.step", "variant": "part", "groups": 2, "iteration": [0, 1]}
    where = write_table("probes", trace, pa.Table.from_pylist([row], schema=PROBES))
    assert where.name == "trace.probes.parquet"
    assert read_table("probes", trace).to_pylist() == [row]
    assert read_metadata(where).run == read_metadata(trace).run
    with pytest.raises(TraceError, match="expected the columns of probes, got"):
        write_table("probes", trace, pa.table({"run": ["r"]}))


def _with_metadata(path: Path, table: pa.Table, metadata: dict[bytes, bytes]) -> Path:
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def test_one_clear_error_each(trace: Path, tmp_path: Path) -> None:
    spans = read_spans(trace)
    good = spans.schema.metadata or pq.read_schema(trace).metadata
    info = json.loads(good[b"rose"])
    empty, cut, text = (
        tmp_path / "empty.parquet",
        tmp_path / "cut.parquet",
        tmp_path / "text.parquet",
    )
    empty.write_bytes(b"")
    cut.write_bytes(trace.read_bytes()[:-20])
    text.write_text("start,end\n1,2\n" * 50)
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"a": [1]}), foreign)
    newer = json.dumps({**info, "schema_version": 99, "unheard_of": 1}).encode()
    cases: list[tuple[Path, str]] = [
        (
            tmp_path / "missing.parquet",
            "expected a trace, got no such file. Record it with rose.record.",
        ),
        (tmp_path, "expected a Parquet file, got"),
        (empty, "expected a Parquet file, got"),
        (cut, "expected a Parquet file, got"),
        (text, "expected a Parquet file, got"),
        (foreign, "expected a trace, got a Parquet file of other origin"),
        (
            _with_metadata(tmp_path / "v.parquet", spans, {b"rose": newer}),
            "expected trace version 1, got 99",
        ),
        (
            _with_metadata(tmp_path / "m.parquet", spans, {b"rose": b"{]"}),
            "expected trace version 1, got none",
        ),
        (
            _with_metadata(tmp_path / "c.parquet", pa.table({"run": ["r"]}), good),
            "expected the columns of a spans",
        ),
        (beside(trace, "activity"), "expected the columns of a spans table"),
    ]
    for path, message in cases:
        with pytest.raises(TraceError) as caught:
            read_spans(path)
        assert str(caught.value).startswith(f"{path}: expected ")
        assert message in str(caught.value)


def test_a_damaged_column_is_one_clear_error(trace: Path) -> None:
    data = bytearray(trace.read_bytes())
    noise = np.random.default_rng(0).integers(0, 256, len(data) // 2, dtype=np.uint8)
    data[4 : 4 + len(data) // 4] = noise.tobytes()[: len(data) // 4]
    trace.write_bytes(bytes(data))
    with pytest.raises(TraceError, match="expected a readable spans table, got"):
        read_spans(trace)


def test_info_and_recover_commands(trace: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["info", str(trace)])
    assert shown.exit_code == 0
    assert "complete  yes" in shown.stdout
    assert "cpu, every 50 ms" in shown.stdout
    as_json = runner.invoke(app, ["info", str(trace), "--format", "json"])
    assert json.loads(as_json.stdout)["rows"]["spans"] == 100
    missing = runner.invoke(app, ["info", str(tmp_path / "none.parquet")])
    assert missing.exit_code == 3
    assert "expected a trace, got no such file" in missing.stderr
    assert missing.stdout == ""
    nothing = runner.invoke(app, ["recover", str(tmp_path / "none.parquet")])
    assert nothing.exit_code == 3
    assert "expected the parts of a recording" in nothing.stderr
    assert runner.invoke(app, ["info", str(trace), "--format", "xml"]).exit_code == 2


def test_recover_reads_what_is_readable(tmp_path: Path) -> None:
    """A stream cut in the middle of a batch, one whose manifest promises more, and one of garbage."""
    path = tmp_path / "t.parquet"
    with rose.record(path, activity="none") as recording:
        for chunk in range(3):
            for i in range(100):
                work(100 * chunk + i)
            recording.recorder.buffers.flush()
        parts = Path(recording.settings.directory)
        stream = next(parts.glob("*.arrow"))
        data = stream.read_bytes()
        header = (parts / "run.json").read_text()
    parts.mkdir()
    (parts / "run.json").write_text(header)
    (parts / "main-1-5.spans.arrow").write_bytes(data[:-100])
    (parts / "worker-1-6.spans.arrow").write_bytes(data)
    manifest = {
        "process": "worker",
        "pid": 1,
        "rows": {"spans": 400, "activity": 0},
        "lost": 7,
        "failure": None,
    }
    (parts / "worker-1-6.json").write_text(json.dumps({**manifest, "clocks": []}))
    (parts / "other-1-7.spans.arrow").write_bytes(b"garbage" * 100)
    result = CliRunner().invoke(app, ["recover", str(path), "--format", "json"])
    assert result.exit_code == 0, result.output
    info = json.loads(result.stdout)
    assert info["rows"]["spans"] == 500
    assert not info["complete"]
    assert info["reasons"] == [
        "process main (pid 1) is still running, its last batch is cut off",
        "process other (pid 1) is still running, its last batch is cut off",
        "process worker (pid 1) wrote {'spans': 400, 'activity': 0} rows, {'spans': 300, 'activity': 0} can be read",
        "process worker (pid 1) lost 7 rows",
    ]
    assert parts.exists()  # process 1 lives: its parts are kept
    assert "complete  no" in CliRunner().invoke(app, ["info", str(path)]).stdout
    assert read_spans(path).num_rows == 500
