"""The policy: a backbone phase, then an iterative action head; both only read the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

import rose_trace as rose
from examples.demo.network import ActorCritic, Sizes
from rose_trace.rng import RowGenerator


class Decision(NamedTuple):
    """What the policy decided for every row, and what learning needs to judge it.

    Attributes:
        chunk: Actions to carry out. Shape: [rows, chunk, action].
        logprob: Log-density of the chunk. Shape: [rows].
        value: Expected return from here. Shape: [rows].
        features: What the backbone saw. Shape: [rows, chunk, width].
        draft: The chunk before the last, random pass of the head. Shape: [rows, chunk, action].
    """

    chunk: Tensor
    logprob: Tensor
    value: Tensor
    features: Tensor
    draft: Tensor


@rose.component
class Policy:
    """Decides chunks of actions.

    Args:
        sizes: Shape of the networks.
        seed: Seed of the first weights and of the action noise.
        rows: Rows of the whole batch.
        device: Where the networks are; simulators are on the CPU.
    """

    def __init__(self, sizes: Sizes, seed: int, rows: int, device: str = "cpu") -> None:
        self.sizes = sizes
        self.device = device
        self.net = ActorCritic(sizes, seed).requires_grad_(False).to(device)
        self.noise = RowGenerator(seed, rows)

    @rose.node(reads="weights", rows=True)
    def encode(self, seen: Tensor) -> Tensor:
        """First phase: the backbone over recent observations [rows, 1 or chunk, observation]."""
        return self.net.backbone(seen.to(self.device))

    @rose.node(reads="weights", rows=True)
    def denoise(self, features: Tensor, draw: int) -> Decision:
        """Second phase: refine a chunk of actions pass by pass; the last pass is random.

        The noise of a row follows from the seed, the row and the draw, however rows are grouped.

        Args:
            features: Output of `encode`. Shape: [rows, chunk, width].
            draw: Number of the interaction step since the start of training.
        """
        head = self.net.head
        context = head.context(features)
        draft = head.draft(context)
        mean = head.mean(draft, context)
        noise = torch.as_tensor(self.noise.normal(draw, mean.shape[1:])).to(self.device)
        chunk = mean + head.log_std.exp() * noise
        return Decision(
            chunk, head.logprob(chunk, mean), self.net.critic(features), features, draft
        )

    @rose.node(rows=True)
    def act(self, seen: Tensor, draw: int) -> Decision:
        """Both phases: only glue around the two."""
        return self.denoise(self.encode(seen), draw)

    @rose.node(reads="weights", rows=True)
    def value(self, seen: Tensor) -> Tensor:
        """Expected return from observations alone. Shape: [rows, chunk, observation] to [rows]."""
        return self.net.critic(self.net.backbone(seen.to(self.device)))

    @rose.node(refreshes="weights")
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the trained weights."""
        self.net.load_state_dict(dict(weights), strict=True)
