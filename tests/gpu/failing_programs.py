"""A program on a device whose nodes do as they are told: fail, run out of memory, or lose their process."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

import rose_trace as rose
from tests.gpu.worker_programs import DEVICE, broken

ROWS = 4
SLEEP_CYCLES = 40_000_000  # some 20 ms
GREEDY_BYTES = 1000 << 30
cuda: Any = torch.cuda


class Broken(Exception):
    """Raised by nodes; survives pickling with its arguments."""


def obey(order: str) -> None:
    """Carry out an order, if there is one."""
    if order == "raise":
        raise Broken("no contact", 17)
    if order == "oom":
        torch.zeros(GREEDY_BYTES, dtype=torch.uint8, device=DEVICE)
    if order == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if order == "lose":
        broken()


def keep_busy() -> None:
    """Work that is still in flight when the node raises or returns."""
    if DEVICE != "cpu":
        cuda._sleep(SLEEP_CYCLES)


@rose.component(batch_states="episode")
class Sim:
    """One row of numbers per environment, on the device."""

    def __init__(self, rows: int, first: int = 0) -> None:
        self.rows, self.first = rows, first
        self.state = torch.zeros(rows, 8, device=DEVICE)

    @classmethod
    def shard(cls, index: int, count: int, rows: int, first: int = 0) -> tuple[int, int]:
        start, stop = rows * index // count, rows * (index + 1) // count
        return stop - start, first + start

    @rose.node(refreshes="episode", rows=True)
    def reset(self, epoch: int) -> Any:
        rows = torch.arange(self.first, self.first + self.rows, device=DEVICE) * 0.25 + epoch
        self.state = rows[:, None].expand(self.rows, 8).contiguous()
        return self.state.clone()

    @rose.node(updates="episode", rows=("action",))
    def step(self, action: Any, order: str = "", row: int = 0) -> Any:
        keep_busy()
        self.state = torch.tanh(self.state + action)
        if self.first <= row < self.first + self.rows:
            obey(order)
        return self.state.clone()

    @rose.node(reads="episode", rows=True)
    def peek(self) -> Any:
        return self.state.clone()


@rose.component
class Learner:
    """Weights on the device."""

    def __init__(self) -> None:
        self.weights = torch.full((8,), 0.5, device=DEVICE)

    @rose.node(updates="weights")
    def learn(self, batch: Any, order: str = "") -> Any:
        keep_busy()
        self.weights = torch.cos(self.weights + batch.mean((0, 1)))
        obey(order)
        return self.weights.clone()

    @rose.node(reads="weights")
    def pid(self) -> int:
        return os.getpid()


class Program:
    """Two epochs of a rollout, then learning.

    Attributes:
        orders: Order by place: ``(epoch, step)`` for the simulator, ``epoch`` for the learner.
        row: Row of the simulator that obeys.
    """

    def __init__(self) -> None:
        self.orders: dict[Any, str] = {}
        self.row = 0
        self.sim, self.learner = Sim(ROWS), Learner()
        sim, learner = self.sim, self.learner
        epoch_of: list[int] = [0]

        @rose.loop
        def interact(obs: Any, t: int) -> Any:
            obs = sim.step(obs * 0.5, self.orders.get((epoch_of[0], t), ""), self.row)
            return obs, obs

        @rose.loop
        def rollout(_: None, epoch: int) -> Any:
            epoch_of[0] = epoch
            _, seen = interact(sim.reset(epoch), count=3)
            return None, (torch.stack(seen), sim.peek())

        @rose.loop
        def learn(_: None, item: Any) -> Any:
            index, epoch = item
            return None, learner.learn(epoch[0].mean(0)[None], self.orders.get(index, ""))

        @rose.iteration
        def iteration() -> Any:
            _, data = rollout(None, count=2)
            _, losses = learn(None, over=list(enumerate(data)))
            return losses, data

        self.iteration = iteration
