"""A program that does what it declares: nothing is found, nothing is changed, everything was looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rose_trace as rose
from rose_exec.observed import observe, output_digests
from rose_exec.replay import replay
from rose_exec.sanitizer.check import Checked, check
from rose_exec.sanitizer.findings import Checks, SanitizerError, SanitizerWarning
from rose_trace import generators
from tests.rose_exec import programs
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.sanitizer import wrong
from tests.rose_exec.test_replay import REWIRE, SPLIT, assert_identical, native


@pytest.mark.parametrize("seed", [None, 3], ids=["program order", "another order"])
@pytest.mark.parametrize("planned", [False, True])
def test_the_documented_program(planned: bool, seed: int | None) -> None:
    transforms = (SPLIT, "interleave", "merge", REWIRE)
    plan = observed_plan(
        programs.build, *transforms, rows=programs.ROWS, processes=("trainer", "policy")
    )
    checked = check(programs.build, plan=plan if planned else None, settings=Checks(seed=seed))
    assert checked.findings == ()
    assert checked.notes == {}
    assert_identical(list(checked.results), native())


def demo(**changes: Any) -> Checked:
    pytest.importorskip("mujoco")
    from examples.demo.program import Config, Outcome, Program, build

    config = Config(num_envs=4, epochs=2, steps=2, chunk=2, **changes)

    def run(built: Program, index: int) -> Outcome:
        return built.iteration(index)

    expected = observe(lambda: build(config), run, 2)
    checked = check(lambda: build(config), run)
    results = [output_digests(result) for result in checked.results]
    assert results == [output_digests(result) for result in expected.results]
    return checked


def test_the_demo() -> None:
    checked = demo()
    assert checked.findings == ()
    assert checked.notes == {}  # every trial told something


@rose.component(name="policy", batch_states=["memory"])
class Right(wrong.Base):
    """Every kind of state, each declared."""

    def __init__(self) -> None:
        super().__init__()
        self.net.requires_grad_(True)
        self.optimizer: Any = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.schedule: Any = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.noise = torch.Generator().manual_seed(3)
        self.memory = np.zeros((wrong.ROWS, 3), np.float32)
        self.buffer = torch.zeros(wrong.ROWS, 3)

    @rose.node(refreshes="memory")
    def reset(self, epoch: int) -> Any:
        self.memory[:] = epoch
        self.buffer.zero_()
        return torch.as_tensor(self.memory.copy())

    @rose.node(reads="weights", updates="memory", rows=True)
    def act(self, obs: Any) -> Any:
        with torch.no_grad():
            self.buffer.copy_(self.net(obs + torch.as_tensor(self.memory)))
        self.memory += 0.5
        return self.buffer.clone()

    @rose.node(updates=("weights", "generator.torch", "generator.numpy", "generator.random"))
    def learn(self, epoch: Any) -> Any:
        target = torch.randn(3, generator=self.noise) + torch.rand(3) + float(np.random.rand())
        loss = (self.net(epoch[1]) - target).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()


def right() -> Any:
    policy = Right()

    def step(obs: Any, t: int) -> Any:
        out = policy.act(obs)
        return out, out

    return wrong.rollout_of(step, policy.reset, policy.learn)


def test_every_kind_of_state_may_change_where_it_is_declared() -> None:
    before = generators.capture()
    expected = observe(right, lambda built, _: built(), 2)
    after = generators.capture()
    generators.restore(before)
    checked = check(right)
    assert checked.findings == ()
    assert list(map(output_digests, checked.results)) == list(map(output_digests, expected.results))
    assert generators.changed(after, generators.capture()) == ()


def test_classes_are_left_as_they_were() -> None:
    check(right, iterations=1)
    assert "__getattribute__" not in vars(Right)


def test_a_session_tells_at_its_end() -> None:
    build = wrong.one_component(wrong.WritesWeights)
    plan = observed_plan(build)
    told = pytest.warns(SanitizerWarning, match="expected only read policy.weights, got a write of")
    with told, replay(plan, build, check=True) as session:
        session.built()
    assert [f.state for f in session.findings] == ["policy.net.weight"]
    with (
        pytest.raises(SanitizerError) as raised,
        replay(plan, build, check=Checks(fail=True)) as session,
    ):
        session.built()
    assert str(raised.value) == (
        "root/rollout/interact/policy.act: expected only read policy.weights, got a write of "
        "'policy.net.weight' (undeclared write: root/rollout/interact/policy.act[0,0,0] and "
        "root/rollout/interact/policy.act[0,0,1]). Add updates= with the state of policy that 'net.weight' "
        "belongs to, or keep it in the node."
    )


def test_an_error_of_the_program_is_not_hidden() -> None:
    build = wrong.one_component(wrong.WritesWeights)

    def run() -> None:
        with replay(observed_plan(build), build, check=Checks(fail=True)) as session:
            session.built()
            raise KeyError("the program's own")

    with pytest.raises(KeyError, match="the program's own"):
        run()


def test_a_plan_that_keeps_the_native_order_is_checked_too() -> None:
    build = wrong.one_component(wrong.DrawsTorch)
    plan = observed_plan(build, kept_native=True)
    with pytest.warns(SanitizerWarning), replay(plan, build, check=True) as session:
        session.built()
    assert [f.state for f in session.findings] == ["generator.torch"]
