"""Two runs side by side: what each took, and whether both did the same, bit for bit."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from torch import Tensor

from examples.demo.program import Program
from rose_trace import pytree


def digest(value: Any) -> str:
    """SHA-256 over structure, shapes, element types and every bit of the tensors of a value.

    Args:
        value: Nested tuples, lists, dicts and records of tensors and plain data.

    Returns:
        64 hexadecimal digits.

    >>> import torch
    >>> digest({"x": torch.zeros(2)}) == digest({"x": torch.zeros(2)})
    True
    >>> digest({"x": torch.zeros(2)}) == digest({"x": -torch.zeros(2)})
    False
    """
    leaves, structure = pytree.flatten(value)
    total = hashlib.sha256(structure.to_json().encode())
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            total.update(leaf.detach().cpu().contiguous().numpy().tobytes())
        else:
            total.update(repr(leaf).encode())
    return total.hexdigest()


@dataclass(slots=True)
class Run:
    """One of the two sides of a comparison.

    Attributes:
        name: What to call it.
        program: Its own program, built from the configuration that both share.
        active: Opens the context in which its iterations run.
        durations_ns: Duration of each iteration [ns].
        returns: Mean episode return of each iteration, in the task's own units.
        trajectories: Digest of everything that the iterations' rollouts gave, in order.
        weights: Digest of the weights after the last iteration.
    """

    name: str
    program: Program
    active: Callable[[], AbstractContextManager[object]]
    durations_ns: list[int] = field(default_factory=list[int])
    returns: list[float] = field(default_factory=list[float])
    trajectories: list[str] = field(default_factory=list[str])
    weights: str = ""

    def advance(self) -> None:
        """Run the next iteration: time it, then take its digests off the clock."""
        index = len(self.durations_ns)
        with self.active():
            start = time.perf_counter_ns()
            outcome = self.program.iteration(index)
            self.durations_ns.append(time.perf_counter_ns() - start)
            self.returns.append(fmean(epoch["return"] for epoch in outcome.learning))
            self.trajectories.append(digest(outcome.epochs))
            self.weights = digest(outcome.weights)

    def steps_per_s(self, warm_up: int) -> float:
        """Median throughput after the first `warm_up` iterations [environment steps / s]."""
        return self.program.config.env_steps / (median(self.durations_ns[warm_up:]) * 1e-9)


def alternate(first: Run, second: Run, iterations: int, warm_up: int = 1) -> None:
    """Run both sides in turn, so that whatever else the machine does falls on both.

    Args:
        first: One side.
        second: The other.
        iterations: Measured iterations of each.
        warm_up: Iterations of each before those.
    """
    for index in range(warm_up + iterations):
        for run in (first, second) if index % 2 == 0 else (second, first):
            run.advance()
