"""A policy of a pi0.5-sized backbone and its denoising head on a GPU, beside little physics on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import rose_trace as rose
from benchmarks.pair_model import TINY, Backbone, Head, PairSize, hashed

OBSERVED = 32  # numbers per environment that the physics gives


@rose.component
class Policy:
    """Reads observations, denoises actions; both phases only read the weights.

    Args:
        rows: Environments.
        device: Where.
        tiny: Whether shapes are those of a dry run.
    """

    def __init__(self, rows: int, device: str, tiny: bool) -> None:
        size = replace(TINY if tiny else PairSize(), batch=rows)
        self.device = device
        self.backbone, self.head = Backbone(size, device), Head(size, device)
        self.embed = hashed((OBSERVED, size.backbone_width), 7, 0.1, device)

    @rose.node(reads="weights", rows=True)
    def encode(self, seen: torch.Tensor) -> list[torch.Tensor]:
        """Keys and values of every layer."""
        rows = rose.current_rows()
        mine = slice(None) if rows is None else slice(rows.start, rows.stop)
        pinned = seen.pin_memory() if self.device != "cpu" else seen
        told = pinned.to(self.device, non_blocking=True).bfloat16() @ self.embed
        return self.backbone(self.backbone.tokens[mine] + told[:, None])[1:]

    @rose.node(reads="weights", rows=True)
    def denoise(self, handed: list[torch.Tensor]) -> torch.Tensor:
        """Actions. Shape: (rows, horizon, action_dim)."""
        rows = rose.current_rows()
        mine = slice(None) if rows is None else slice(rows.start, rows.stop)
        return self.head.denoised(self.head.noise[mine], handed)

    @rose.node(rows=True)
    def act(self, seen: torch.Tensor) -> torch.Tensor:
        """Only glue around the two."""
        return self.denoise(self.encode(seen))


@rose.component(batch_states=["episode"])
class Physics:
    """A little work per environment, on the CPU.

    Args:
        rows: Environments here.
        first: Global row of the first.
    """

    def __init__(self, rows: int, first: int = 0) -> None:
        self.rows, self.first = rows, first
        self.state = np.zeros((rows, OBSERVED), dtype=np.float32)

    @classmethod
    def shard(cls, index: int, count: int, rows: int, first: int = 0) -> dict[str, int]:
        """Arguments of one shard: its rows, numbered as in the whole."""
        start, stop = rows * index // count, rows * (index + 1) // count
        return {"rows": stop - start, "first": first + start}

    @rose.node(refreshes="episode", rows=True)
    def reset(self, epoch: int) -> torch.Tensor:
        """What is seen first. Shape: (rows, OBSERVED)."""
        ids = np.arange(self.first, self.first + self.rows)[:, None]
        self.state = np.cos(ids + epoch + np.arange(OBSERVED)).astype(np.float32)
        return torch.as_tensor(self.state.copy())

    @rose.node(updates="episode", rows=True)
    def step(self, action: torch.Tensor) -> torch.Tensor:
        """What is seen next. Shape: (rows, OBSERVED)."""
        moved = action.float().cpu().numpy().reshape(self.rows, -1)
        self.state = np.tanh(self.state + 0.01 * moved[:, :1])
        return torch.as_tensor(self.state.copy())


def build(rows: int, steps: int, device: str, tiny: bool) -> Callable[[], Any]:
    """Build the program; returns its iteration, one rollout."""
    policy, physics = Policy(rows, device, tiny), Physics(rows)

    @rose.loop
    def interact(seen: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        action = policy.act(seen)
        return physics.step(action), action

    @rose.iteration
    def iteration() -> Any:
        return interact(physics.reset(0), count=steps)

    return iteration
