"""The simulator: real MuJoCo tasks, one environment after the other in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

import rose_trace as rose


@dataclass(frozen=True, slots=True)
class Task:
    """One MuJoCo task of gymnasium.

    Attributes:
        env_id: Name under which gymnasium makes it.
        actions: Numbers in one action (joint torques).
        horizon: Actions in one episode; no episode ends earlier.
        scale: Typical size of each observed number; observations are divided by it.
    """

    env_id: str
    actions: int
    horizon: int
    scale: tuple[float, ...]


TASKS = {
    # angles, joint speeds, then the places of fingertip, object and goal [m]
    "Pusher-v5": Task("Pusher-v5", 7, 100, (1.0,) * 7 + (3.0,) * 7 + (0.3,) * 9),
    # cosines, sines, target [m], joint speeds, fingertip minus target [m]
    "Reacher-v5": Task("Reacher-v5", 2, 50, (1.0,) * 4 + (0.1,) * 2 + (10.0,) * 2 + (0.1,) * 2),
}


@rose.component(batch_states=["episode"])
class Simulator:
    """`num_envs` environments of one task, each row of the batch one environment.

    Nothing is drawn from a shared stream: the start of an episode follows from the seed, the global
    row and the epoch, so a shard of the rows simulates exactly what the whole batch would.

    Args:
        env_id: Which of `TASKS`.
        num_envs: Environments in this simulator.
        seed: Seed of the start states.
        first_row: Global row of the first environment.
    """

    def __init__(self, env_id: str, num_envs: int, seed: int, first_row: int = 0) -> None:
        self.task = TASKS[env_id]
        self.rows = range(first_row, first_row + num_envs)
        self.seed = seed
        self.taken = 0
        self._scale = np.asarray(self.task.scale)
        self._envs: list[Any] = [gym.make(env_id).unwrapped for _ in self.rows]

    @classmethod
    def shard(
        cls, index: int, count: int, env_id: str, num_envs: int, seed: int, first_row: int = 0
    ) -> tuple[str, int, int, int]:
        """Constructor arguments of shard `index` of `count`: its own rows, numbered as in the whole."""
        start, end = num_envs * index // count, num_envs * (index + 1) // count
        return env_id, end - start, seed, first_row + start

    @rose.node(refreshes="episode", rows=True)
    def reset(self, epoch: int) -> Tensor:
        """Start a new episode in every environment.

        Args:
            epoch: Number of the rollout epoch since the start of training.

        Returns:
            What a policy sees first. Shape: [rows, 1, observation], float32.
        """
        self.taken = 0
        seen = np.empty((len(self.rows), 1, len(self._scale)))
        for i, (row, env) in enumerate(zip(self.rows, self._envs, strict=True)):
            start = np.random.SeedSequence((self.seed, row, epoch)).generate_state(1)[0]
            seen[i, 0], _ = env.reset(seed=int(start))
        return self._observation(seen)

    @rose.node(updates="episode", rows=True)
    def step(self, chunk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Carry out one chunk of actions in every environment.

        Args:
            chunk: Actions in order, on any device. Shape: [rows, chunk, action], float32.

        Returns:
            Observations after each action [rows, chunk, observation], summed reward [rows] and whether
            the episode has reached its horizon [rows].
        """
        actions = chunk.cpu().numpy().astype(np.float64)
        rows, length = actions.shape[:2]
        seen = np.empty((rows, length, len(self._scale)))
        reward = np.zeros(rows)
        for i, env in enumerate(self._envs):
            for k in range(length):
                seen[i, k], gained, _, _, _ = env.step(actions[i, k])
                reward[i] += gained
        self.taken += length
        done = torch.full((rows,), self.taken >= self.task.horizon)
        return self._observation(seen), torch.as_tensor(reward.astype(np.float32)), done

    def _observation(self, seen: np.ndarray) -> Tensor:
        return torch.as_tensor((seen / self._scale).astype(np.float32))
