"""W3C trace context in the processes of a planned run: one tree over all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import rose_trace as rose
from rose_exec.replay import replay
from rose_trace.parquet import read_spans
from tests.rose_exec import programs
from tests.rose_exec.observe import observed_plan

pytestmark = pytest.mark.usefixtures("workers_from_a_clean_process")
SPLIT = "split-spatial{loop=iteration/rollout/interact groups=2}"


def test_invocations_in_workers_are_children_of_those_that_called_them(tmp_path: Path) -> None:
    plan = observed_plan(
        programs.build,
        SPLIT,
        "interleave",
        "merge",
        rows=programs.ROWS,
        processes=("trainer", "policy"),
    )
    path = tmp_path / "t.parquet"
    with (
        rose.record(path, activity="none") as recording,
        replay(plan, build=programs.build, strict=True) as session,
    ):
        for _ in range(2):
            session.built()
    assert recording.info is not None
    assert recording.info.complete, recording.info.reasons
    rows = read_spans(path).to_pylist()
    by_id = {r["span_id"]: r for r in rows}
    assert len(by_id) == len(rows)
    elsewhere = [r for r in rows if r["process"].startswith("worker:")]
    assert {r["pid"] for r in elsewhere} - {r["pid"] for r in rows if r["process"] == "main"}
    assert len({r["pid"] for r in elsewhere}) >= 3  # trainer, policy and at least one shard
    iterations = [r for r in rows if r["kind"] == "iteration"]
    assert len(iterations) == 2
    for row in rows:
        top, at = row, row
        while at["parent_id"]:
            assert at["parent_id"] in by_id, f"{at['path']} has a parent that is not in the trace"
            top = at = by_id[at["parent_id"]]
            assert top["trace_id"] == row["trace_id"]
        if row["path"].startswith("iteration"):
            assert top["kind"] == "iteration"
            assert top["trace_id"] in {r["trace_id"] for r in iterations}
    for row in elsewhere:
        parent = by_id[row["parent_id"]]
        assert row["path"] == f"{parent['path']}/{row['node']}"
