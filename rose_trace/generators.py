"""State of the process-wide random generators: they are states that a node touches without saying so."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

from rose_trace.late_import import after_import


@dataclass(frozen=True, slots=True)
class State:
    """Generator states of a process; torch's is absent where torch is not loaded."""

    python: Any
    numpy: Any
    torch: Any


def capture() -> State:
    """States of this process's generators."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return State(
        random.getstate(),
        None if numpy is None else numpy.random.get_state(),
        None if torch is None else torch.get_rng_state().numpy(),
    )


def restore(state: State) -> None:
    """Put this process's generators into `state`; torch's as soon as torch is loaded."""
    random.setstate(state.python)
    if state.numpy is not None:
        import numpy

        numpy.random.set_state(state.numpy)
    if state.torch is not None:
        after_import("torch", lambda: _restore_torch(state.torch))


def _restore_torch(state: Any) -> None:
    import torch

    torch.set_rng_state(torch.from_numpy(state.copy()))  # pyright: ignore[reportUnknownMemberType]


def changed(before: State, after: State) -> tuple[str, ...]:
    """Names of the generators that were drawn from between two captures."""
    names: list[str] = []
    if before.python != after.python:
        names.append("random")
    for name in ("numpy", "torch"):
        a, b = getattr(before, name), getattr(after, name)
        if a is not None and b is not None and repr(_bits(a)) != repr(_bits(b)):
            names.append(name)
    return tuple(names)


def _bits(state: Any) -> Any:
    if isinstance(state, tuple):
        return tuple(_bits(item) for item in state)  # pyright: ignore[reportUnknownVariableType]
    return state.tobytes() if hasattr(state, "tobytes") else state
