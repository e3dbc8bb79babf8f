"""A small training program in the shape of the documentation, exact and fast, without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rose_trace as rose
from rose_trace.rng import RowGenerator

ROWS = 6


class Transition(NamedTuple):
    obs: Any
    action: Any
    reward: Any


@rose.component
class Policy:
    def __init__(self, seed: int) -> None:
        self.weights = np.full(3, float(seed))
        self.noise = RowGenerator(seed, ROWS)

    @rose.node(reads="weights", rows=True)
    def encode(self, obs: Any) -> Any:
        return {"feature": np.sin(obs["state"] * self.weights), "scale": obs["state"][:, :1]}

    @rose.node(reads="weights", rows=True)
    def denoise(self, prefix: Any, draw: int) -> Any:
        noise = self.noise.normal(draw, (3,))
        return prefix["feature"] + 0.1 * noise * prefix["scale"] + self.weights

    @rose.node(rows=True)
    def act(self, obs: Any, draw: int) -> Any:
        action = self.denoise(self.encode(obs), draw)
        return action, action.sum(axis=1)

    @rose.node(reads="weights", rows=True)
    def value(self, obs: Any) -> Any:
        return obs["state"] @ self.weights

    @rose.node(refreshes="weights")
    def load(self, weights: Any) -> None:
        self.weights = weights.copy()


@rose.component(batch_states=["episode"])
class Simulator:
    def __init__(self, rows: int, first: int = 0) -> None:
        self.rows = rows
        self.first = first
        self.state = np.zeros((rows, 3))

    @classmethod
    def shard(cls, index: int, count: int, rows: int, first: int = 0) -> dict[str, int]:
        start, stop = rows * index // count, rows * (index + 1) // count
        return {"rows": stop - start, "first": start}

    @rose.node(refreshes="episode", rows=True)
    def reset(self, epoch: int) -> Any:
        ids = np.arange(self.first, self.first + self.rows)
        self.state = np.stack([np.cos(ids + 10 * epoch + k) for k in range(3)], axis=1)
        return {"state": self.state.copy()}

    @rose.node(updates="episode", rows=True)
    def step(self, action: Any) -> Any:
        self.state = np.tanh(self.state + action)
        return {"state": self.state.copy()}, self.state[:, 0].copy()


@rose.component
class Trainer:
    def __init__(self, seed: int) -> None:
        self.weights = np.full(3, float(seed))
        self.updates = 0

    @rose.node(updates="weights")
    def update(self, epoch: Any) -> float:
        steps, bootstrap = epoch
        total = sum(float(step.reward.sum()) for step in steps) + float(bootstrap.sum())
        self.updates += 1
        self.weights = np.cos(self.weights * self.updates + total)
        return total

    @rose.node(reads="weights", name="current")
    def current_weights(self) -> Any:
        return self.weights


def build(epochs: int = 3, steps: int = 4, seed: int = 1) -> Callable[[], Any]:
    """Build the program; returns its iteration function."""
    policy, sim, trainer = Policy(seed), Simulator(ROWS), Trainer(seed)

    @rose.loop
    def interact(obs: Any, t: int) -> Any:
        action, _ = policy.act(obs, t)
        obs, reward = sim.step(action)
        return obs, Transition(obs, action, reward)

    @rose.loop
    def rollout(_: None, epoch: int) -> Any:
        obs, transitions = interact(sim.reset(epoch), count=steps)
        return None, (transitions, policy.value(obs))

    @rose.loop
    def learn(_: None, epoch: Any) -> Any:
        return None, trainer.update(epoch)

    @rose.iteration
    def iteration() -> Any:
        _, epochs = rollout(None, count=epochs_)
        _, losses = learn(None, over=epochs)
        policy.load(trainer.current_weights())
        return losses, epochs

    epochs_ = epochs
    return iteration
