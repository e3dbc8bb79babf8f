"""A worker that is a thread of the program's own process."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rose_exec import streams, wire
from rose_exec.workers.job import Answer, Job, Residence, isolate
from rose_exec.workers.lanes import Lanes
from rose_trace import pytree
from rose_trace.component import Instance, construct_natively


class InlineWorker:
    """One thread with one slot.

    Args:
        name: Worker name.
        composites: Definitions that only call other nodes, by key.
    """

    kind = "inline"

    def __init__(self, name: str, composites: frozenset[str]) -> None:
        self.name = name
        self._residence = Residence(name, composites)
        self._lanes = Lanes()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"rose-{name}")

    def build(self, resident: str, instance: Instance, component: Any) -> None:
        """Construct the component here, in the caller's thread."""
        construct_natively(instance, component)
        self.adopt(resident, component)

    def adopt(self, resident: str, component: Any) -> None:
        """Take in a component that exists already."""
        self._residence.components[resident] = component
        self._lanes.built()

    def run(self, job: Job) -> Future[Answer]:
        """Start a job."""
        return self._executor.submit(self._run, job)

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Job) -> Answer:
        ordered = not any(wire.unordered(leaf) for leaf in job.leaves)
        with streams.current(job.stream), self._lanes.on(job, ordered):
            leaves, structure = pytree.flatten(self._residence.execute(job))
            copies = [isolate(leaf) for leaf in leaves]
            return Answer(structure, tuple(map(wire.Object, copies, _ready(copies))))


def _ready(leaves: list[Any]) -> list[tuple[Any, Any] | None]:
    """Of each leaf on a CUDA device, the stream that computes it and an event there."""
    events: dict[Any, tuple[Any, Any]] = {}
    found: list[tuple[Any, Any] | None] = []
    for leaf in leaves:
        if not getattr(leaf, "is_cuda", False):
            found.append(None)
            continue
        import torch

        if leaf.device not in events:
            stream: Any = torch.cuda.current_stream(leaf.device)
            events[leaf.device] = stream, stream.record_event()
        found.append(events[leaf.device])
    return found
