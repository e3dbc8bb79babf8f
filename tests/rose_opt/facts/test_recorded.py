"""Facts of a program that the recorder saw, not of a hand-written trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rose_trace as rose
from rose_opt.facts import Facts, build_facts
from rose_opt.text import graph_text
from rose_trace.component import program

Array = npt.NDArray[np.float64]

TEXT = """\
iteration iteration
  loop iteration/rollout count=3 free
    node simulator.reset refresh simulator.episode
    loop iteration/rollout/interact count=5 dependent
      node policy.act
        node policy.encode read policy.weights
        node policy.denoise read policy.weights
      node simulator.step update simulator.episode
    node policy.value read policy.weights
  loop iteration/learn count=3 dependent
    node trainer.update update trainer.weights
  loop iteration/log count=2 fixed
    node write opaque
  node trainer.read read trainer.weights
  node policy.load refresh policy.weights
data iteration/rollout/simulator.reset -> iteration/rollout/interact/policy.act in iteration/rollout
data iteration/rollout/simulator.reset -> iteration/rollout/interact/policy.act/policy.encode in \
iteration/rollout
data iteration/rollout/interact/policy.act/policy.encode -> \
iteration/rollout/interact/policy.act/policy.denoise in iteration/rollout/interact
data iteration/rollout/interact/policy.act/policy.denoise -> \
iteration/rollout/interact/simulator.step in iteration/rollout/interact
data iteration/rollout/interact/policy.act/policy.denoise -> iteration/learn/trainer.update in \
iteration ALIGNMENT
data iteration/rollout/interact/simulator.step -> iteration/rollout/interact/policy.act in \
iteration/rollout/interact distance=1
data iteration/rollout/interact/simulator.step -> \
iteration/rollout/interact/policy.act/policy.encode in iteration/rollout/interact distance=1
data iteration/rollout/interact/simulator.step -> iteration/rollout/policy.value in \
iteration/rollout
data iteration/rollout/interact/simulator.step -> iteration/learn/trainer.update in iteration \
ALIGNMENT
data iteration/rollout/policy.value -> iteration/learn/trainer.update in iteration ALIGNMENT
data iteration/trainer.read -> iteration/policy.load in iteration"""


@rose.component
class Policy:
    def __init__(self) -> None:
        self.weights = np.eye(8)

    @rose.node(reads="weights", rows=True)
    def encode(self, obs: Array) -> Array:
        return obs @ self.weights

    @rose.node(reads="weights", rows=True)
    def denoise(self, prefix: Array, step: int) -> Array:
        return prefix @ self.weights + step

    @rose.node(rows=True)
    def act(self, obs: Array, step: int) -> Array:
        return self.denoise(self.encode(obs), step)

    @rose.node(reads="weights", rows=True)
    def value(self, obs: Array) -> Array:
        return obs.sum(axis=1)

    @rose.node(refreshes="weights")
    def load(self, weights: Array) -> None:
        self.weights = weights


@rose.component(batch_states=["episode"])
class Simulator:
    def __init__(self, rows: int) -> None:
        self.rows = rows

    @rose.node(refreshes="episode", rows=True)
    def reset(self, epoch: int) -> Array:
        return np.full((self.rows, 8), float(epoch))

    @rose.node(updates="episode", rows=True)
    def step(self, action: Array) -> Array:
        return action + 1.0


@rose.component
class Trainer:
    def __init__(self) -> None:
        self.weights = np.eye(8)

    @rose.node(updates="weights")
    def update(self, values: Any) -> None:
        self.weights = self.weights * 0.5

    @rose.node(reads="weights")
    def read(self) -> Array:
        return self.weights.copy()


@rose.node
def write(line: int) -> None:
    del line


def record(path: Path, over_all_epochs: bool) -> Facts:
    with program():
        policy, simulator, trainer = Policy(), Simulator(4), Trainer()

    @rose.loop
    def interact(obs: Array, step: int) -> tuple[Array, tuple[Array, Array]]:
        action = policy.act(obs, step)
        obs = simulator.step(action)
        return obs, (action, obs)

    @rose.loop
    def rollout(_: None, epoch: int) -> tuple[None, tuple[Sequence[Any], Array]]:
        obs, steps = interact(simulator.reset(epoch), count=5)
        return None, (steps, policy.value(obs))

    @rose.loop
    def learn(_: None, values: Any) -> tuple[None, None]:
        return None, trainer.update(values)

    @rose.iteration
    def iteration() -> None:
        _, epochs = rollout(None, count=3)
        learn(None, over=[epochs] * 3 if over_all_epochs else epochs)
        for line in rose.iterations("log", [1, 2]):
            write(line)
        policy.load(trainer.read())

    with rose.record(path):
        for _ in range(3):
            iteration()
    return build_facts(path)


def test_learning_on_finished_epochs(tmp_path: Path):
    facts = record(tmp_path / "trace.parquet", over_all_epochs=False)
    text = graph_text(facts.graph, facts.loops, data=True)
    assert text == TEXT.replace("ALIGNMENT", "alignment=0")
    assert facts.iteration.used == 2
    assert facts.rows["iteration/rollout"] == 4
    assert facts.timings["iteration/rollout/interact/policy.act"].count == 2 * 3 * 5
    assert facts.loops["iteration/rollout"].limited_by == ("simulator.episode",)


def test_learning_over_all_epochs(tmp_path: Path):
    facts = record(tmp_path / "trace.parquet", over_all_epochs=True)
    text = graph_text(facts.graph, facts.loops, data=True)
    assert text == TEXT.replace("ALIGNMENT", "all-iterations")
