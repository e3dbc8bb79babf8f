"""The trainer: PPO on one finished rollout epoch at a time, with weights of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

import rose_trace as rose
from examples.demo.network import ActorCritic, Sizes
from examples.demo.policy import Decision


class Transition(NamedTuple):
    """One interaction step of every environment.

    Attributes:
        decision: What the policy decided.
        reward: Reward of the whole chunk. Shape: [rows].
        done: Whether the episode ended by it. Shape: [rows].
    """

    decision: Decision
    reward: Tensor
    done: Tensor


@dataclass(frozen=True, slots=True)
class PPO:
    """Settings of the algorithm.

    Attributes:
        discount: Weight of the next step's return [fraction].
        trace_decay: Lambda of the generalised advantage estimate [fraction].
        clip: Largest change of an action's probability that still earns credit [fraction].
        passes: Times each epoch is gone through.
        minibatch: Transitions per gradient step.
        learning_rate: Of Adam.
        value_weight: Weight of the critic's loss.
        reward_scale: Factor on rewards, so that values are about unit size.
    """

    discount: float = 0.9
    trace_decay: float = 0.9
    clip: float = 0.2
    passes: int = 2
    minibatch: int = 320
    learning_rate: float = 2e-3
    value_weight: float = 0.5
    reward_scale: float = 0.1


def advantages(ppo: PPO, reward: Tensor, value: Tensor, bootstrap: Tensor) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimate of one epoch, which a time limit ends.

    Args:
        ppo: Settings.
        reward: Scaled rewards. Shape: [steps, rows].
        value: Values of the states that were acted in. Shape: [steps, rows].
        bootstrap: Value of the state after the last step. Shape: [rows].

    Returns:
        Advantages and returns. Shape: [steps, rows] each.
    """
    following = torch.cat([value[1:], bootstrap[None]])
    surprise = reward + ppo.discount * following - value
    advantage = torch.empty_like(surprise)
    running = torch.zeros_like(bootstrap)
    for t in reversed(range(len(surprise))):
        running = surprise[t] + ppo.discount * ppo.trace_decay * running
        advantage[t] = running
    return advantage, advantage + value


@rose.component
class Trainer:
    """Learns from one epoch at a time.

    It has weights of its own: the policy keeps acting with the old ones until it loads the new, so
    learning from a finished epoch changes nothing for the epochs that still roll out.

    Args:
        sizes: Shape of the networks.
        seed: Seed of the first weights (as the policy's) and of the shuffles.
        ppo: Settings of the algorithm.
        device: Where it learns.
    """

    def __init__(self, sizes: Sizes, seed: int, ppo: PPO, device: str = "cpu") -> None:
        self.ppo = ppo
        self.seed = seed
        self.updates = 0
        self.device = device
        self.net = ActorCritic(sizes, seed).to(device)
        self.trained = [p for p in self.net.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.trained, lr=ppo.learning_rate, eps=1e-5)

    @rose.node(updates="weights")
    def update(self, epoch: tuple[Sequence[Transition], Tensor]) -> dict[str, float]:
        """All passes over one epoch; advantages are normalised and samples shuffled within it.

        Args:
            epoch: The epoch's transitions in order, and the value of what was seen last [rows].

        Returns:
            Mean loss, and mean return of the epoch's episodes in the task's own units.
        """
        steps, bootstrap = epoch
        reward = torch.stack([step.reward for step in steps]).to(self.device)
        decisions = [step.decision for step in steps]
        value = torch.stack([decision.value for decision in decisions])
        advantage, target = advantages(self.ppo, reward * self.ppo.reward_scale, value, bootstrap)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        features, draft, chunk, logprob = (
            torch.cat([getattr(decision, field) for decision in decisions])
            for field in ("features", "draft", "chunk", "logprob")
        )
        shuffle = torch.Generator().manual_seed(self.seed * 1_000_003 + self.updates)
        losses: list[float] = []
        for _ in range(self.ppo.passes):
            order = torch.randperm(len(chunk), generator=shuffle).to(self.device)
            for start in range(0, len(order), self.ppo.minibatch):
                batch = order[start : start + self.ppo.minibatch]
                losses.append(
                    self._descend(
                        features[batch],
                        draft[batch],
                        chunk[batch],
                        logprob[batch],
                        advantage.flatten()[batch],
                        target.flatten()[batch],
                    )
                )
        self.updates += 1
        return {"loss": sum(losses) / len(losses), "return": float(reward.sum(0).mean())}

    @rose.node(reads="weights")
    def weights(self) -> dict[str, Tensor]:
        """A copy of the weights, safe from later updates."""
        return {name: value.detach().clone() for name, value in self.net.state_dict().items()}

    def _descend(
        self,
        features: Tensor,
        draft: Tensor,
        chunk: Tensor,
        logprob: Tensor,
        advantage: Tensor,
        target: Tensor,
    ) -> float:
        head = self.net.head
        mean = head.mean(draft, head.context(features))
        ratio = (head.logprob(chunk, mean) - logprob).exp()
        clipped = ratio.clamp(1 - self.ppo.clip, 1 + self.ppo.clip)
        gain = torch.minimum(ratio * advantage, clipped * advantage).mean()
        miss = (self.net.critic(features) - target).square().mean()
        loss = self.ppo.value_weight * miss - gain
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        return float(loss.detach())
