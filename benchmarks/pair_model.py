"""A backbone and its denoising head in the shapes of pi0.5, with pseudo-random weights.

The backbone V reads images and text once per step and hands keys and values to the head D, which denoises
actions in ten steps. D asks the device for its time in every step, as openpi's loop does, so a program that
runs V and D one after the other waits for V before it submits D.

Weights are a hash of their positions: generators of CUDA devices draw other numbers when a process is
limited to fewer SMs, and outputs could then not be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

_MASK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class PairSize:
    """Shapes of V and D.

    Attributes:
        layers: Layers of each.
        backbone_width: Width of V.
        backbone_mlp: Inner width of its feed-forward layers.
        head_width: Width of D.
        head_mlp: Inner width of its feed-forward layers.
        heads: Query heads; there is one head of keys and values.
        head_dim: Width of a head.
        tokens: Tokens that V reads.
        batch: Environments.
        horizon: Actions that D denoises.
        action_dim: Numbers per action.
        steps: Denoising steps.
    """

    layers: int = 18
    backbone_width: int = 2048
    backbone_mlp: int = 16384
    head_width: int = 1024
    head_mlp: int = 4096
    heads: int = 8
    head_dim: int = 256
    tokens: int = 968
    batch: int = 16
    horizon: int = 50
    action_dim: int = 32
    steps: int = 10


TINY = PairSize(2, 32, 64, 16, 32, 2, 8, 12, 2, 4, 4, 3)
"""For a run of the machinery on a CPU."""


def hashed(shape: tuple[int, ...], seed: int, scale: float, device: str) -> torch.Tensor:
    """Uniform numbers in -scale..scale that depend on nothing but `seed` and position.

    Args:
        shape: Shape of the result.
        seed: Which numbers.
        scale: Largest magnitude.
        device: Where.

    Returns:
        Tensor of bfloat16. Shape: `shape`.
    """
    x = torch.arange(math.prod(shape), device=device, dtype=torch.int64)
    x.add_(seed * 0x9E37_79B9).bitwise_and_(_MASK)
    for shift, factor in ((16, 0x85EB_CA6B), (13, 0xC2B2_AE35)):
        x.bitwise_xor_(x >> shift).mul_(factor).bitwise_and_(_MASK)
    x.bitwise_xor_(x >> 16)
    return x.float().div_(2.0**31).sub_(1.0).mul_(scale).bfloat16().view(shape)


def _linear(outputs: int, inputs: int, seed: int, device: str) -> torch.Tensor:
    return hashed((outputs, inputs), seed, math.sqrt(3.0 / inputs), device)


def _rotations(size: PairSize, begin: int, count: int, device: str) -> tuple[Any, Any]:
    """Cosines and sines of positions. Shape of each: (count, head_dim / 2)."""
    half = size.head_dim // 2
    frequency = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(begin, begin + count, dtype=torch.float64)[:, None] * frequency
    return angle.cos().bfloat16().to(device), angle.sin().bfloat16().to(device)


def _rotate(x: torch.Tensor, rotations: tuple[Any, Any]) -> torch.Tensor:
    cos, sin = rotations
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class _Attention:
    """Projections of one layer: many query heads, one head of keys and values."""

    def __init__(self, size: PairSize, width: int, seed: int, device: str) -> None:
        inner = size.heads * size.head_dim
        self.heads = size.heads
        self.query = _linear(inner, width, seed, device)
        self.key = _linear(size.head_dim, width, seed + 1, device)
        self.value = _linear(size.head_dim, width, seed + 2, device)
        self.out = _linear(width, inner, seed + 3, device)

    def project(self, x: torch.Tensor, rotations: tuple[Any, Any]) -> tuple[Any, Any, Any]:
        """Queries (batch, heads, tokens, head_dim); keys and values (batch, 1, tokens, head_dim)."""
        flat = functional.linear(x, self.query)
        query = flat.view(*flat.shape[:2], self.heads, -1).transpose(1, 2)
        key = functional.linear(x, self.key).unsqueeze(1)
        value = functional.linear(x, self.value).unsqueeze(1)
        return _rotate(query, rotations), _rotate(key, rotations), value

    def attend(self, query: Any, key: Any, value: Any) -> torch.Tensor:
        """Attention over all keys. Shape: (batch, tokens, width)."""
        seen = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        return functional.linear(seen.transpose(1, 2).flatten(2), self.out)


class _Mlp:
    """Gated feed-forward layer."""

    def __init__(self, width: int, inner: int, seed: int, device: str) -> None:
        self.gate = _linear(inner, width, seed, device)
        self.up = _linear(inner, width, seed + 1, device)
        self.down = _linear(width, inner, seed + 2, device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate = functional.gelu(functional.linear(x, self.gate), approximate="tanh")
        return functional.linear(gate * functional.linear(x, self.up), self.down)


class Backbone:
    """V: one pass over all tokens; big kernels that fill the device.

    Args:
        size: Shapes.
        device: Where.
    """

    def __init__(self, size: PairSize, device: str) -> None:
        width = size.backbone_width
        self.tokens = hashed((size.batch, size.tokens, width), 1, 1.7, device)
        self.norm = torch.ones(width, device=device, dtype=torch.bfloat16)
        self.rotations = _rotations(size, 0, size.tokens, device)
        self.layers = [
            (
                _Attention(size, width, 1000 + 10 * k, device),
                _Mlp(width, size.backbone_mlp, 1005 + 10 * k, device),
            )
            for k in range(size.layers)
        ]

    @torch.inference_mode()
    def __call__(self, tokens: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Last hidden state, then keys and values of every layer.

        Args:
            tokens: What it reads; its own by default. Shape: (batch, tokens, width).
        """
        x = self.tokens if tokens is None else tokens
        handed: list[torch.Tensor] = []
        for attention, mlp in self.layers:
            query, key, value = attention.project(self._normed(x), self.rotations)
            x = x + attention.attend(query, key, value)
            x = x + mlp(self._normed(x))
            handed += [key, value]
        return [x, *handed]

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.norm)


