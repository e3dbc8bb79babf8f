"""A training program with one set of weights: the trainer updates the module that the policy acts with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import rose_trace as rose

ROWS = 6
EPOCHS = 4
STEPS = 3


@rose.component
class Actor:
    """A policy whose weights somebody else trains.

    Args:
        seed: Seed of the weights.
        device: Where they are.
    """

    def __init__(self, seed: int, device: str = "cpu") -> None:
        drawn = torch.Generator().manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
        self.model.append(torch.nn.Linear(8, 4))
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(torch.randn(weight.shape, generator=drawn))
        self.model.to(device)
        self.device = device

    @rose.node(reads="weights", rows=True)
    def act(self, obs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.model(obs.to(self.device)).cpu()

    @rose.node(reads="weights", rows=True)
    def value(self, obs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.model(obs.to(self.device)).sum(dim=1).cpu()


@rose.component(batch_states=["episode"])
class Arm:
    """A simulator.

    Args:
        rows: Number of environments.
    """

    def __init__(self, rows: int, first: int = 0) -> None:
        self.rows, self.first = rows, first
        self.state = torch.zeros(rows, 4)

    @classmethod
    def shard(cls, index: int, count: int, rows: int, first: int = 0) -> tuple[int, int]:
        start, stop = rows * index // count, rows * (index + 1) // count
        return stop - start, first + start

    @rose.node(refreshes="episode", rows=True)
    def reset(self, epoch: int) -> torch.Tensor:
        ids = torch.arange(self.first, self.first + self.rows, dtype=torch.float32)
        self.state = torch.stack([torch.cos(ids + 10 * epoch + k) for k in range(4)], dim=1)
        return self.state.clone()

    @rose.node(updates="episode", rows=True)
    def step(self, action: torch.Tensor) -> torch.Tensor:
        self.state = torch.sin(self.state + 0.1 * action)
        return self.state.clone()


@rose.component
class Learner:
    """Updates the actor's own module.

    Args:
        actor: The policy.
    """

    def __init__(self, actor: Actor) -> None:
        self.model, self.device = actor.model, actor.device
        self.optimizer: Any = torch.optim.Adam(self.model.parameters(), lr=0.05)

    @rose.node(updates=("actor.weights", "moments"))
    def update(self, epoch: Any) -> torch.Tensor:
        steps, bootstrap = epoch
        seen = [obs.to(self.device) for obs in steps]
        loss = sum(self.model(obs).square().mean() for obs in seen) + bootstrap.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach().cpu()

    @rose.node(reads="actor.weights")
    def weights(self) -> list[torch.Tensor]:
        return [weight.detach().cpu().clone() for weight in self.model.parameters()]


def build(epochs: int = EPOCHS, device: str = "cpu") -> Callable[[], Any]:
    """Build the program; returns its iteration."""
    actor, arm = Actor(3, device), Arm(ROWS)
    learner = Learner(actor)

    @rose.loop
    def interact(obs: torch.Tensor, step: int) -> Any:
        obs = arm.step(actor.act(obs))
        return obs, obs

    @rose.loop
    def rollout(_: None, epoch: int) -> Any:
        obs, seen = interact(arm.reset(epoch), count=STEPS)
        return None, (seen, actor.value(obs))

    @rose.loop
    def learn(_: None, epoch: Any) -> Any:
        return None, learner.update(epoch)

    @rose.iteration
    def iteration() -> Any:
        _, collected = rollout(None, count=epochs)
        _, losses = learn(None, over=collected)
        return losses, collected, learner.weights()

    return iteration
