"""Programs whose declarations are wrong, one way each; every one runs, and natively it is fine."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

import rose_trace as rose

ROWS = 4
Build = Callable[[], Callable[[], Any]]


def rollout_of(step: Callable[[Any, int], Any], start: Callable[[int], Any], learn: Any) -> Any:
    """The usual loops around a program's nodes."""

    @rose.loop
    def interact(obs: Any, t: int) -> Any:
        obs, out = step(obs, t)
        return obs, out

    @rose.loop
    def rollout(_: None, epoch: int) -> Any:
        last, outs = interact(start(epoch), count=2)
        return None, (outs, last)

    @rose.loop
    def learning(_: None, epoch: Any) -> Any:
        return None, learn(epoch)

    @rose.iteration(name="root")
    def iteration() -> Any:
        _, epochs = rollout(None, count=2)
        _, losses = learning(None, over=epochs)
        return losses, epochs

    return iteration


@rose.node(pure=True)
def summed(epoch: Any) -> Any:
    """A right node: what learning is in most of these programs."""
    return torch.as_tensor(epoch[1]).sum()


@rose.node(pure=True)
def ones(epoch: int) -> Any:
    """A right node: what an episode starts from in most of these programs."""
    return torch.arange(ROWS * 3, dtype=torch.float32).reshape(ROWS, 3) / 7 + epoch


class Base:
    """A policy with weights that nothing but its own nodes touches."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.net = nn.Linear(3, 3)
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.net.requires_grad_(False)


def one_component(cls: Any) -> Build:
    """A program that does nothing but call ``act`` of one component in a rollout."""

    def build() -> Callable[[], Any]:
        policy = cls()

        def step(obs: Any, t: int) -> Any:
            out = policy.act(obs)
            return out, out

        return rollout_of(step, ones, summed)

    return build


@rose.component(name="policy")
class WritesWeights(Base):
    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        self.net.weight.mul_(0.99)
        return self.net(obs)


@rose.component(name="policy")
class DrawsTorch(Base):
    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        return self.net(obs) + torch.randn(obs.shape)


@rose.component(name="policy")
class DrawsNumpy(Base):
    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        return self.net(obs) + float(np.random.rand())


@rose.component(name="policy")
class DrawsRandom(Base):
    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        return self.net(obs) + random.random()


@rose.component(name="policy")
class DrawsOwn(Base):
    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.Generator().manual_seed(3)

    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        return self.net(obs) + torch.randn(obs.shape, generator=self.noise)


@rose.component(name="policy")
class BatchNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3).train()

    @rose.node(updates="weights", rows=True)
    def act(self, obs: Any) -> Any:
        with torch.no_grad():
            return self.norm(self.net(obs))


@rose.component(name="policy")
class BatchMean(Base):
    @rose.node(reads="weights", rows=True)
    def act(self, obs: Any) -> Any:
        return self.net(obs - obs.mean(0))


@rose.component(name="policy")
class StepsOptimizer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.net.requires_grad_(True)
        self.optimizer: Any = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)

    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        self.optimizer.zero_grad()
        out = self.net(obs)
        out.square().mean().backward()
        self.optimizer.step()
        return out.detach()


@rose.component(name="policy")
class WritesData(Base):
    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        self.net.bias.data += 0.01
        return self.net(obs)


@rose.component(name="policy")
class WritesNumpy(Base):
    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        self.net.bias.detach().numpy()[0] += 0.01
        return self.net(obs)


@rose.component(name="policy")
class WritesAttribute(Base):
    def __init__(self) -> None:
        super().__init__()
        self.last = {"obs": [0.0]}

    @rose.node(pure=True)
    def act(self, obs: Any) -> Any:
        self.last["obs"][0] = float(obs.sum())
        return obs * 1.0


@rose.component(name="policy")
class TicksSchedule(Base):
    def __init__(self) -> None:
        super().__init__()
        self.optimizer: Any = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        self.schedule: Any = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        self.optimizer.step()
        self.schedule.step()
        return self.net(obs) * self.optimizer.param_groups[0]["lr"]


@rose.component(name="policy")
class ClassCounter(Base):
    calls: ClassVar[int] = 0

    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        type(self).calls += 1
        return self.net(obs)


CALLS = {"act": 0}


def _count() -> None:
    CALLS["act"] += 1


@rose.component(name="policy")
class GlobalCounter(Base):
    @rose.node(updates="weights")
    def act(self, obs: Any) -> Any:
        _count()
        return self.net(obs)


@rose.component(name="policy")
class WritesInput(Base):
    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        obs.clamp_(-1, 1)
        return self.net(obs)


@rose.component(name="policy")
class TwoStates(Base):
    """Both nodes write one attribute, each under a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    @rose.node(updates="statistics")
    def act(self, obs: Any) -> Any:
        self.scale = self.scale * 0.9 + float(obs.abs().mean()) * 0.1
        return obs / self.scale

    @rose.node(updates="weights")
    def learn(self, epoch: Any) -> Any:
        self.scale = self.scale * 2.0
        return epoch[1].sum()


