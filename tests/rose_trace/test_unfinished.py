"""What is open when a recording ends has no row, and the trace says what it was."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import rose_trace as rose
from rose_opt.cli import app as rose_opt
from rose_opt.facts import build_facts
from rose_trace.cli import app
from rose_trace.merge import merge
from rose_trace.parquet import TraceInfo, parts_of, read_metadata, read_spans
from rose_trace.record import ChildSettings, join, leave

RUNNER = CliRunner()


@rose.node(pure=True)
def work(x: int) -> int:
    return x + 1


@rose.node(name="held")
def held(inside: threading.Event, goes_on: threading.Event) -> int:
    made = work(1)
    inside.set()
    assert goes_on.wait(30)
    return made


@rose.node
def around(inside: threading.Event, goes_on: threading.Event) -> int:
    return held(inside, goes_on)


@rose.node(pure=True)
def numbers(count: int) -> Iterator[int]:
    yield from range(count)


@rose.node(pure=True)
async def later(ready: asyncio.Event) -> None:
    await ready.wait()


@contextlib.contextmanager
def holding() -> Generator[None]:
    """A thread that is inside a node for the length of the block."""
    inside, goes_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=around, args=(inside, goes_on))
    thread.start()
    assert inside.wait(30)
    yield
    goes_on.set()
    thread.join()


def paths(trace: Path) -> list[str]:
    return sorted(str(path) for path in read_spans(trace).column("path").to_pylist())


def test_a_thread_inside_a_node(tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    with contextlib.ExitStack() as threads:
        with rose.record(trace, activity="none"):
            work(0)
            threads.enter_context(holding())
            threads.enter_context(holding())
        info = read_metadata(trace)
    assert info.unfinished == {"around": 2, "around/held": 2}
    assert (info.complete, info.reasons) == (True, [])
    assert paths(trace) == ["around/held/work", "around/held/work", "work"]
    assert read_metadata(trace).rows["spans"] == 3  # ended too late to be in it


def test_nothing_is_open_where_everything_ended(tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    with rose.record(trace, activity="none"):
        with holding():
            work(0)
        abandoned = numbers(3)
        assert next(abandoned) == 0
        abandoned.close()  # type: ignore[attr-defined]
        never_begun = numbers(3)
    assert read_metadata(trace).unfinished == {}
    assert list(never_begun) == [0, 1, 2]
    assert "open " not in RUNNER.invoke(app, ["info", str(trace)]).stdout


def test_generators_and_coroutines_that_are_suspended(tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"

    async def program() -> Any:
        ready = asyncio.Event()
        with rose.record(trace, activity="none"):
            some = numbers(3)
            assert next(some) == 0
            waiting = asyncio.create_task(later(ready))
            await asyncio.sleep(0)
        ready.set()
        await waiting
        return list(some)

    assert asyncio.run(program()) == [1, 2]
    assert read_metadata(trace).unfinished == {"numbers": 1, "later": 1}
    assert paths(trace) == []


class Touchy:
    """Minds being asked what it is."""

    @property
    def __class__(self) -> Any:
        raise AssertionError

    @__class__.setter
    def __class__(self, _: Any) -> None:
        raise AssertionError


def test_looking_runs_no_code_of_other_objects(tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    touchy = [Touchy()]
    with rose.record(trace, activity="none"):
        work(0)
    assert len(touchy) == 1
    assert read_metadata(trace).complete


def test_recordings_count_their_own(tmp_path: Path) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    with rose.record(first, activity="none"):
        some = numbers(3)
        next(some)
    with rose.record(second, activity="none"):
        work(0)
    assert next(some) == 1
    assert read_metadata(first).unfinished == {"numbers": 1}
    assert read_metadata(second).unfinished == {}


def _forked() -> None:
    work(5)


def _invited(settings: ChildSettings) -> None:
    join(settings, process="worker")
    with holding():
        leave()


@rose.node
def forking() -> int | None:
    child = multiprocessing.get_context("fork").Process(target=_forked)
    child.start()
    child.join()
    return child.exitcode


def test_processes_count_their_own(tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    with rose.record(trace, activity="none") as recording:
        assert forking() == 0
        child = multiprocessing.get_context("spawn").Process(
            target=_invited, args=(recording.child_settings(),)
        )
        child.start()
        child.join()
    info = read_metadata(trace)
    assert info.complete, info.reasons
    assert info.unfinished == {"around": 1, "around/held": 1}


def test_parts_without_the_word_are_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    parts = parts_of(trace)
    with rose.record(trace, activity="none") as recording:
        work(0)
        recording.finish()
        (manifest,) = parts.glob("main-*.json")
        said = json.loads(manifest.read_text())
        assert said.pop("unfinished") == {}
        manifest.write_text(json.dumps(said))
        info = merge(parts, tmp_path / "other.parquet")
        assert info.complete
        assert info.unfinished == {}
        (parts_of(trace)).mkdir()
        (parts_of(trace) / "run.json").write_text(
            json.dumps(
                {"run": "r", "schema_version": info.schema_version, "producer": {}, "pid": 1}
            )
        )
    old = json.loads(info.to_json())
    del old["unfinished"]
    assert TraceInfo.from_json(json.dumps(old)) == info


@rose.component
class Model:
    def __init__(self) -> None:
        self.weights = 1

    @rose.node(reads="weights")
    def act(self, x: int) -> int:
        return x * self.weights

    @rose.node(updates="weights")
    def fit(self, values: list[int]) -> int:
        self.weights += sum(values)
        return self.weights


def recorded(trace: Path, iterations: int, cut: bool) -> Path:
    """So many iterations, and half of one more if it is cut."""
    with rose.program(), contextlib.ExitStack() as recording:
        model = Model()

        @rose.node
        def asked(x: int) -> int:
            return model.act(x)

        @rose.loop
        def rollout(carry: int, t: int) -> tuple[int, int]:
            if cut and done[0] == iterations and t == 2:
                asked(carry)
                recording.close()
            return asked(carry), t

        @rose.iteration
        def iteration() -> int:
            carry, _ = rollout(1, count=4)
            return model.fit([carry])

        recording.enter_context(rose.record(trace, activity="none"))
        done = [0]
        for _ in range(iterations + cut):
            iteration()
            done[0] += 1
    return trace


def test_a_trace_that_ends_in_an_iteration_is_used_up_to_the_last_whole_one(tmp_path: Path) -> None:
    cut = recorded(tmp_path / "cut.parquet", 3, cut=True)
    whole = recorded(tmp_path / "whole.parquet", 3, cut=False)
    info = read_metadata(cut)
    assert info.unfinished == {"iteration": 1, "iteration/rollout": 1}
    assert info.complete
    assert len(paths(cut)) == len(paths(whole)) + 6
    found, expected = build_facts(cut), build_facts(whole)
    assert found.graph == expected.graph
    assert found.loops == expected.loops
    assert {p: t.count for p, t in found.timings.items()} == {
        p: t.count for p, t in expected.timings.items()
    }
    assert found.iteration.used == expected.iteration.used == 2


def test_commands_tell(tmp_path: Path) -> None:
    cut = recorded(tmp_path / "cut.parquet", 3, cut=True)
    told = RUNNER.invoke(app, ["info", str(cut)]).stdout
    assert "complete  yes\n" in told
    assert (
        "open      2 invocations at the end, which have no row: iteration, iteration/rollout\n"
        in told
    )
    said = json.loads(RUNNER.invoke(app, ["info", str(cut), "--format", "json"]).stdout)
    assert said["unfinished"] == {"iteration": 1, "iteration/rollout": 1}
    shown = RUNNER.invoke(rose_opt, ["graph", str(cut)])
    assert shown.exit_code == 0
    assert shown.stderr == (
        f"{cut}: 2 invocations had not ended when the recording did, such as iteration. They have no row, and what "
        "they had called by then is left out.\n"
    )


def test_many_paths_are_told_in_short(tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"

    def level(depth: int) -> Any:
        @rose.node(name=f"n{depth}")
        def step() -> None:
            if depth < 6:
                level(depth + 1)()
            else:
                recording.close()

        return step

    with contextlib.ExitStack() as recording:
        recording.enter_context(rose.record(trace, activity="none"))
        level(0)()
    told = RUNNER.invoke(app, ["info", str(trace)]).stdout
    assert "open      7 invocations at the end, which have no row: n0, n0/n1, n0/n1/n2, " in told
    assert told.count("and 3 more paths") == 1
