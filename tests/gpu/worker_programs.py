"""What the tests of CUDA workers run in them: importable there."""

from __future__ import annotations

import os
from typing import Any

import torch

import rose_trace as rose

cuda: Any = torch.cuda
DEVICE = os.environ.get("ROSE_TEST_DEVICE", "cuda")  # "cpu": a dry run of what needs no device


def slow_ramp(count: int, milliseconds: float) -> torch.Tensor:
    """A tensor that the device takes its time for; the host returns at once."""
    result = torch.zeros(count, device=DEVICE)
    cuda._sleep(round(milliseconds * 1.9e6))
    return result.copy_(torch.arange(float(count), device=DEVICE))


def slow_total(value: torch.Tensor, milliseconds: float) -> torch.Tensor:
    """Reads its argument late."""
    cuda._sleep(round(milliseconds * 1.9e6))
    return value.double().sum()


def filled(gibibytes: int) -> torch.Tensor:
    """More than the device has, or not."""
    return torch.zeros(gibibytes << 30, dtype=torch.uint8, device=DEVICE)


def broken() -> None:
    """An access out of bounds: the context is lost."""
    index = torch.full((4,), 1 << 40, device=DEVICE)
    torch.zeros(4, device=DEVICE)[index]
    torch.cuda.synchronize()


@rose.component
class Policy:
    """Its weights are drawn by the CUDA generator."""

    def __init__(self) -> None:
        self.net = torch.nn.Linear(64, 8, device=DEVICE)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    @rose.node(reads="weights")
    def act(self, obs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.net(obs).tanh()

    @rose.node(updates="weights")
    def learn(self, obs: torch.Tensor, actions: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = (self.net(obs) - actions).square().mean()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        self.optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        return float(loss.detach())

    @rose.node(reads="weights")
    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self.net.parameters()]


@rose.component
class World:
    """A simulator on the device; draws from the CUDA generator when it is built."""

    def __init__(self) -> None:
        self.mix = torch.randn(8, 64, device=DEVICE)
        self.state = torch.zeros(32, 64, device=DEVICE)

    @rose.node(refreshes="episode")
    def reset(self, epoch: int) -> torch.Tensor:
        self.state = torch.full((32, 64), 0.1 * (epoch + 1), device=DEVICE)
        return self.state

    @rose.node(updates="episode")
    def step(self, action: torch.Tensor, order: str = "") -> torch.Tensor:
        if order == "oom":
            torch.zeros(1000 << 30, dtype=torch.uint8, device=DEVICE)
        self.state = (self.state + action @ self.mix).tanh()
        return self.state


class Training:
    """The program; `orders` tells the simulator what to do in a step."""

    def __init__(self) -> None:
        torch.manual_seed(5)  # pyright: ignore[reportUnknownMemberType]
        self.world, self.policy = World(), Policy()
        self.orders: dict[int, str] = {}
        world, policy = self.world, self.policy

        @rose.iteration(name="train")
        def train() -> Any:
            obs = world.reset(1)
            seen, done = [obs], list[torch.Tensor]()
            for step in range(5):
                action = policy.act(obs)
                obs = world.step(action, self.orders.get(step, ""))
                seen.append(obs)
                done.append(action)
            loss = policy.learn(torch.cat(seen[:-1]), torch.cat(done) * 0.5)
            return loss, obs, policy.weights()

        self.train = train
