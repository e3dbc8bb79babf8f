"""A program whose nodes do as they are told: fail, die, change their result, or answer questions."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np

import rose_trace as rose

ROWS = 4


class Broken(Exception):
    """Raised by nodes; survives pickling with its arguments."""


class Misconfigured(ValueError):
    """Raised by a constructor."""


def act_on(order: Any) -> None:
    """Carry out an order: ``(verb, ...)``."""
    match order:
        case ("raise", *arguments):
            raise Broken(*arguments)
        case ("interrupt",):
            raise KeyboardInterrupt("told to")
        case ("kill",):
            print("about to be killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case ("exit", code):
            print("leaving now", file=sys.stderr, flush=True)
            os._exit(code)
        case _:
            pass


@rose.component(batch_states="episode")
class Sim:
    """Keeps one number per row; obeys orders addressed to one of its rows."""

    limit = 100

    def __init__(self, rows: int, first: int = 0, name: str = "sim") -> None:
        self.rows = rows
        self.first = first
        self.label = name
        self.bounds = (0, (1.5, name))
        self.log: list[str] = []
        self.state = np.zeros(rows)

    @classmethod
    def shard(cls, index: int, count: int, rows: int, first: int = 0) -> tuple[int, int]:
        start, stop = rows * index // count, rows * (index + 1) // count
        return stop - start, first + start

    @rose.node(refreshes="episode", rows=True)
    def reset(self, epoch: int) -> Any:
        self.state = np.arange(self.first, self.first + self.rows) * 0.25 + epoch
        return self.state.copy()

    @rose.node(updates="episode", rows=("action",))
    def step(self, action: Any, order: Any = None, row: int = 0) -> Any:
        if row < 0 or self.first <= row < self.first + self.rows:
            act_on(order)
        if order == ("short",):
            return self.state[:-1].copy()
        if order == ("list",):
            return [self.state.copy(), 0]
        self.state = np.tanh(self.state + action)
        return self.state.copy()

    @rose.node(reads="episode", rows=True)
    def peek(self) -> Any:
        return self.state.copy()


@rose.component
class Learner:
    def __init__(self, seed: float = 1.0) -> None:
        self.weights = np.full(3, seed)
        self.steps = 0
        self.generator = object() if seed == 13 else None

    @rose.node(updates="weights")
    def learn(self, batch: Any, order: Any = None) -> float:
        act_on(order)
        self.steps += 1
        self.weights = np.cos(self.weights * self.steps + np.sum(batch))
        return float(self.weights.sum())

    @rose.node(reads="weights")
    def look(self) -> Any:
        return self.weights

    @rose.node(reads="weights")
    def pid(self) -> int:
        return os.getpid()

    @rose.node(reads="weights")
    def take(self, anything: Any) -> str:
        return type(anything).__name__

    @rose.node(reads="weights")
    def count_up(self, n: int) -> Iterator[int]:
        for k in range(n):
            yield k + self.steps

    @rose.node(reads="weights")
    async def soon(self) -> int:
        return self.steps

    @rose.node(reads="weights")
    async def each(self, n: int) -> AsyncIterator[int]:
        for k in range(n):
            yield k + self.steps


@rose.component
class Picky:
    def __init__(self, order: Any = None) -> None:
        if order == "fail":
            raise Misconfigured("no such robot", 7)
        act_on(order)

    @rose.node(pure=True)
    def same(self, value: Any) -> Any:
        return value


@rose.component(batch_states="episode")
class Drawing:
    """A component whose constructor draws from a process-wide generator."""

    def __init__(self, rows: int) -> None:
        self.state = np.array([random.random() for _ in range(rows)])

    @classmethod
    def shard(cls, index: int, count: int, rows: int) -> tuple[int]:
        return (rows * (index + 1) // count - rows * index // count,)

    @rose.node(updates="episode", rows=True)
    def step(self, x: Any) -> Any:
        self.state = self.state + x
        return self.state.copy()


@rose.component
class Holder:
    """A component that is given another one."""

    def __init__(self, other: Any) -> None:
        self.other = other

    @rose.node(pure=True)
    def same(self, value: Any) -> Any:
        return value


@rose.node(pure=True)
def double(x: Any) -> Any:
    return x * 2


@rose.node
def undeclared(x: Any) -> Any:
    return x + 1


class Program:
    """The program, and the orders it hands to its nodes.

    Attributes:
        orders: Order by place: ``(epoch, step)`` for the simulator, ``epoch`` for the learner.
        rows: Row of the simulator that obeys, by place; -1 for all.
        hook: Glue code run in every step of the inner loop.
    """

    def __init__(self, epochs: int = 2, steps: int = 3) -> None:
        self.orders: dict[Any, Any] = {}
        self.rows: dict[Any, int] = {}
        self.hook: Callable[[int, int], None] = lambda epoch, step: None
        self.caught: list[str] = []
        self.sim, self.learner = Sim(ROWS), Learner()
        sim, learner = self.sim, self.learner
        epoch_of: list[int] = [0]

        @rose.loop
        def interact(obs: Any, t: int) -> Any:
            self.hook(epoch_of[0], t)
            place = epoch_of[0], t
            obs = sim.step(obs * 0.5, self.orders.get(place), self.rows.get(place, 0))
            return obs, obs

        @rose.loop
        def rollout(_: None, epoch: int) -> Any:
            epoch_of[0] = epoch
            _, seen = interact(sim.reset(epoch), count=steps)
            return None, (seen, sim.peek())

        @rose.loop
        def learn(_: None, item: Any) -> Any:
            index, epoch = item
            return None, learner.learn(np.sum(epoch[1]), self.orders.get(index))

        @rose.iteration
        def iteration() -> Any:
            _, data = rollout(None, count=epochs)
            _, losses = learn(None, over=list(enumerate(data)))
            return losses, data, double(losses[-1])

        self.iteration = iteration
