"""Storages that are filled again and again, as the recorder sees them: a dependency without a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import rose_trace as rose
from rose_opt.facts import Facts, build_facts
from rose_opt.plan.rewire_rules import rewire_refusal
from rose_opt.plan.split_rules import sharded_components, split_refusal
from rose_opt.transforms.base import hierarchy
from rose_trace.component import program
from rose_trace.records import Access, StateAccess

Array = npt.NDArray[np.float64]
ROLLOUT = "iteration/rollout"
INTERACT = f"{ROLLOUT}/interact"


@rose.component(batch_states=["episode"])
class Simulator:
    """Steps into one preallocated observation, or into a new one each time."""

    def __init__(self, rows: int, reuse: bool) -> None:
        self.obs_buf = np.zeros((rows, 4))
        self.reuse = reuse

    @classmethod
    def shard(cls, index: int, count: int, rows: int, reuse: bool) -> tuple[int, bool]:
        return rows // count, reuse

    def _out(self, values: Array) -> Array:
        if not self.reuse:
            return values
        self.obs_buf[:] = values
        return self.obs_buf

    @rose.node(refreshes="episode", rows=True)
    def reset(self, epoch: int) -> Array:
        return self._out(np.full_like(self.obs_buf, float(epoch)))

    @rose.node(updates="episode", rows=True)
    def step(self, action: Array) -> Array:
        return self._out(action + 1.0)


@rose.component
class Policy:
    """Answers in a static output, as a captured graph does, or in a new one."""

    def __init__(self, rows: int, static: bool) -> None:
        self.weights = np.ones(4)
        self.output = torch.zeros(rows, 4, dtype=torch.float64)
        self.static = static

    @rose.node(reads="weights", rows=True)
    def act(self, obs: Array) -> Array:
        answer = torch.tensor(obs * self.weights)
        if not self.static:
            return answer.numpy()
        self.output[: len(obs)].copy_(answer)
        return self.output[: len(obs)].numpy()

    @rose.node(reads="weights", rows=True)
    def value(self, obs: Array) -> Array:
        return obs.sum(axis=1)


def record(path: Path, *, reuse: bool = False, static: bool = False) -> Facts:
    with program():
        policy, simulator = Policy(4, static), Simulator(4, reuse)

    @rose.loop
    def interact(obs: Array, step: int) -> tuple[Array, Array]:
        obs = simulator.step(policy.act(obs))
        return obs, obs

    @rose.loop
    def rollout(_: None, epoch: int) -> tuple[None, Array]:
        obs, _steps = interact(simulator.reset(epoch), count=3)
        return None, policy.value(obs)

    @rose.iteration
    def iteration() -> None:
        rollout(None, count=2)

    with rose.record(path, activity="none"):
        for _ in range(3):
            iteration()
    return build_facts(path)


def buffers(facts: Facts) -> dict[str, list[Access]]:
    """Accesses to shared storages by node."""
    return {
        node.path: [a for a in node.accesses.accesses if a.state.startswith("buffer.")]
        for node in facts.graph.nodes
        if any(a.state.startswith("buffer.") for a in node.accesses.accesses)
    }


def test_fresh_results_share_nothing(tmp_path: Path) -> None:
    facts = record(tmp_path / "trace.parquet")
    assert buffers(facts) == {}
    assert facts.loops[ROLLOUT].free


def test_a_reused_observation_orders_its_readers_before_the_next_step(tmp_path: Path) -> None:
    facts = record(tmp_path / "trace.parquet", reuse=True)
    state = "buffer.simulator.reset"
    writes, reads = (
        [Access(state, mode, keyed=True)] for mode in (StateAccess.UPDATE, StateAccess.READ)
    )
    assert buffers(facts) == {
        f"{ROLLOUT}/simulator.reset": writes,
        f"{INTERACT}/simulator.step": writes,
        f"{INTERACT}/policy.act": reads,
        f"{ROLLOUT}/policy.value": reads,
    }
    # The next epoch's reset would overwrite the observation that the value is taken of.
    evidence = facts.loops[ROLLOUT].evidence[0]
    assert evidence.state == state
    assert evidence.unlock.endswith("return a copy: it hands the same storage out each time.")
    # Each shard of the simulator has an observation of its own: groups of rows do not meet in it.
    nodes = hierarchy(facts.graph)
    assert split_refusal(nodes, INTERACT, 2, 4) is None
    assert sharded_components(nodes, INTERACT) == ("simulator",)
    assert nodes.component("simulator") is not None
    assert nodes.component("simulator").batch_states == ("episode",)  # pyright: ignore[reportOptionalMemberAccess]
    assert nodes.component("policy").batch_states == ()  # pyright: ignore[reportOptionalMemberAccess]


def test_a_static_output_is_one_for_all_groups(tmp_path: Path) -> None:
    """The replay for one group would overwrite the action of the other before it is used."""
    facts = record(tmp_path / "trace.parquet", static=True)
    state = "buffer.policy.act"
    assert buffers(facts) == {
        f"{INTERACT}/policy.act": [Access(state, StateAccess.UPDATE)],
        f"{INTERACT}/simulator.step": [Access(state, StateAccess.READ)],
    }
    refusal = split_refusal(hierarchy(facts.graph), INTERACT, 2, 4)
    assert refusal is not None
    assert refusal.unlock == (
        "Let policy.act return a copy: it hands the same storage out each time."
    )


def test_a_sibling_that_fills_the_buffer_does_not_start_early(tmp_path: Path) -> None:
    def buffered(refilled: bool) -> Facts:
        out = np.zeros(4)

        @rose.node(refreshes="made.a")
        def first() -> Array:
            out[:] += 1
            return out if refilled else out.copy()

        @rose.node(refreshes="made.b")
        def second() -> Array:
            out[:] += 1
            return out if refilled else out.copy()

        @rose.node(refreshes="made.c")
        def use(values: Array) -> None:
            values.sum()

        @rose.iteration
        def iteration() -> None:
            use(first())
            second()

        path = tmp_path / f"{refilled}.parquet"
        with rose.record(path, activity="none"):
            for _ in range(2):
                iteration()
        return build_facts(path)

    later, earlier = "iteration/second", "iteration/use"
    assert rewire_refusal(hierarchy(buffered(False).graph), later, earlier) is None
    refusal = rewire_refusal(hierarchy(buffered(True).graph), later, earlier)
    assert refusal is not None
    assert refusal.unlock == "Let first return a copy: it hands the same storage out each time."
    assert "read of 'buffer.first' against update of 'buffer.first'" in refusal.reason


def row(out: Array, step: int) -> Array:
    return out[step]


def two_rows(out: Array, step: int) -> Array:
    return out[step : step + 2]


def column(out: Array, step: int) -> Array:
    return out[:, step]  # between its ends lie bytes of the others


@pytest.mark.parametrize(("part", "shared"), [(row, False), (two_rows, True), (column, True)])
def test_only_bytes_that_overlap_are_shared(
    tmp_path: Path, part: Callable[[Array, int], Array], shared: bool
) -> None:
    out = np.zeros((8, 8))

    @rose.node(updates="out.rows")
    def make(step: int) -> Array:
        return part(out, step)

    @rose.node(pure=True)
    def use(values: Array) -> float:
        return float(values.sum())

    @rose.iteration
    def iteration() -> None:
        for step in range(5):
            use(make(step))

    with rose.record(tmp_path / "trace.parquet", activity="none"):
        iteration()
    found = buffers(build_facts(tmp_path / "trace.parquet"))
    assert set(found) == ({"iteration/make", "iteration/use"} if shared else set())


def test_who_takes_other_bytes_of_the_storage_does_not_read_the_shared_ones(tmp_path: Path) -> None:
    out = np.zeros((8, 8))

    @rose.node(updates="out.rows")
    def make() -> Array:
        return out[:2]

    @rose.node(pure=True)
    def use(values: Array) -> float:
        return float(values.sum())

    @rose.node(pure=True)
    def beside(values: Array) -> float:
        return float(values.sum())

    @rose.iteration
    def iteration() -> None:
        for _ in range(2):
            use(make())
            beside(out[4:])

    with rose.record(tmp_path / "trace.parquet", activity="none"):
        iteration()
    found = buffers(build_facts(tmp_path / "trace.parquet"))
    assert set(found) == {"iteration/make", "iteration/use"}


@pytest.mark.parametrize("looked_at", [False, True])
def test_handing_on_is_a_write_only_where_somebody_could_see_it(
    tmp_path: Path, looked_at: bool
) -> None:
    """`shift` may have written in place: then `look` must come first. Nobody else can tell."""

    @rose.node(pure=True)
    def make() -> Array:
        return np.ones(4)

    @rose.node(pure=True)
    def look(values: Array) -> float:
        return float(values.sum())

    @rose.node(pure=True)
    def shift(values: Array) -> Array:
        values += 1.0
        return values

    @rose.node(pure=True)
    def use(values: Array) -> float:
        return float(values.sum())

    @rose.node(pure=True)
    def around(values: Array) -> Array:
        return shift(values)

    @rose.iteration
    def iteration() -> None:
        for _ in range(2):
            values = make()
            if looked_at:
                look(values)
            use(around(values))

    with rose.record(tmp_path / "trace.parquet", activity="none"):
        iteration()
    found = buffers(build_facts(tmp_path / "trace.parquet"))
    if not looked_at:
        assert found == {}
        return
    state = "buffer.make"
    assert found["iteration/around/shift"] == [Access(state, StateAccess.UPDATE)]
    assert found["iteration/look"] == [Access(state, StateAccess.READ)]
