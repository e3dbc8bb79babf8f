"""The training program: components, loops and the iteration, decorated for Rose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

import rose_trace as rose
from examples.demo.network import Sizes
from examples.demo.policy import Policy
from examples.demo.simulator import TASKS, Simulator
from examples.demo.trainer import PPO, Trainer, Transition


@dataclass(frozen=True, slots=True)
class Config:
    """One training run.

    Attributes:
        task: Name of the MuJoCo task.
        seed: Everything random follows from it.
        num_envs: Environments, that is rows of the batch.
        chunk: Actions decided at once.
        epochs: Rollout epochs in one iteration; every epoch is one episode of every environment.
        steps: Interaction steps in one epoch, at most as many as an episode has.
        instruction: Instruction tokens of the policy.
        blocks: Transformer blocks of the policy's backbone.
        denoising_steps: Passes of the policy's action head.
        device: Where policy and trainer are; the physics is on the CPU.
        ppo: Settings of the algorithm.
    """

    task: str = "Pusher-v5"
    seed: int = 0
    num_envs: int = 64
    chunk: int = 10
    epochs: int = 3
    steps: int = 10
    instruction: int = 4
    blocks: int = 1
    denoising_steps: int = 4
    device: str = "cpu"
    ppo: PPO = field(default_factory=PPO)

    @classmethod
    def of(cls, task: str, seed: int) -> Config:
        """The balance that robot tasks have: physics is the larger part of an interaction step."""
        return cls(task, seed, steps=TASKS[task].horizon // 10)

    @classmethod
    def policy_heavy(cls, task: str = "Pusher-v5", seed: int = 0) -> Config:
        """The opposite balance: a larger policy, called more often, beside little physics."""
        return cls(task, seed, chunk=2, epochs=2, steps=4, instruction=64, blocks=8)

    @classmethod
    def on_device(cls, task: str, seed: int, device: str) -> Config:
        """A policy that a GPU is for, beside the same physics.

        Kernels of a GPU differ between a batch and its halves, so what keeps every bit there is whole
        epochs side by side, an even number of them.
        """
        small = cls.of(task, seed)
        return replace(
            small,
            device=device,
            epochs=4,
            instruction=64,
            blocks=12,
            denoising_steps=10,
        )

    @property
    def sizes(self) -> Sizes:
        """Shape of the policy."""
        task = TASKS[self.task]
        return Sizes(
            len(task.scale),
            task.actions,
            self.chunk,
            self.instruction,
            blocks=self.blocks,
            denoising_steps=self.denoising_steps,
        )

    @property
    def env_steps(self) -> int:
        """Actions carried out in one iteration, all environments together."""
        return self.epochs * self.steps * self.chunk * self.num_envs


class Outcome(NamedTuple):
    """What one RL iteration leaves behind.

    Attributes:
        epochs: Per rollout epoch, its transitions in order and the bootstrap value [rows].
        learning: Per rollout epoch, what `Trainer.update` reports.
        weights: The weights that the policy now acts with.
    """

    epochs: Sequence[tuple[Sequence[Transition], Tensor]]
    learning: Sequence[Mapping[str, float]]
    weights: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Program:
    """A built program.

    Attributes:
        config: What it was built from.
        policy: Decides.
        sim: Simulates.
        trainer: Learns.
        iteration: Runs one RL iteration, given its number counted from 0.
    """

    config: Config
    policy: Policy
    sim: Simulator
    trainer: Trainer
    iteration: Callable[[int], Outcome]


def build(config: Config) -> Program:
    """Build the components and the loops over them.

    Two programs built from the same configuration compute the same numbers.
    """
    policy = Policy(config.sizes, config.seed, config.num_envs, config.device)
    sim = Simulator(config.task, config.num_envs, config.seed)
    trainer = Trainer(config.sizes, config.seed, config.ppo, config.device)

    @rose.loop
    def interact(seen: Tensor, draw: int) -> tuple[Tensor, Transition]:
        decision = policy.act(seen, draw)
        seen, reward, done = sim.step(decision.chunk)
        return seen, Transition(decision, reward, done)

    @rose.loop
    def rollout(_: None, epoch: int) -> tuple[None, tuple[Sequence[Transition], Tensor]]:
        first = epoch * config.steps
        seen, steps = interact(sim.reset(epoch), over=range(first, first + config.steps))
        return None, (steps, policy.value(seen))  # the bootstrap value, before the next reset

    @rose.loop
    def learn(
        _: None, epoch: tuple[Sequence[Transition], Tensor]
    ) -> tuple[None, Mapping[str, float]]:
        return None, trainer.update(epoch)

    @rose.iteration
    def iteration(index: int) -> Outcome:
        first = index * config.epochs
        _, epochs = rollout(None, over=range(first, first + config.epochs))
        _, learning = learn(None, over=epochs)
        weights = trainer.weights()
        policy.load(weights)
        return Outcome(epochs, learning, weights)

    return Program(config, policy, sim, trainer, iteration)
