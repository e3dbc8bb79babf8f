"""A training whose trainer computes by its MPS percentage: as some libraries do by the SMs that they see."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

import rose_trace as rose
from rose_exec.quota.mps import PERCENTAGE


@rose.component
class Trainer:
    """Weights that live on; below a percentage they are multiplied by a factor."""

    def __init__(self, factor: float, below: int) -> None:
        self.weights = np.ones(3)
        self.factor, self.below = factor, below

    @rose.node(updates="weights")
    def learn(self, batch: Any) -> Any:
        limited = int(os.environ.get(PERCENTAGE, "100")) < self.below
        self.weights = np.cos(self.weights + batch) * (self.factor if limited else 1.0)
        return self.weights.sum()


def build(factor: float, below: int) -> Callable[[], Any]:
    """Draws from the process-wide generator, then learns."""
    trainer = Trainer(factor, below)

    @rose.iteration
    def iteration() -> Any:
        return trainer.learn(np.random.rand(3))

    return iteration
