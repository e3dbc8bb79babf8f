from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncGenerator, Generator, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import rose_trace as rose
from rose_opt.cli import app as opt_app
from rose_opt.facts import Facts, FactsError, build_facts
from rose_opt.optimize import plan
from rose_opt.settings import PlanSettings
from rose_opt.verify import SampledTrace, verify_traces
from rose_trace import hooks
from rose_trace.cli import app as trace_app
from rose_trace.parquet import read_metadata, read_spans

ROOT = Path(__file__).parents[2]
STEPS = 12

Rows = list[dict[str, Any]]


@rose.component(batch_states="episode")
class Simulator:
    def __init__(self, rows: int) -> None:
        self.episode = np.zeros((rows, 2))

    @classmethod
    def shard(cls, index: int, count: int, rows: int) -> dict[str, int]:
        return {"rows": rows * (index + 1) // count - rows * index // count}

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
    def learn(self, batch: Any) -> float:
        self.weights = self.weights + 1e-3 * batch.mean(axis=0)
        return float(self.weights.sum())


@rose.node(pure=True)
def normalise(batch: Any) -> Any:
    return batch - batch.mean()


def build(steps: int = STEPS, epochs: int = 9) -> Any:
    """An iteration with a rollout, a composite in it, and two loops within each other."""
    simulator, policy = Simulator(4), Policy()

    @rose.node
    def interact(obs: Any) -> Any:
        return simulator.step(policy.act(obs))

    @rose.loop
    def rollout(obs: Any, _: int) -> Any:
        obs = interact(obs)
        return obs, obs

    @rose.loop
    def minibatches(carry: None, batch: Any) -> Any:
        return None, policy.learn(normalise(batch))

    @rose.iteration
    def iteration() -> list[float]:
        _, seen = rollout(np.ones((4, 2)), count=steps)
        losses: list[float] = []
        for _ in rose.iterations("epochs", range(epochs)):
            losses += minibatches(None, over=seen)[1]
        return losses

    return iteration


def _record(path: Path, program: Any, **settings: Any) -> Rows:
    with rose.record(path, activity="none", **settings) as recording:
        program()
    assert recording.info is not None
    assert recording.info.complete, recording.info.reasons
    return read_spans(path).to_pylist()


def _run(path: Path, iterations: int = 3, **settings: Any) -> list[Any]:
    with rose.program():
        iteration = build()
        results: list[Any] = []
        _record(path, lambda: results.extend(iteration() for _ in range(iterations)), **settings)
    return results


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same program, recorded in full and sampled."""
    folder = tmp_path_factory.mktemp("traces")
    full, sampled = folder / "full.parquet", folder / "sampled.parquet"
    assert _run(full) == _run(sampled, steps=2)
    return full, sampled


@pytest.fixture(scope="module")
def facts(traces: tuple[Path, Path]) -> tuple[Facts, Facts]:
    return build_facts(traces[0]), build_facts(traces[1])


def test_the_first_and_last_iterations_have_rows_and_the_loop_has_sums(
    traces: tuple[Path, Path],
) -> None:
    full, sampled = (read_spans(path).to_pylist() for path in traces)
    assert (read_metadata(traces[0]).steps, read_metadata(traces[1]).steps) == (None, 2)
    kept = {0, 1, STEPS - 2, STEPS - 1}
    acts = [r for r in sampled if r["node"] == "policy.act"]
    assert [r["iteration"] for r in acts] == [[i, j] for i in range(3) for j in sorted(kept)]
    loops = [r for r in sampled if r["node"] == "rollout"]
    for loop in loops:
        told = dict(loop["attributes"])
        assert (loop["count"], told["sampled"]) == (STEPS, "4")
        assert told["unsampled"] == f"2 {STEPS - 2}"
        left_out = {k: v.split() for k, v in told.items() if k.startswith("unsampled/")}
        assert left_out.keys() == {
            "unsampled/interact",
            "unsampled/interact/policy.act",
            "unsampled/interact/simulator.step",
        }
        assert {v[0] for v in left_out.values()} == {str(STEPS - 4)}
        spent = {k: int(v[1]) for k, v in left_out.items()}
        inner = [v for k, v in spent.items() if k != "unsampled/interact"]
        assert sum(inner) <= spent["unsampled/interact"] <= loop["end_ns"] - loop["start_ns"]
    # The sums and the rows of every path together are all its invocations.
    counts: dict[str, int] = {}
    for row in sampled:
        counts[row["path"]] = counts.get(row["path"], 0) + 1
        for key, value in row["attributes"]:
            if key.startswith("unsampled/"):
                path = f"{row['path']}/{key.removeprefix('unsampled/')}"
                counts[path] = counts.get(path, 0) + int(value.split()[0])
    expected: dict[str, int] = {}
    for row in full:
        expected[row["path"]] = expected.get(row["path"], 0) + 1
    assert counts == expected


def test_versions_go_on_counting(traces: tuple[Path, Path]) -> None:
    def versions(path: Path) -> dict[Any, Any]:
        return {
            (r["path"], tuple(r["iteration"]), r["ordinal"]): [
                (s["state"], s["access"], s["version"]) for s in r["states"]
            ]
            for r in read_spans(path).to_pylist()
        }

    full, sampled = versions(traces[0]), versions(traces[1])
    assert len(sampled) < len(full) / 3
    assert sampled.items() <= full.items()


def test_facts_are_those_of_the_full_trace(facts: tuple[Facts, Facts]) -> None:
    full, sampled = facts
    assert sampled.graph == full.graph  # nodes, calls, structures, data edges with distances
    for path, loop in full.loops.items():
        found = sampled.loops[path]
        assert (found.kind, found.distance, found.limited_by) == (
            loop.kind,
            loop.distance,
            loop.limited_by,
        )
        assert [(e.cause, e.state, e.reader, e.writer, e.distance) for e in found.evidence] == [
            (e.cause, e.state, e.reader, e.writer, e.distance) for e in loop.evidence
        ]
    assert sampled.rows == full.rows
    assert {k: t.count for k, t in sampled.timings.items()} == {
        k: t.count for k, t in full.timings.items()
    }
    assert full.sampling is None
    assert sampled.sampling is not None
    assert sampled.sampling.invocations == sum(t.count for t in full.timings.values())
    assert sampled.sampling.recorded < sampled.sampling.invocations / 3


def test_sums_are_part_of_durations(facts: tuple[Facts, Facts]) -> None:
    _, sampled = facts
    for timing in sampled.timings.values():
        assert 0 <= timing.self_ns <= timing.total_ns
        assert timing.mean_ns == timing.total_ns // timing.count
    names = {path.rpartition("/")[2]: t for path, t in sampled.timings.items()}
    assert names["policy.act"].summed == 2 * (STEPS - 4)
    assert names["iteration"].summed == names["rollout"].summed == 0
    leaves = [names[name] for name in ("policy.act", "simulator.step", "normalise", "policy.learn")]
    covered = sum(t.total_ns for t in leaves)
    assert covered <= names["iteration"].total_ns
    # Glue of an iteration is what leaves do not cover, those that left no row included.
    rows = sum(t.total_ns for t in sampled.timings.values() if t.self_ns == t.total_ns)
    assert sampled.iteration.glue_ns <= names["iteration"].total_ns - rows // 2


@pytest.mark.parametrize(
    "transforms", [None, "split-spatial{loop=iteration/rollout groups=2},interleave{loop=iteration/rollout}"]
)  # fmt: skip
def test_plans_are_those_of_the_full_trace(
    facts: tuple[Facts, Facts], transforms: str | None
) -> None:
    plans = [plan(item, PlanSettings(cores=4.0, transforms=transforms)) for item in facts]
    assert plans[0].transforms == plans[1].transforms
    assert plans[0].nodes == plans[1].nodes
    assert plans[0].graph_fingerprint == plans[1].graph_fingerprint
    assert plans[0].workers == plans[1].workers
    assert not any("estimated from" in note for note in plans[0].notes)
    assert any("estimated from" in note and "sampled of" in note for note in plans[1].notes)


def test_commands_say_so(traces: tuple[Path, Path]) -> None:
    run = CliRunner().invoke
    for command in (["windows"], ["plan", "--cores", "4"]):
        texts = [run(opt_app, [*command, str(path)]) for path in traces]
        assert [text.exit_code for text in texts] == [0, 0], texts
        assert "estimated from" not in texts[0].output
        assert "estimated from" in texts[1].output
    told = json.loads(run(opt_app, ["windows", str(traces[1]), "--format", "json"]).stdout)
    assert told["sampling"]["steps"] == 2
    told = run(trace_app, ["info", str(traces[1])]).output
    assert "the first and last 2 iterations of inner loops" in told
    assert "sampled" not in run(trace_app, ["info", str(traces[0])]).output.replace("/sampled", "")


def test_verify_refuses_a_sampled_trace(traces: tuple[Path, Path]) -> None:
    with pytest.raises(SampledTrace, match="expected a trace with every invocation, got one with"):
        verify_traces(*traces)
    assert CliRunner().invoke(opt_app, ["verify", *map(str, traces)]).exit_code == 3


@rose.node(pure=True)
def first(x: int) -> int:
    return x + 1


def _iteration(path: Path, body: Any, steps: int = 2) -> Rows:
    @rose.iteration
    def iteration() -> None:
        body()

    return _record(path, iteration, steps=steps)


def _sums(row: dict[str, Any]) -> dict[str, int]:
    return {
        key.removeprefix("unsampled/"): int(value.split()[0])
        for key, value in row["attributes"]
        if key.startswith("unsampled/")
    }


@pytest.mark.parametrize(
    "items", [range(20), iter(range(20)), [*range(20)]], ids=["range", "iterator", "list"]
)
def test_a_loop_without_a_length_has_twice_as_many_first_iterations(
    tmp_path: Path, items: Iterable[int]
) -> None:
    sized = hasattr(items, "__len__")

    def body() -> None:
        for i in rose.iterations("steps", items):
            first(i)

    rows = _iteration(tmp_path / "t.parquet", body, steps=3)
    kept = [r["iteration"][-1] for r in rows if r["node"] == "first"]
    assert kept == ([0, 1, 2, 17, 18, 19] if sized else [0, 1, 2, 3, 4, 5])
    [loop] = [r for r in rows if r["kind"] == "loop"]
    assert (loop["count"], _sums(loop)) == (20, {"first": 14})


def test_a_length_that_raises_is_no_length(tmp_path: Path) -> None:
    class Stream:
        def __len__(self) -> int:
            raise TypeError("no length")

        def __iter__(self) -> Any:
            return iter(range(9))

    @rose.loop
    def steps(carry: None, item: int) -> tuple[None, int]:
        return None, first(item)

    seen: list[int] = []
    rows = _iteration(tmp_path / "t.parquet", lambda: seen.extend(steps(None, over=Stream())[1]))
    assert seen == [*range(1, 10)]
    assert [r["iteration"][-1] for r in rows if r["node"] == "first"] == [0, 1, 2, 3]


def test_short_loops_and_loops_outside_an_iteration_are_recorded_in_full(tmp_path: Path) -> None:
    def short() -> None:
        for i in rose.iterations("short", range(4)):
            first(i)

    rows = _iteration(tmp_path / "a.parquet", short)
    assert len([r for r in rows if r["node"] == "first"]) == 4
    assert all(not r["attributes"] for r in rows if r["kind"] != "loop")

    def outside() -> None:
        for i in rose.iterations("outside", range(9)):
            first(i)

    rows = _record(tmp_path / "b.parquet", outside, steps=2)
    assert len([r for r in rows if r["node"] == "first"]) == 9


def test_break_error_and_return_leave_a_loop_as_they_do_in_full(tmp_path: Path) -> None:
    def broken() -> None:
        for i in rose.iterations("broken", range(20)):
            first(i)
            if i == 7:
                break
        assert not isinstance(hooks.active, type(None))
        first(100)  # not below the loop any more

    rows = _iteration(tmp_path / "a.parquet", broken)
    [loop] = [r for r in rows if r["kind"] == "loop"]
    assert (loop["count"], dict(loop["attributes"])["sampled"], _sums(loop)) == (
        8,
        "2",
        {"first": 6},
    )
    assert [r["path"] for r in rows if r["node"] == "first"].count("iteration/first") == 1

    @rose.loop
    def failing(carry: int, item: int) -> tuple[int, int]:
        if item == 6:
            raise KeyError("mine")
        return carry, first(item)

    def fails() -> None:
        with pytest.raises(KeyError, match="mine"):
            failing(0, count=20)
        first(100)

    rows = _iteration(tmp_path / "b.parquet", fails)
    [loop] = [r for r in rows if r["kind"] == "loop"]
    assert (loop["status"], loop["error"], loop["count"]) == ("error", "KeyError", 6)
    assert _sums(loop) == {"first": 4}
    assert [r["path"] for r in rows if r["node"] == "first"][-1] == "iteration/first"


def test_coroutines_and_generators_keep_their_nature_and_are_summed(tmp_path: Path) -> None:
    @rose.node
    async def wait(x: int) -> int:
        await asyncio.sleep(0)
        return first(x)

    @rose.node
    def pairs(x: int) -> Generator[int, int, str]:
        got = yield first(x)
        assert got == 5
        with contextlib.suppress(ValueError):
            yield 0
        return "end"

    @rose.node
    async def stream(x: int) -> AsyncGenerator[int]:
        yield first(x)
        yield x

    async def one(i: int) -> None:
        assert await wait(i) == i + 1
        assert [item async for item in stream(i)] == [i + 1, i]
        generator = pairs(i)
        assert next(generator) == i + 1
        first(i)  # between two steps: not below the generator
        assert generator.send(5) == 0
        with pytest.raises(StopIteration) as stop:
            generator.throw(ValueError())
        assert stop.value.value == "end"

    def body() -> None:
        for i in rose.iterations("steps", range(10)):
            asyncio.run(one(i))

    rows = _iteration(tmp_path / "t.parquet", body)
    [loop] = [r for r in rows if r["kind"] == "loop"]
    below = (
        "first",
        *(name for n in ("wait", "stream", "pairs") for name in (n, f"{n}/first")),
    )
    assert _sums(loop) == dict.fromkeys(below, 6)
    for name in below:
        path = f"iteration/steps/{name}"
        assert len([r for r in rows if r["path"] == path]) == 4


def test_a_node_that_only_ran_between_is_not_overlooked(tmp_path: Path) -> None:
    @rose.node(pure=True)
    def rare(x: int) -> int:
        return x

    def body() -> None:
        for i in rose.iterations("steps", range(20)):
            first(i)
            if i == 10:
                rare(i)

    path = tmp_path / "t.parquet"
    _iteration(path, body)
    with pytest.raises(FactsError, match=r"got iteration/steps/rare only in others\. Record with"):
        build_facts(path)


def test_calls_that_differ_between_are_not_taken_for_steady(tmp_path: Path) -> None:
    def body(extra: bool) -> None:
        for i in rose.iterations("steps", range(20)):
            first(i)
            if extra and i == 10:
                first(i)

    for extra, expected in ((False, 1), (True, None)):
        path = tmp_path / f"{extra}.parquet"
        _iteration(path, lambda extra=extra: body(extra))
        assert build_facts(path).graph.node("iteration/steps/first").calls_per_parent == expected


def test_a_value_from_between_still_gives_its_edge(tmp_path: Path) -> None:
    @rose.node(pure=True)
    def make(x: int) -> Any:
        return np.full(3, x)

    @rose.node(pure=True)
    def use(x: Any) -> Any:
        return x + 1

    def body() -> None:
        kept: Any = None
        for i in rose.iterations("steps", range(20)):
            made = make(i)
            if i == 10:
                kept = made
            if i == 18:
                use(kept)  # within the loop: from an iteration that left no row
        use(kept)

    path = tmp_path / "t.parquet"
    _iteration(path, body)
    edges = {(e.producer, e.consumer, e.loop, e.distance) for e in build_facts(path).graph.edges}
    assert edges == {
        ("iteration/steps/make", "iteration/steps/use", "iteration/steps", 1),  # at least 1
        ("iteration/steps/make", "iteration/use", "iteration", 0),
    }


def test_from_the_environment_and_in_child_programs(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    code = """
        import subprocess, sys
        import rose_trace as rose

        @rose.node(pure=True)
        def work(x): return x

        @rose.iteration
        def iteration():
            for i in rose.iterations("steps", range(10)): work(i)

        iteration()
        if len(sys.argv) < 2:
            subprocess.run([sys.executable, *sys.orig_argv[1:], "child"], check=True)
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env={
            **os.environ,
            "ROSE_TRACE": str(path),
            "ROSE_ACTIVITY": "none",
            "ROSE_TRACE_STEPS": "2",
        },
        timeout=600,
        check=True,
    )
    rows = read_spans(path).to_pylist()
    assert read_metadata(path).steps == 2
    assert len([r for r in rows if r["node"] == "work"]) == 8
    assert len({r["pid"] for r in rows}) == 2