def two_states() -> Callable[[], Any]:
    policy = TwoStates()

    def step(obs: Any, t: int) -> Any:
        out = policy.act(obs)
        return out, out

    return rollout_of(step, ones, policy.learn)


@rose.component(name="policy")
class ReadsUndeclared(Base):
    """The pure node reads what the learning one writes."""

    @rose.node(pure=True)
    def act(self, obs: Any) -> Any:
        return self.net(obs)

    @rose.node(updates="weights")
    def learn(self, epoch: Any) -> Any:
        self.net.weight.add_(epoch[1].mean() * 0.01)
        return self.net.weight.sum()


def reads_undeclared() -> Callable[[], Any]:
    policy = ReadsUndeclared()

    def step(obs: Any, t: int) -> Any:
        out = policy.act(obs)
        return out, out

    return rollout_of(step, ones, policy.learn)


@rose.component(name="sim")
class ReusesBuffer:
    """Hands out its observation buffer and writes into it at the next step."""

    def __init__(self) -> None:
        self.obs_buf = torch.zeros(ROWS, 3)

    @rose.node(refreshes="episode")
    def reset(self, epoch: int) -> Any:
        self.obs_buf.fill_(float(epoch))
        return self.obs_buf.clone()

    @rose.node(updates="episode")
    def step(self, obs: Any) -> Any:
        self.obs_buf.add_(obs.tanh() + 0.5)
        return self.obs_buf


@rose.component(name="sim")
class CarriesGenerator:
    """Start states come from a generator that goes on from episode to episode."""

    def __init__(self) -> None:
        self.draws = np.random.default_rng(5)
        self.state = torch.zeros(ROWS, 3)

    @rose.node(refreshes="episode")
    def reset(self, epoch: int) -> Any:
        self.state = torch.as_tensor(self.draws.normal(size=(ROWS, 3)))
        return self.state.clone()

    @rose.node(updates="episode")
    def step(self, obs: Any) -> Any:
        self.state = self.state * 0.5 + obs
        return self.state.clone()


@rose.component(name="sim")
class InheritsState:
    """A reset that keeps some of the old state."""

    def __init__(self) -> None:
        self.state = np.zeros((ROWS, 3))

    @rose.node(refreshes="episode")
    def reset(self, epoch: int) -> Any:
        self.state = 0.1 * self.state + epoch
        return self.state.copy()

    @rose.node(updates="episode")
    def step(self, obs: Any) -> Any:
        self.state = np.tanh(self.state + obs)
        return self.state.copy()


@rose.component(name="sim")
class RefreshCounts:
    """A reset that is one only but for its counter."""

    def __init__(self) -> None:
        self.state = np.zeros((ROWS, 3))
        self.episodes = 0

    @rose.node(refreshes="episode")
    def reset(self, epoch: int) -> Any:
        self.episodes += 1
        self.state = np.full((ROWS, 3), float(self.episodes))
        return self.state.copy()

    @rose.node(updates="episode")
    def step(self, obs: Any) -> Any:
        self.state = np.tanh(self.state + obs)
        return self.state.copy()


def one_simulator(cls: Any) -> Build:
    """A program that steps a simulator."""

    def build() -> Callable[[], Any]:
        sim = cls()

        def step(obs: Any, t: int) -> Any:
            obs = sim.step(obs)
            return obs, obs

        return rollout_of(step, sim.reset, summed)

    return build


@rose.component(name="policy")
class Actor:
    def __init__(self, net: Any) -> None:
        self.net = net

    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        with torch.no_grad():
            return self.net(obs)


@rose.component(name="trainer")
class Learner:
    def __init__(self, net: Any) -> None:
        self.model = net

    @rose.node(updates="weights")
    def learn(self, epoch: Any) -> Any:
        with torch.no_grad():
            self.model.weight.add_(epoch[1].mean() * 0.01)
        return self.model.weight.sum()


def shared_module() -> Callable[[], Any]:
    net = Base().net
    policy, trainer = Actor(net), Learner(net)

    def step(obs: Any, t: int) -> Any:
        out = policy.act(obs)
        return out, out

    return rollout_of(step, ones, trainer.learn)


def glue_counts() -> Callable[[], Any]:
    policy = Actor(Base().net)
    count = [0]

    def step(obs: Any, t: int) -> Any:
        count[0] += 1
        out = policy.act(obs + count[0])
        return out, out

    return rollout_of(step, ones, summed)


def glue_writes_component() -> Callable[[], Any]:
    policy = WritesAttribute()
    actor = Actor(Base().net)

    def step(obs: Any, t: int) -> Any:
        policy.last = {"obs": [float(t)]}
        out = actor.act(obs)
        return out, out

    return rollout_of(step, ones, summed)