class Head:
    """D: ten denoising steps over few tokens; thousands of small kernels.

    Args:
        size: Shapes.
        device: Where.
    """

    def __init__(self, size: PairSize, device: str) -> None:
        width = size.head_width
        self.size = size
        self.device = device
        self.noise = hashed((size.batch, size.horizon, size.action_dim), 2, 1.7, device)
        prefix = (size.batch, 1, size.tokens, size.head_dim)
        self.prefix = [
            (hashed(prefix, 5000 + k, 1.7, device), hashed(prefix, 6000 + k, 1.7, device))
            for k in range(size.layers)
        ]
        self.rotations = _rotations(size, size.tokens, size.horizon, device)
        self.inputs = _linear(width, size.action_dim, 3, device)
        self.outputs = _linear(size.action_dim, width, 4, device)
        self.time = [_linear(width, width, 5 + k, device) for k in range(2)]
        self.frequency = torch.linspace(0, math.log(1000.0), width // 2).exp().to(device)
        self.layers = [
            (
                _Attention(size, width, 2000 + 20 * k, device),
                _Mlp(width, size.head_mlp, 2005 + 20 * k, device),
                [_linear(3 * width, width, 2010 + 20 * k + half, device) for half in range(2)],
            )
            for k in range(size.layers)
        ]

    @torch.inference_mode()
    def __call__(self) -> list[torch.Tensor]:
        """Actions. Shape: one tensor (batch, horizon, action_dim)."""
        step = -1.0 / self.size.steps
        x = self.noise
        time = torch.tensor(1.0, device=self.device)
        while time >= -step / 2:  # asks the device, as openpi does
            x = x + step * self._velocity(x, time, self.prefix)
            time = time + step
        return [x]

    @torch.inference_mode()
    def denoised(self, noise: torch.Tensor, handed: list[torch.Tensor]) -> torch.Tensor:
        """Actions from what the backbone hands over; the host knows the steps and asks for nothing.

        Args:
            noise: Shape: (batch, horizon, action_dim).
            handed: Keys and values of every layer, as `Backbone` gives them after its hidden state.
        """
        prefix = list(zip(handed[::2], handed[1::2], strict=True))
        x, count = noise, self.size.steps
        for k in range(count):
            time = torch.full((), 1.0 - k / count, device=self.device)
            x = x - self._velocity(x, time, prefix) / count
        return x

    def _velocity(
        self,
        actions: torch.Tensor,
        time: torch.Tensor,
        prefix: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        angle = time * self.frequency
        condition = torch.cat((angle.sin(), angle.cos())).bfloat16().expand(len(actions), -1)
        for weight in self.time:
            condition = functional.silu(functional.linear(condition, weight))
        x = functional.linear(actions, self.inputs)
        for (attention, mlp, modulation), (keys, values) in zip(self.layers, prefix, strict=True):
            normed, gate = self._modulated(x, condition, modulation[0])
            query, key, value = attention.project(normed, self.rotations)
            key, value = torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)
            x = x + gate * attention.attend(query, key, value)
            normed, gate = self._modulated(x, condition, modulation[1])
            x = x + gate * mlp(normed)
        return functional.linear(x, self.outputs)

    @staticmethod
    def _modulated(x: Any, condition: Any, weight: Any) -> tuple[Any, Any]:
        """Adaptive norm in float32, and the gate of the residual."""
        scale, shift, gate = functional.linear(condition, weight)[:, None].chunk(3, dim=-1)
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (normed * (1.0 + scale.float()) + shift.float()).to(x.dtype), gate
