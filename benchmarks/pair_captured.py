"""The head D as one captured node: what `graph=True` makes of a launch-bound phase."""

from __future__ import annotations

import torch

import rose_trace as rose
from benchmarks.pair_model import Head


@rose.component
class CapturedHead:
    """D, whose ten steps are one CUDA graph; on a CPU they run as they are.

    Args:
        head: The head.
    """

    def __init__(self, head: Head) -> None:
        self.head = head
        self.prefix = [tensor for pair in head.prefix for tensor in pair]

    @rose.node(reads="weights", graph=True)
    def denoise(self, noise: torch.Tensor) -> torch.Tensor:
        """Actions. Shape: (batch, horizon, action_dim)."""
        return self.head.denoised(noise, self.prefix)

    def __call__(self) -> list[torch.Tensor]:
        """Actions. Shape: one tensor (batch, horizon, action_dim)."""
        return [self.denoise(self.head.noise)]
