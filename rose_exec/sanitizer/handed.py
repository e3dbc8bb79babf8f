"""Results that share memory with what a component keeps, and who uses them after it was written over.

The program would see the new contents natively; the executor hands out copies, so it would see the old.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rose_exec.readiness import TaskId
from rose_exec.refs import Output, Rows, Slice, Value, describe, is_deferred
from rose_exec.sanitizer.account import memory_of
from rose_exec.sanitizer.memory import Regions
from rose_exec.sanitizer.order import Clocks
from rose_exec.sanitizer.touches import Touch
from rose_trace import pytree


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A result that was used after somebody wrote over it.

    Attributes:
        place: Path of the memory it shares.
        producer: Task that handed it out.
        index: Leaf of its result.
        writer: Who wrote over it.
        consumer: Task that used it then; ``None`` for the program itself.
    """

    place: str
    producer: TaskId
    index: int
    writer: Touch
    consumer: TaskId | None


@dataclass(slots=True)
class Handed:
    """Results of one iteration that are views of something kept."""

    _views: dict[tuple[TaskId, int], tuple[list[str], Any]] = field(
        default_factory=dict[tuple[TaskId, int], tuple[list[str], Any]]
    )
    _uses: list[tuple[TaskId, int, TaskId | None]] = field(
        default_factory=list[tuple[TaskId, int, TaskId | None]]
    )

    def out(self, task: TaskId, result: Any, regions: Regions) -> None:
        """A body has returned; what shares memory is kept, so that no address comes again."""
        for index, leaf in enumerate(pytree.flatten(result)[0]):
            span = memory_of(leaf)
            places = [] if span is None else regions.at(*span)
            if places:
                self._views[task, index] = places, leaf

    def used(self, consumer: TaskId | None, values: Iterator[Value]) -> None:
        """A task, or the program, is given values."""
        for value in values:
            for output in outputs_of(value):
                self._uses.append((output.result.id, output.index, consumer))

    def overwritten(self, clocks: Clocks, places: dict[str, list[Touch]]) -> Iterator[Overwritten]:
        """Uses that come after a write into the same memory, in program order."""
        for producer, index, consumer in self._uses:
            view = self._views.get((producer, index))
            if view is None or producer not in clocks.index:
                continue
            made = clocks.index[producer]
            used = len(clocks.tasks) if consumer is None else clocks.index.get(consumer, -1)
            for place in view[0]:
                for touch in places.get(place, ()):
                    if touch.in_place and made < clocks.index.get(touch.task, -1) < used:
                        yield Overwritten(place, producer, index, touch, consumer)
                        break


def outputs_of(value: Value) -> Iterator[Output]:
    """The task results that a value is made of."""
    if isinstance(value, Output):
        yield value
    elif isinstance(value, Rows):
        for part in value.parts:
            yield from outputs_of(part)
    elif isinstance(value, Slice):
        yield from outputs_of(value.value)


def deferred_values(tree: Any) -> Iterator[Value]:
    """Values behind the deferred leaves of a tree; never waits."""
    for leaf in pytree.flatten(tree, describe)[0]:
        if is_deferred(leaf):
            yield leaf._self_value  # noqa: SLF001
