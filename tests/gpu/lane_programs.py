"""A program whose policy has two phases on a device, importable in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import rose_trace as rose
from tests.gpu.worker_programs import DEVICE

ROWS, WIDTH, STEPS, EPOCHS = 64, 128, 4, 2


@rose.component
class Policy:
    """Large products, then many small kernels; float64, so that a row has the same bits in any batch."""

    def __init__(self) -> None:
        ramp = torch.arange(WIDTH * WIDTH, device=DEVICE, dtype=torch.float64).view(WIDTH, WIDTH)
        self.weights = ((ramp * 0.618) % 1.0 - 0.5) / 16
        self.head = self.weights[:8].clone()

    @rose.node(reads="weights", rows=True)
    def encode(self, obs: torch.Tensor) -> torch.Tensor:
        x = obs.to(DEVICE, non_blocking=True)
        for _ in range(8):
            x = (x.unsqueeze(1) * self.weights).sum(-1).tanh()
        return x

    @rose.node(reads="weights", rows=True)
    def denoise(self, prefix: torch.Tensor) -> torch.Tensor:
        action = prefix[:, :8] * 0.0
        for _ in range(40):
            action = action + 0.1 * (prefix[:, :8] * self.head[:, :8].sum() - action).tanh()
        return action

    @rose.node(rows=True)
    def act(self, obs: torch.Tensor) -> torch.Tensor:
        return self.denoise(self.encode(obs))

    @rose.node(refreshes="weights")
    def load(self, scale: float) -> None:
        self.weights.mul_(scale)
        self.head.copy_(self.weights[:8])


@rose.component(batch_states=["episode"])
class World:
    """A simulator on the host."""

    def __init__(self, rows: int, first: int = 0) -> None:
        self.rows, self.first = rows, first
        self.state = np.zeros((rows, WIDTH))

    @classmethod
    def shard(cls, index: int, count: int, rows: int, first: int = 0) -> dict[str, int]:
        start, stop = rows * index // count, rows * (index + 1) // count
        return {"rows": stop - start, "first": first + start}

    @rose.node(refreshes="episode", rows=True)
    def reset(self, epoch: int) -> torch.Tensor:
        ids = np.arange(self.first, self.first + self.rows, dtype=np.float64)
        self.state = np.cos(ids[:, None] + epoch + 0.01 * np.arange(WIDTH))
        return torch.as_tensor(self.state.copy())

    @rose.node(updates="episode", rows=True)
    def step(self, action: torch.Tensor) -> torch.Tensor:
        self.state[:, :8] += action.cpu().numpy()
        self.state = np.cos(self.state)
        return torch.as_tensor(self.state.copy())


def build() -> Callable[[], Any]:
    policy, world = Policy(), World(ROWS)

    @rose.loop
    def interact(obs: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        action = policy.act(obs)
        return world.step(action), action

    @rose.loop
    def rollout(_: None, epoch: int) -> tuple[None, Any]:
        obs, actions = interact(world.reset(epoch), count=STEPS)
        return None, (obs, actions)

    @rose.iteration
    def iteration() -> Any:
        _, epochs = rollout(None, count=EPOCHS)
        policy.load(0.99)
        return epochs

    return iteration
