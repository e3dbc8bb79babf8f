"""One open invocation of a checked session, and its name."""

from __future__ import annotations

from dataclasses import dataclass, field

from rose_exec.readiness import TaskId
from rose_exec.tasks import Task
from rose_trace.component import Instance
from rose_trace.node import ExecutionNode
from rose_trace.records import Access


@dataclass(slots=True)
class Body:
    """One open invocation.

    Attributes:
        task: Task it belongs to.
        node: Its definition.
        instance: Its component.
        path: Node path.
        invocation: Path with iterations.
        accesses: What it declares, and what its trace has seen it draw.
        children: Calls of other nodes so far.
        wrote: Paths that it, or what it called, has written.
        pending: Changes of a node that declares nothing, until it is known whether it calls others.
    """

    task: TaskId
    node: ExecutionNode
    instance: Instance | None
    path: str
    invocation: str
    accesses: tuple[Access, ...]
    children: int = 0
    wrote: set[str] = field(default_factory=set[str])
    pending: list[str] = field(default_factory=list[str])

    @property
    def silent(self) -> bool:
        """Whether it declares nothing: alone it is a fence, with children it is glue."""
        return self.node.declaration.silent

    def writes(self, component: str) -> tuple[str, ...]:
        """States of a component that it declares to write."""
        return tuple(
            a.state for a in self.accesses if a.mode.writes and a.state.startswith(f"{component}.")
        )


def invocation_of(task: Task) -> str:
    """A task's path with its iterations, its ordinal and its rows."""
    frame = task.job.frame
    ordinal = next(iter(frame.calls.values()), 0)
    iteration = ",".join(map(str, frame.iteration))
    rows = "" if frame.rows is None else f" rows {frame.rows.start}..{frame.rows.stop - 1}"
    return f"{task.job.path}[{iteration}]{f'#{ordinal}' if ordinal else ''}{rows}"
