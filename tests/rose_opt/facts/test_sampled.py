"""A sampled trace made from a full one with known durations: the sums must give the same numbers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rose_trace as rose
from rose_opt.facts import Facts, build_facts
from rose_opt.optimize import plan
from rose_opt.settings import PlanSettings
from rose_trace.parquet import METADATA_KEY, TraceInfo, beside, read_metadata, read_spans
from rose_trace.schema import ACTIVITY, SPANS

EPOCHS, STEPS, KEPT = 7, 16, 2
MS = 1_000_000
TOOK = {"sim.step": 70, "sim.reset": 1, "policy.act": 55, "policy.learn": 200}  # [ms]
GLUE = 100_000  # before each child and at the end [ns]

ACT, STEP = "iteration/rollout/interact/policy.act", "iteration/rollout/interact/sim.step"

Rows = list[dict[str, Any]]
files: Any = pq


@rose.component(batch_states="episode")
class Sim:
    def __init__(self, rows: int) -> None:
        self.episode = np.zeros((rows, 2))

    @classmethod
    def shard(cls, index: int, count: int, rows: int) -> dict[str, int]:
        return {"rows": rows * (index + 1) // count - rows * index // count}

    @rose.node(refreshes="episode", rows=True)
    def reset(self) -> Any:
        self.episode = np.ones_like(self.episode)
        return self.episode.copy()

    @rose.node(updates="episode", rows=True)
    def step(self, action: Any) -> Any:
        self.episode = self.episode + action
        return self.episode.copy()


@rose.component
class Policy:
    def __init__(self) -> None:
        self.weights = np.ones(2)

    @rose.node(reads="weights", rows=True)
    def act(self, obs: Any) -> Any:
        return np.tanh(obs * self.weights)

    @rose.node(updates="weights")
    def learn(self, batch: list[Any]) -> float:
        self.weights = self.weights + 1e-3 * np.stack(batch).sum(axis=0).mean(axis=0)
        return float(self.weights.sum())


def build() -> Any:
    sim, policy = Sim(8), Policy()

    @rose.loop
    def interact(obs: Any, _: int) -> Any:
        obs = sim.step(policy.act(obs))
        return obs, obs

    @rose.loop
    def rollout(_: None, __: int) -> Any:
        return None, interact(sim.reset(), count=STEPS)[1]

    @rose.loop
    def learn(_: None, batch: Any) -> Any:
        return None, policy.learn(batch)

    @rose.iteration
    def iteration() -> None:
        learn(None, over=rollout(None, count=EPOCHS)[1])

    return iteration


def _write(path: Path, rows: Rows, info: TraceInfo, schema: Any = SPANS) -> None:
    data = {METADATA_KEY: info.to_json().encode()}
    files.write_table(pa.Table.from_pylist(rows, schema=schema.with_metadata(data)), path)


def _retime(rows: Rows) -> None:
    """Give leaves the durations in `TOOK` and everything around them what follows."""
    inside: dict[int, Rows] = {}
    for row in rows:
        inside.setdefault(row["parent_id"], []).append(row)

    def place(row: dict[str, Any], start: int) -> int:
        row["start_ns"] = now = start
        for child in inside.get(row["span_id"], ()):
            now = place(child, now + GLUE)
        leaf = TOOK.get(row["node"], 1) * MS
        row["end_ns"] = now + GLUE if row["span_id"] in inside else start + leaf
        row["cpu_ns"] = row["end_ns"] - row["start_ns"]
        return row["end_ns"]

    now = 1_000 * MS
    for root in inside[0]:
        now = place(root, now + MS)


def _sample(rows: Rows) -> Rows:
    """What a recording with `KEPT` steps would have left of `rows`."""
    by_id = {row["span_id"]: row for row in rows}
    kept: Rows = []
    sums: dict[int, dict[str, list[int]]] = {}
    for row in rows:
        chain = [row]
        while chain[0]["parent_id"]:
            chain.insert(0, by_id[chain[0]["parent_id"]])
        for loop, child in itertools.pairwise(chain):
            if loop["kind"] == "loop" and KEPT <= child["iteration"][-1] < loop["count"] - KEPT:
                below = sums.setdefault(loop["span_id"], {})
                path = row["path"].removeprefix(f"{loop['path']}/")
                found = below.setdefault(path, [0, 0, 0, row["span_id"]])
                found[0] += 1
                found[1] += row["end_ns"] - row["start_ns"]
                found[2] += row["count"] or 0
                by_id[row["span_id"]]["alias"] = found[3]
                break
        else:
            kept.append(row)
    for row in kept:
        for value in (*row["inputs"], *row["outputs"]):
            maker = by_id.get(value["producer"])
            if maker is not None:
                value["producer"] = maker.get("alias", value["producer"])
        if row["span_id"] in sums:
            told = [
                ("sampled", str(2 * KEPT)),
                ("unsampled", f"{KEPT} {row['count'] - KEPT}"),
                *(
                    (f"unsampled/{path}", " ".join(map(str, found)))
                    for path, found in sums[row["span_id"]].items()
                ),
            ]
            row["attributes"] = [*row["attributes"], *told]
    return [{key: value for key, value in row.items() if key != "alias"} for row in kept]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Facts, Facts]:
    folder = tmp_path_factory.mktemp("traces")
    recorded = folder / "recorded.parquet"
    with rose.program(), rose.record(recorded, activity="none"):
        iteration = build()
        for _ in range(3):
            iteration()
    rows, info = read_spans(recorded).to_pylist(), read_metadata(recorded)
    _retime(rows)
    found: list[Facts] = []
    for name, some in (("full", rows), ("sampled", None)):
        path = folder / f"{name}.parquet"
        if some is None:
            some = _sample(read_spans(folder / "full.parquet").to_pylist())
            info = replace(info, steps=KEPT)
            assert len(some) < len(rows) / 3
        _write(path, some, info)
        _write(beside(path, "activity"), _samples(rows), info, ACTIVITY)
        found.append(build_facts(path))
    return found[0], found[1]


def test_durations_and_calls_are_exact(facts: tuple[Facts, Facts]) -> None:
    full, sampled = facts
    assert sampled.timings.keys() == full.timings.keys()
    for path, expected in full.timings.items():
        found = sampled.timings[path]
        assert (found.count, found.total_ns, found.mean_ns, found.median_ns, found.self_ns) == (
            expected.count,
            expected.total_ns,
            expected.mean_ns,
            expected.median_ns,
            expected.self_ns,
        ), path
    assert sampled.iteration == full.iteration
    acts = sampled.timings[ACT]
    assert acts.count - acts.summed == 2 * (2 * KEPT) ** 2
    assert sampled.graph == full.graph


def test_windows_rank_as_in_the_full_trace(facts: tuple[Facts, Facts]) -> None:
    full, sampled = facts
    assert [
        (w.target, w.rank, w.tier, w.total_ns, w.mean_ns, w.calls) for w in sampled.windows
    ] == [(w.target, w.rank, w.tier, w.total_ns, w.mean_ns, w.calls) for w in full.windows]
    assert [w.target for w in full.windows if w.rank is not None]
    assert {str(w.target): w.estimated for w in sampled.windows}[STEP]
    assert not any(w.estimated for w in full.windows)
    for one, two in zip(full.windows, sampled.windows, strict=True):
        if one.sm_activity is not None:
            assert two.sm_activity == pytest.approx(one.sm_activity, abs=0.1)


def test_the_plan_is_that_of_the_full_trace(facts: tuple[Facts, Facts]) -> None:
    plans = [plan(item, PlanSettings(cores=4.0, max_groups=2)) for item in facts]
    assert plans[0].transforms  # something is gained: not the native order
    assert [str(t) for t in plans[0].transforms] == [str(t) for t in plans[1].transforms]
    assert plans[0].predicted == plans[1].predicted
    assert plans[0].workers == plans[1].workers
    assert plans[0].orders == plans[1].orders


def _samples(rows: Rows) -> Rows:
    """One sample a millisecond: the device is busy while the policy acts."""
    acts = sorted((r["start_ns"], r["end_ns"]) for r in rows if r["node"] == "policy.act")
    busy = {t for a, b in acts for t in range(a // MS, b // MS)}
    first, last = min(r["start_ns"] for r in rows) // MS, max(r["end_ns"] for r in rows) // MS
    return [
        {
            "run": "r",
            "source": "pm-sampling",
            "device": "cuda:0",
            "start_ns": t * MS,
            "end_ns": (t + 1) * MS,
            "activity": 0.9 if t in busy else 0.1,
            "estimate": False,
        }
        for t in range(first, last + 1)
    ]
