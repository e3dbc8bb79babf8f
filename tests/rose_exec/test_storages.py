"""A simulator that fills one observation buffer again and again: copied when handed out, its epochs overlap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rose_trace as rose
from rose_exec.fuzz import fuzz
from rose_exec.readiness import OrderViolation
from rose_exec.refs import Output, Result, Value
from rose_exec.replay import replay
from rose_exec.storages import Storages
from rose_opt.facts import Facts, build_facts
from rose_opt.optimize import plan as make_plan
from rose_opt.plan import Plan, PlanRefused, own_accesses
from rose_opt.settings import Memory, PlanSettings
from rose_trace.component import program
from tests.rose_exec.test_replay import assert_identical

BUFFER = "buffer.tank.reset"
COPY = f"copy-on-bind{{state={BUFFER}}}"
CHAINS = "split-temporal{loop=iteration/rollout groups=2},interleave{loop=iteration/rollout},merge{loop=iteration/rollout}"


@rose.component
class Tank:
    """Steps into a buffer that it hands out each time."""

    def __init__(self) -> None:
        self.level = torch.zeros(4)
        self.buffer = torch.zeros(4)

    @rose.node(refreshes="episode")
    def reset(self, epoch: int) -> torch.Tensor:
        self.level = torch.linspace(0.0, 1.0 + epoch, 4)
        return self.buffer.copy_(self.level)

    @rose.node(updates="episode")
    def step(self, action: torch.Tensor) -> torch.Tensor:
        self.level = torch.sin(self.level + action)
        return self.buffer.copy_(self.level)


@rose.component
class Pump:
    """A policy."""

    def __init__(self) -> None:
        self.gain = 0.7

    @rose.node(reads="weights")
    def act(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.cos(obs) * self.gain

    @rose.node(reads="weights")
    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.sum() * self.gain


def build(late: Callable[[int], bool] = lambda run: False) -> Callable[[], Any]:
    """The program; in the runs that `late` names, the first observation is valued after the last."""
    tank, pump = Tank(), Pump()
    runs = [0]

    @rose.loop
    def interact(obs: torch.Tensor, step: int) -> Any:
        action = pump.act(obs)
        return tank.step(action), action

    @rose.loop
    def rollout(_: None, epoch: int) -> Any:
        first = tank.reset(epoch)
        last, actions = interact(first, count=3)
        return None, (actions, pump.value(first if late(runs[0]) else last))

    @rose.iteration
    def iteration() -> Any:
        runs[0] += 1
        _, epochs = rollout(None, count=4)
        return epochs

    return iteration


def traced(path: Path, make: Callable[[], Callable[[], Any]] = build) -> Facts:
    with program():
        iteration = make()
        with rose.record(path / "trace.parquet"):
            iteration()
    return build_facts(path / "trace.parquet")


def asked(facts: Facts, transforms: str) -> Plan:
    settings = PlanSettings(
        cores=2.0, max_groups=2, memory=Memory(max_instances=2), transforms=transforms
    )
    return make_plan(facts, settings)


def native(iterations: int = 2) -> list[Any]:
    with program():
        iteration = build()
        return [iteration() for _ in range(iterations)]


def test_without_the_copy_the_epochs_stay_in_order(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match=r"tank\.reset updates 'buffer\.tank\.reset'"):
        asked(traced(tmp_path), CHAINS)


def test_epochs_in_chains_that_share_no_buffer_give_the_native_bits(tmp_path: Path) -> None:
    plan = asked(traced(tmp_path), f"{COPY},{CHAINS}")
    plan.save(tmp_path / "plan.json")
    with replay(tmp_path / "plan.json", build=build, strict=True) as session:
        found = [session.built() for _ in range(2)]
        assert not session.native
    assert_identical(found, native())
    fuzzed = fuzz(build, plan=plan, seeds=range(3), iterations=1)
    assert fuzzed.differences == ()
    assert fuzzed.overtakings > 0


def test_the_search_finds_the_copy_where_it_unlocks_something(tmp_path: Path) -> None:
    settings = PlanSettings(cores=2.0, max_groups=2, memory=Memory(max_instances=2), dispatch_ns=0)
    made = make_plan(traced(tmp_path), settings)
    priced = [",".join(item.transforms) for item in made.alternatives]
    assert f"{COPY},{CHAINS}" in priced
    assert not any(BUFFER in refusal.reason for refusal in made.refusals)


def test_results_that_are_handed_on_uncopied_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan drops the order that protects the buffer: without copies readers see the next filling."""
    early = "rewire{node=iteration/again beside=iteration/first}"

    def make() -> Callable[[], Any]:
        tank, pump = Tank(), Pump()

        @rose.loop
        def first(_: None, k: int) -> Any:
            return None, pump.value(tank.reset(k))

        @rose.loop
        def again(_: None, k: int) -> Any:
            return None, pump.act(pump.value(torch.ones(4) * k))

        @rose.iteration
        def iteration() -> Any:
            return first(None, count=4)[1], again(None, count=4)[1]

        return iteration

    plan = asked(traced(tmp_path, make), f"{COPY},{early}")
    assert fuzz(make, plan=plan, seeds=range(4), iterations=1).differences == ()

    def shared(leaf: Any) -> Any:
        return leaf

    monkeypatch.setattr("rose_exec.stepper.isolate", shared)
    assert fuzz(make, plan=plan, seeds=range(8), iterations=1).differences


def test_a_value_that_is_used_after_its_storage_was_filled_again_stops_the_iteration(
    tmp_path: Path,
) -> None:
    """Natively it has changed by then, which no trace of the iterations before could show."""
    plan = asked(traced(tmp_path), f"{COPY},{CHAINS}")
    with replay(plan, build=lambda: build(late=lambda run: run > 1), strict=True) as session:
        session.built()
        with pytest.raises(
            OrderViolation, match=r"rollout/pump\.value: expected values that are used"
        ):
            session.built()


def given(path: str, position: tuple[int, ...]) -> list[Value]:
    return [Output(Result(0, path, position), 0)]  # pyright: ignore[reportArgumentType]


def test_whoever_comes_first_a_late_use_is_seen(tmp_path: Path) -> None:
    plan = asked(traced(tmp_path), f"{COPY},{CHAINS}")
    reset, value = "iteration/rollout/tank.reset", "iteration/rollout/pump.value"
    late = Storages(plan, frozenset({BUFFER}), own_accesses)
    late.touch(reset, (0, 0), [])
    late.touch(reset, (0, 2), [])
    late.touch(value, (0, 1), given(reset, (0, 0)))
    with pytest.raises(OrderViolation):
        late.touch(value, (0, 3), given(reset, (0, 0)))
    other = Storages(plan, frozenset({BUFFER}), own_accesses)
    other.touch(reset, (0, 0), [])
    other.touch(value, (0, 3), given(reset, (0, 0)))
    other.touch(reset, (0, 4), [])
    with pytest.raises(OrderViolation):
        other.touch(reset, (0, 2), [])
    other.forget()
    other.touch(reset, (0, 2), [])
    unwatched = Storages(plan, frozenset(), own_accesses)
    unwatched.touch(reset, (0, 2), [])
    unwatched.touch(value, (0, 3), given(reset, (0, 0)))
