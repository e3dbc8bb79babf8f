"""Functions that workers run, and how a test asks for them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator
from typing import Any

import torch

from rose_exec.memory.here import here
from rose_exec.wire import Object, Wire, decode
from rose_exec.workers.inline import InlineWorker
from rose_exec.workers.job import Answer, Job
from rose_exec.workers.process import ProcessWorker
from rose_trace import pytree
from rose_trace.frames import Frame
from rose_trace.legality import AccessSet


@contextlib.contextmanager
def workers(count: int) -> Generator[list[ProcessWorker]]:
    """Process workers, closed at the end."""
    made = [ProcessWorker(f"worker-{k}", frozenset()) for k in range(count)]
    try:
        yield made
    finally:
        for worker in made:
            worker.close()


def job(function: Callable[..., Any], *args: Any) -> Job:
    """A call of a function; arguments are leaves, or what stands for them."""
    structure = pytree.flatten(((0,) * len(args), {}))[1]
    wires = [leaf if isinstance(leaf, Wire) else Object(leaf) for leaf in args]
    everything = AccessSet(opaque=True)
    return Job("f", "", "", structure, tuple(wires), Frame(), everything, function=function)


def ask(worker: ProcessWorker | InlineWorker, function: Callable[..., Any], *args: Any) -> Answer:
    """Run a function in a worker."""
    return worker.run(job(function, *args)).result(600)


def plain(answer: Answer) -> Any:
    """The result as a plain value of this process."""
    leaves = [decode(leaf) for leaf in answer.leaves]
    here().fence()
    here().settle()
    return pytree.unflatten(answer.structure, iter(leaves))


def loaded(names: set[str]) -> set[str]:
    """Which of these modules the process has imported."""
    return names & sys.modules.keys()


def ramp(count: int, device: str = "cpu") -> torch.Tensor:
    """0, 1, 2, ..."""
    return torch.arange(float(count), device=device)


def ramps(count: int, repeats: int, device: str = "cpu") -> list[torch.Tensor]:
    """Several of them."""
    return [ramp(count, device) + k for k in range(repeats)]


def total(*values: torch.Tensor) -> float:
    """The sum of everything."""
    return sum(float(value.double().sum()) for value in values)


def negated(value: torch.Tensor) -> torch.Tensor:
    """The argument itself, after it was written to."""
    return value.neg_()


def described(value: torch.Tensor) -> tuple[str, tuple[int, ...], bool]:
    """What kind of tensor arrived."""
    return f"{value.dtype} {value.device}", value.stride(), value.requires_grad


def used_bytes() -> int:
    """What this process still shares."""
    return here().outbox.used_bytes


def chunks() -> int:
    """How many pieces of memory this process shares."""
    return len(here().outbox._memory)


def opened() -> int:
    """How many pieces of memory of others this process has open."""
    return len(here().inbox._open)


def killed(*values: Any) -> None:
    """End at once."""
    os.kill(os.getpid(), signal.SIGKILL)
