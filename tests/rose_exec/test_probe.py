"""A probe measures beside one native iteration, and changes nothing in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import rose_trace as rose
from rose_exec.probe import probe
from rose_exec.replay import replay
from rose_trace.component import program
from tests.rose_exec import programs
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.test_replay import assert_identical, native

INTERACT = "iteration/rollout/interact"


@rose.component
class Mixer:
    """Rows that depend on each other, and draws from process-wide generators."""

    def __init__(self) -> None:
        self.scale = 2.0

    @rose.node(reads="scale", rows=True)
    def centred(self, x: Any) -> Any:
        return (x - x.mean()) * self.scale  # declared row by row, and is not

    @rose.node(reads="scale", rows=True)
    def noisy(self, x: Any) -> Any:
        return x + np.random.rand(*x.shape) + random.random()


def mixing() -> Callable[[], Any]:
    mixer = Mixer()

    @rose.iteration(name="mixing")
    def iteration() -> Any:
        x = mixer.centred(np.arange(6.0))
        return mixer.noisy(x), mixer.noisy(x), random.random()

    return iteration


class Probed(NamedTuple):
    """What a probe returned, and its rows."""

    result: Any
    rows: list[dict[str, Any]]


def rows_of(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    read: Any = getattr(pyarrow.parquet, "read_table")  # noqa: B009  (partly typed)
    return read(path).to_pylist()


def probed(folder: Path, build: Callable[[], Callable[[], Any]], **settings: Any) -> Probed:
    trace = folder / "trace.parquet"
    with program():
        iteration = build()
        with rose.record(trace, activity="none"):
            iteration()
        result = probe(trace, iteration, **settings)
    return Probed(result, rows_of(folder / "trace.probes.parquet"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Probed:
    return probed(tmp_path_factory.mktemp("probe"), programs.build, groups=(2, 3))


def of(rows: list[dict[str, Any]], name: str, **wanted: Any) -> list[dict[str, Any]]:
    found = [row for row in rows if row["path"].rpartition("/")[2] == name]
    return [row for row in found if all(row[key] == value for key, value in wanted.items())]


def test_the_probed_iteration_is_the_native_one(small: Probed) -> None:
    assert_identical(small.result, native()[1])


def test_nodes_that_only_read_are_repeated_on_parts(small: Probed) -> None:
    value = of(small.rows, "policy.value")
    assert {row["path"] for row in value} == {"iteration/rollout/policy.value"}
    assert len(of(value, "policy.value", variant="part", groups=2)) % 2 == 0
    groups = {(row["groups"], row["group"]) for row in value if row["variant"] == "part"}
    assert groups == {(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)}
    again = [row["identical"] for row in value if row["variant"] == "whole"]
    assert (again[0], set(again[1:])) == (None, {None, True})
    assert all(row["duration_ns"] > 0 and row["cpu_ns"] >= 0 for row in small.rows)


def test_keyed_noise_is_the_same_on_parts(small: Probed) -> None:
    parts = of(small.rows, "policy.act", variant="part") or of(
        small.rows, "policy.denoise", variant="part"
    )
    assert parts
    assert {row["identical"] for row in parts} == {True}


def test_shards_follow_the_whole_component(small: Probed) -> None:
    for name in ("simulator.reset", "simulator.step"):
        shards = of(small.rows, name, variant="shard")
        assert {(row["groups"], row["group"]) for row in shards} == {
            (2, 0),
            (2, 1),
            (3, 0),
            (3, 1),
            (3, 2),
        }
        assert {row["identical"] for row in shards} == {True}


def test_nodes_that_write_a_shared_state_are_not_repeated(small: Probed) -> None:
    assert not [row for row in small.rows if "trainer" in row["path"] or "load" in row["path"]]


def test_rows_that_are_mixed_are_seen_and_generators_are_untouched(tmp_path: Path) -> None:
    np.random.seed(3)
    random.seed(4)
    with program():
        plain = mixing()
        plain()
        expected = plain()
    np.random.seed(3)
    random.seed(4)
    found = probed(tmp_path, mixing)
    assert_identical(found.result, expected)
    mixed = {row["identical"] for row in of(found.rows, "mixer.centred", variant="part")}
    assert mixed == {False}
    repeated = {row["identical"] for row in of(found.rows, "mixer.centred", variant="whole")}
    assert repeated == {None, True}
    assert {row["identical"] for row in of(found.rows, "mixer.noisy", variant="part")} == {False}


def test_a_probe_beside_a_replay_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    with program():
        iteration = programs.build()
        with rose.record(trace, activity="none"):
            iteration()
    with (
        replay(observed_plan(programs.build), build=programs.build) as session,
        pytest.raises(
            RuntimeError, match="expected a program that is neither recorded nor replayed"
        ),
    ):
        probe(trace, session.built)
