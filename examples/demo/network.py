"""The networks: a transformer backbone, an iterative action head that attends to it, and a critic."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shape of the policy.

    Attributes:
        observation: Numbers in one observation.
        action: Numbers in one action.
        chunk: Actions decided at once, and observations seen at once.
        instruction: Tokens that say what to do; the same for every row.
        width: Width of the backbone.
        blocks: Transformer blocks of the backbone.
        head_width: Width of the action head.
        denoising_steps: Passes of the action head over one chunk.
    """

    observation: int
    action: int
    chunk: int
    instruction: int = 4
    width: int = 128
    blocks: int = 2
    head_width: int = 64
    denoising_steps: int = 4


class Block(nn.Module):
    """A pre-norm transformer block; with a context it attends to that as well as to itself."""

    def __init__(self, width: int, heads: int = 4, expansion: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, expansion * width),
            nn.GELU(),
            nn.Linear(expansion * width, width),
        )

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Shape: [rows, tokens, width] to the same; the context is [rows, any, width]."""
        y = self.norm(x)
        source = y if context is None else torch.cat([context, y], dim=1)
        q = self.query(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.key_value(source).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(SDPBackend.MATH) if x.is_cuda else contextlib.nullcontext():
            attended = F.scaled_dot_product_attention(q, k, v)  # the same bits every time
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(x)


class Backbone(nn.Module):
    """Instruction tokens and one token per recent observation, then transformer blocks.

    It stays frozen, as when a vision-language-action model is fine-tuned through its action head.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Linear(sizes.observation, sizes.width)
        self.position = nn.Parameter(torch.randn(sizes.chunk, sizes.width) * 0.1)
        self.instruction = nn.Parameter(torch.randn(sizes.instruction, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes.width) for _ in range(sizes.blocks))
        self.requires_grad_(False)

    def forward(self, seen: Tensor) -> Tensor:
        """Shape: [rows, 1 or chunk, observation] to [rows, chunk, width]."""
        observed = self.embed(seen) + self.position
        told = self.instruction.expand(len(seen), -1, -1)
        x = torch.cat([told, observed], dim=1)
        for block in self.blocks:
            x = block(x)
        return x[:, -observed.shape[1] :]


class ActionHead(nn.Module):
    """Refines a plan of actions pass by pass, as a flow-matching head does.

    Every pass predicts the finished plan and moves a share of the remaining way towards it, the last
    pass all of it.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.context = nn.Linear(sizes.width, sizes.head_width)
        self.embed = nn.Linear(sizes.action, sizes.head_width)
        self.position = nn.Parameter(torch.randn(sizes.chunk, sizes.head_width) * 0.1)
        self.pass_embedding = nn.Parameter(
            torch.randn(sizes.denoising_steps, sizes.head_width) * 0.1
        )
        self.block = Block(sizes.head_width, expansion=2)
        self.finished = nn.Linear(sizes.head_width, sizes.action)
        nn.init.normal_(self.finished.weight, std=0.01)
        nn.init.zeros_(self.finished.bias)
        self.log_std = nn.Parameter(torch.full((sizes.action,), -1.0))

    def forward(self, plan: Tensor, step: int, context: Tensor) -> Tensor:
        """One pass. Shape: plan [rows, chunk, action], context [rows, tokens, head_width]."""
        x = self.embed(plan) + self.position + self.pass_embedding[step]
        finished = self.finished(self.block(x, context))
        return plan + (finished - plan) / (self.sizes.denoising_steps - step)

    def draft(self, context: Tensor) -> Tensor:
        """All passes but the last, from an empty plan."""
        plan = context.new_zeros(context.shape[0], self.sizes.chunk, self.sizes.action)
        for step in range(self.sizes.denoising_steps - 1):
            plan = self(plan, step, context)
        return plan

    def mean(self, draft: Tensor, context: Tensor) -> Tensor:
        """The last pass: mean of the action distribution."""
        return self(draft, self.sizes.denoising_steps - 1, context)

    def logprob(self, chunk: Tensor, mean: Tensor) -> Tensor:
        """Log-density of a chunk, one number per row. Shape: [rows, chunk, action] to [rows]."""
        normalised = (chunk - mean) / self.log_std.exp()
        return (-0.5 * normalised.square() - self.log_std - 0.9189385332046727).flatten(1).sum(1)


class Critic(nn.Module):
    """Value of the newest observation's token."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(sizes.width, 128), nn.Tanh(), nn.Linear(128, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Shape: [rows, tokens, width] to [rows]."""
        return self.net(features[:, -1]).squeeze(-1)


class ActorCritic(nn.Module):
    """Everything a policy has; policy and trainer each hold one, alike for the same seed."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
            torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
            self.backbone = Backbone(sizes)
            self.head = ActionHead(sizes)
            self.critic = Critic(sizes)
