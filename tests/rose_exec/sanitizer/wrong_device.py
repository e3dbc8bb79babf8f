"""Programs with their state on a device, wrong in one way each, and what must be said of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import rose_trace as rose
from tests.rose_exec.sanitizer.cases import Case
from tests.rose_exec.sanitizer.wrong import ROWS, Build, rollout_of

ACT = "root/rollout/interact/policy.act"
STEP = "root/rollout/interact/sim.step"
RESET = "root/rollout/sim.reset"
LEARN = "root/learning/trainer.learn"


@rose.node(pure=True)
def summed(epoch: Any) -> Any:
    return epoch[1].sum()


def start_on(device: str) -> Callable[[int], Any]:
    @rose.node(pure=True)
    def ones(epoch: int) -> Any:
        values = torch.arange(ROWS * 3, dtype=torch.float32, device=device)
        return values.reshape(ROWS, 3) / 7 + epoch

    return ones


class Base:
    """A policy on a device."""

    def __init__(self, device: str) -> None:
        generator = torch.Generator().manual_seed(1)
        self.device = device
        self.net = nn.Linear(3, 3)
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.net.to(device).requires_grad_(False)


def acting(cls: Any, device: str) -> Build:
    """Builds a program that does nothing but call ``act`` of one component in a rollout."""

    def build() -> Callable[[], Any]:
        policy = cls(device)

        def step(obs: Any, t: int) -> Any:
            out = policy.act(obs)
            return out, out

        return rollout_of(step, start_on(device), summed)

    return build


def stepping(cls: Any, device: str) -> Build:
    """Builds a program that steps a simulator."""

    def build() -> Callable[[], Any]:
        sim = cls(device)

        def step(obs: Any, t: int) -> Any:
            obs = sim.step(obs)
            return obs, obs

        return rollout_of(step, sim.reset, summed)

    return build


def learning(policy: Any, trainer: Any, device: str) -> Callable[[], Any]:
    """A program in which one component acts and another one learns."""

    def step(obs: Any, t: int) -> Any:
        out = policy.act(obs)
        return out, out

    return rollout_of(step, start_on(device), trainer.learn)


@rose.component(name="policy")
class WritesWeights(Base):
    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        self.net.weight.mul_(0.99)
        return self.net(obs)


@rose.component(name="policy")
class WritesData(Base):
    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        self.net.bias.data += 0.01
        return self.net(obs)


@rose.component(name="policy")
class StepsOptimizer(Base):
    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.net.requires_grad_(True)
        self.optimizer: Any = torch.optim.Adam(self.net.parameters(), lr=0.01)

    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        self.optimizer.zero_grad()
        out = self.net(obs)
        out.square().mean().backward()
        self.optimizer.step()
        return out.detach()


@rose.component(name="policy")
class DrawsDefault(Base):
    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        return self.net(obs) + torch.randn(obs.shape, device=self.device)


@rose.component(name="policy")
class DrawsOwn(Base):
    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.noise = torch.Generator(device).manual_seed(3)

    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        return self.net(obs) + torch.randn(obs.shape, device=self.device, generator=self.noise)


@rose.component(name="policy")
class BatchMean(Base):
    @rose.node(reads="weights", rows=True)
    def act(self, obs: Any) -> Any:
        return self.net(obs - obs.mean(0))


@rose.component(name="policy")
class BatchNorm(Base):
    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.norm = nn.BatchNorm1d(3).to(device).train()

    @rose.node(updates="weights", rows=True)
    def act(self, obs: Any) -> Any:
        with torch.no_grad():
            return self.norm(self.net(obs))


@rose.component(name="policy")
class WritesInput(Base):
    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        obs.clamp_(-1, 1)
        return self.net(obs)


@rose.component(name="sim")
class ReusesBuffer:
    def __init__(self, device: str) -> None:
        self.obs_buf = torch.zeros(ROWS, 3, device=device)

    @rose.node(refreshes="episode")
    def reset(self, epoch: int) -> Any:
        self.obs_buf.fill_(float(epoch))
        return self.obs_buf.clone()

    @rose.node(updates="episode")
    def step(self, obs: Any) -> Any:
        self.obs_buf.add_(obs.tanh() + 0.5)
        return self.obs_buf


@rose.component(name="sim")
class InheritsState:
    def __init__(self, device: str) -> None:
        self.state = torch.zeros(ROWS, 3, device=device)

    @rose.node(refreshes="episode")
    def reset(self, epoch: int) -> Any:
        self.state = 0.1 * self.state + epoch
        return self.state.clone()

    @rose.node(updates="episode")
    def step(self, obs: Any) -> Any:
        self.state = torch.tanh(self.state + obs)
        return self.state.clone()


@rose.component(name="policy")
class ActsByView:
    """Scales with a part of a buffer that is not its own."""

    def __init__(self, part: torch.Tensor) -> None:
        self.part = part

    @rose.node(reads="scale")
    def act(self, obs: Any) -> Any:
        return obs * self.part[-1]


@rose.component(name="trainer")
class LearnsByView:
    def __init__(self, part: torch.Tensor) -> None:
        self.part = part

    @rose.node(updates="weights")
    def learn(self, epoch: Any) -> Any:
        self.part.add_(epoch[1].mean() * 0.01)
        return self.part.sum()


def overlapping(device: str) -> Build:
    """Bytes 16..24 of one storage belong to both views."""

    def build() -> Callable[[], Any]:
        whole = torch.full((8,), 0.5, device=device)
        return learning(ActsByView(whole[:6]), LearnsByView(whole[4:]), device)

    return build


class Scaled(torch.autograd.Function):
    """Reads its second argument on the way back only."""

    @staticmethod
    def forward(ctx: Any, value: Any, scale: Any) -> Any:
        ctx.scale = scale
        return value * 2.0

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.scale, None


@rose.component(name="policy")
class ReadsInBackward(Base):
    """Autograd runs the way back on a device in a thread of its own."""

    @rose.node(pure=True)
    def act(self, obs: Any) -> Any:
        value = obs.clone().requires_grad_()
        scaled: Any = Scaled
        out = scaled.apply(value, self.net.bias)
        out.sum().backward()
        return value.grad

    @rose.node(updates="weights")
    def learn(self, epoch: Any) -> Any:
        self.net.bias.add_(epoch[1].mean() * 0.01)
        return self.net.bias.sum()


def reads_in_backward(device: str) -> Build:
    def build() -> Callable[[], Any]:
        policy = ReadsInBackward(device)
        return learning(policy, policy, device)

    return build


def cases(device: str) -> list[Case]:
    """All of them, on a device."""
    generator = "torch" if device == "cpu" else "cuda"
    weight, bias = "policy.net.weight", "policy.net.bias"
    return [
        Case("weights", acting(WritesWeights, device), "undeclared write", ACT, weight),
        Case("data", acting(WritesData, device), "undeclared write", ACT, bias),
        Case("optimizer", acting(StepsOptimizer, device), "undeclared write", ACT, weight),
        Case(
            "default generator",
            acting(DrawsDefault, device),
            "undeclared generator",
            ACT,
            f"generator.{generator}",
        ),
        Case("own generator", acting(DrawsOwn, device), "undeclared write", ACT, "policy.noise"),
        Case("batch mean", acting(BatchMean, device), "rows interfere", ACT, "rows"),
        Case("batch norm", acting(BatchNorm, device), "rows interfere", ACT, "rows"),
        Case("input", acting(WritesInput, device), "input written", ACT, "argument obs", True),
        Case(
            "buffer",
            stepping(ReusesBuffer, device),
            "output overwritten",
            STEP,
            "sim.obs_buf",
            True,
        ),
        Case("inherits", stepping(InheritsState, device), "refresh inherits", RESET, "sim.episode"),
        Case("views", overlapping(device), "shared state", LEARN, "trainer.part"),
        Case("backward", reads_in_backward(device), "undeclared read", ACT, bias),
    ]


@rose.component(name="policy")
class Right(Base):
    """Every kind of state, each declared."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.net.requires_grad_(True)
        self.optimizer: Any = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.noise = torch.Generator(device).manual_seed(3)
        self.memory = torch.zeros(ROWS, 3, device=device)

    @rose.node(refreshes="memory")
    def reset(self, epoch: int) -> Any:
        self.memory.fill_(float(epoch))
        return self.memory.clone()

    @rose.node(reads="weights", updates="memory", rows=True)
    def act(self, obs: Any) -> Any:
        self.memory.add_(0.5)
        with torch.no_grad():
            return self.net(obs + self.memory)

    @rose.node(updates=("weights", "generator.torch", "generator.cuda"))
    def learn(self, epoch: Any) -> Any:
        target = torch.randn(3, device=self.device, generator=self.noise)
        loss = (self.net(epoch[1]) - target - torch.rand(3, device=self.device)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def right(device: str) -> Build:
    """Builds a program that does what it declares."""

    def build() -> Callable[[], Any]:
        policy = Right(device)

        def step(obs: Any, t: int) -> Any:
            out = policy.act(obs)
            return out, out

        return rollout_of(step, policy.reset, policy.learn)

    return build
