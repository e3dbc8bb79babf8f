"""State of the process-wide random generators: they are states that a node touches without saying so."""

from __future__ import annotations

import random
import struct
import sys
from dataclasses import dataclass
from typing import Any

from rose_trace.late_import import after_import


@dataclass(frozen=True, slots=True)
class State:
    """Generator states of a process; torch's are absent where torch is not loaded.

    Attributes:
        python: That of `random`.
        numpy: That of `numpy.random`.
        torch: That of torch on the CPU.
        cuda: Those of torch on each CUDA device; ``None`` where there is none.
    """

    python: Any
    numpy: Any
    torch: Any
    cuda: tuple[Any, ...] | None = None


def capture() -> State:
    """States of this process's generators."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return State(
        random.getstate(),
        None if numpy is None else numpy.random.get_state(),
        None if torch is None else torch.get_rng_state().numpy(),
        None if torch is None else _cuda(),
    )


def restore(state: State) -> None:
    """Put this process's generators into `state`; torch's as soon as torch is loaded."""
    random.setstate(state.python)
    if state.numpy is not None:
        import numpy

        numpy.random.set_state(state.numpy)
    if state.torch is not None:
        after_import("torch", lambda: _restore_torch(state))


def _restore_torch(state: State) -> None:
    import torch

    torch.set_rng_state(torch.from_numpy(state.torch.copy()))  # pyright: ignore[reportUnknownMemberType]
    if state.cuda:
        _restore_cuda(state.cuda)


def _cuda() -> tuple[Any, ...] | None:
    """States of the CUDA generators; where CUDA is not in use yet, those that they will have."""
    import numpy
    import torch

    count = torch.cuda.device_count()
    if not count:
        return None
    if torch.cuda.is_initialized():
        made: Any = torch.cuda.default_generators
        return tuple(made[k].get_state().numpy() for k in range(count))
    cuda: Any = torch.cuda
    latest = [call for call in cuda._lazy_seed_tracker.get_calls() if call]  # noqa: SLF001
    if latest and hasattr(latest[-1][0], "states"):
        return latest[-1][0].states
    seeded = struct.pack("<Qq", torch.initial_seed() % 2**64, 0)  # a seed, and nothing drawn
    return (numpy.frombuffer(seeded, numpy.uint8),) * count


def _restore_cuda(states: tuple[Any, ...]) -> None:
    """Put the CUDA generators into `states`: now, or when CUDA comes into use.

    As a seeding: whatever was queued before counts no more, and what is seeded later replaces it.
    """
    import torch

    def restore() -> None:
        made: Any = torch.cuda.default_generators
        for generator, state in zip(made, states, strict=False):
            generator.set_state(torch.from_numpy(state.copy()))  # pyright: ignore[reportUnknownMemberType]

    restore.states = states  # pyright: ignore[reportFunctionMemberAccess]
    cuda: Any = torch.cuda
    cuda._lazy_call(restore, seed_all=True)  # noqa: SLF001


def changed(before: State, after: State) -> tuple[str, ...]:
    """Names of the generators that were drawn from between two captures."""
    names: list[str] = []
    if before.python != after.python:
        names.append("random")
    for name in ("numpy", "torch", "cuda"):
        a, b = getattr(before, name), getattr(after, name)
        if a is not None and b is not None and repr(_bits(a)) != repr(_bits(b)):
            names.append(name)
    return tuple(names)


def _bits(state: Any) -> Any:
    if isinstance(state, tuple):
        return tuple(_bits(item) for item in state)  # pyright: ignore[reportUnknownVariableType]
    return state.tobytes() if hasattr(state, "tobytes") else state
