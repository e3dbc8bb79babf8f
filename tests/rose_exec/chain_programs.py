"""A program of a loop whose iterations may run in chains; workers import it, so it imports little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rose_trace as rose


@rose.component
class World:
    """A simulator whose state outlives the loop."""

    def __init__(self) -> None:
        self.state = np.zeros(2)
        self.kept = 0.0

    @rose.node(refreshes="episode")
    def reset(self, epoch: int) -> Any:
        self.state = np.array([epoch, 1.0])
        return self.state.copy()

    @rose.node(updates="episode")
    def step(self, action: float) -> Any:
        self.state = np.sin(self.state + action)
        return self.state.copy()

    @rose.node(reads="episode")
    def look(self) -> Any:
        return self.state.copy()


def build(epochs: int, reset_from: int = 0, carry: bool = False) -> Callable[[], Any]:
    """A program whose rollout resets from epoch `reset_from` on, in the second iteration of training."""
    world = World()
    runs = [0]

    @rose.loop
    def rollout(carried: Any, epoch: int) -> Any:
        first = world.look() if runs[0] > 1 and epoch < reset_from else world.reset(epoch)
        steps = [first, *(world.step(0.1 * k) for k in range(3))]
        return (carried or 0) + 1 if carry and runs[0] > 1 else None, steps

    @rose.iteration(name="root")
    def iteration() -> Any:
        runs[0] += 1
        before = world.look()
        count = epochs if runs[0] < 3 else epochs + 1
        _, outputs = rollout(None, count=count)
        return before, outputs, world.look()

    return iteration
