"""Which of the steps that the rules allow comes next, in a session that runs one thing at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from rose_exec.readiness import Position, TaskId

MAX_DELAY = 12  # ours: decisions that a started task may be left alone


@dataclass(frozen=True, slots=True)
class Step:
    """Something that may happen next.

    Attributes:
        position: Place of the task in the native program order.
        task: The task.
        starts: Whether the task would start; otherwise it has started, and would run.
        path: Its node.
    """

    position: Position
    task: TaskId
    starts: bool
    path: str


Policy = Callable[[Sequence[Step]], Step]
"""Picks one of the steps, which are in program order."""


def in_program_order(steps: Sequence[Step]) -> Step:
    """The policy of a careful session: nothing overtakes anything."""
    return min(steps, key=lambda step: (step.position, step.task, step.starts))


class RandomOrder:
    """A policy: any step that may happen, and now and then a long delay for one task.

    Args:
        seed: Seed of all choices.
    """

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        self._delayed: dict[TaskId, int] = {}
        self._seen: set[TaskId] = set()

    def __call__(self, steps: Sequence[Step]) -> Step:
        """One of the steps."""
        for step in steps:
            if step.task not in self._seen:
                self._seen.add(step.task)
                if self._draw.random() < 0.3:
                    self._delayed[step.task] = self._draw.randint(1, MAX_DELAY)
        free = [step for step in steps if self._delayed.get(step.task, 0) <= 0]
        for step in steps:
            if step.task in self._delayed:
                self._delayed[step.task] -= 1
        return self._draw.choice(free or list(steps))