def test_one_step_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"record\(steps=1\): expected at least 2, got 1\."):
        rose.record(tmp_path / "t.parquet", steps=1).__enter__()
    assert hooks.active is None


def test_with_nvtx_ranges(tmp_path: Path) -> None:
    @rose.iteration
    def iteration() -> None:
        for i in rose.iterations("steps", range(10)):
            first(i)

    rows = _record(tmp_path / "t.parquet", iteration, steps=2, nvtx=True)
    assert len([r for r in rows if r["node"] == "first"]) == 4


def test_an_invocation_without_a_row_is_cheap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROSE_NATIVE", "0")  # both in Python
    torch = pytest.importorskip("torch")
    values = [torch.zeros(4) for _ in range(3)]

    @rose.node(pure=True)
    def work(a: Any, b: Any, c: Any) -> Any:
        return a

    def cost(steps: int | None, path: Path) -> float:
        spent: list[int] = []

        @rose.iteration
        def iteration() -> None:
            for _ in rose.iterations("steps", range(6)):
                begun = time.thread_time_ns()
                for _ in range(400):
                    work(*values)
                spent.append(time.thread_time_ns() - begun)

        with rose.record(path, activity="none", steps=steps):
            for _ in range(5):
                iteration()
        return min(spent[i] for i in range(len(spent)) if i % 6 in (2, 3))

    full = cost(None, tmp_path / "full.parquet")
    assert cost(2, tmp_path / "sampled.parquet") < 0.6 * full
