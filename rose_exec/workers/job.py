"""What a worker is asked to do, and how it does it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from rose_exec import wire
from rose_exec.copies import copied
from rose_exec.memory import here
from rose_exec.native import Running, running
from rose_exec.workers.ambient import Ambient, applied
from rose_trace import frames, pytree
from rose_trace.frames import Frame
from rose_trace.legality import AccessSet
from rose_trace.pytree import Structure
from rose_trace.recorder import Execution, execution


@dataclass(slots=True)
class Job:
    """One invocation.

    Attributes:
        path: Node path.
        method: Method name on the component; empty for a function.
        resident: Component or shard it runs on; empty for a function.
        arguments: Structure of ``(args, kwargs)``, without the component.
        leaves: Their leaves.
        frame: The enclosing invocation, so that paths, rows and spans are those of the program.
        allowed: What the invocation announced.
        threads: Intra-op threads, ``None`` to leave them.
        wait_ns: Time between ready and start.
        function: The callable, for functions; with a resident, it is called with that first.
        attribute: Attribute of the component to read, instead of a method to run.
        ambient: Torch settings of the calling glue code.
        stream: CUDA stream of the calling glue code, for workers of its process.
        tag: What its worker reports once the device has read the arguments.
        lane: Lane of its device work; empty for none.
        sms: SMs that work may use; 0 for no limit.
    """

    path: str
    method: str
    resident: str
    arguments: Structure
    leaves: tuple[wire.Wire, ...]
    frame: Frame
    allowed: AccessSet
    threads: int | None = None
    wait_ns: int = 0
    function: Callable[..., Any] | None = None
    attribute: str = ""
    ambient: Ambient | None = None
    stream: Any = None
    tag: int = -1
    lane: str = ""
    sms: int = 0


@dataclass(slots=True)
class Answer:
    """The result of a job.

    Attributes:
        structure: Structure of the result, with the shapes that came out.
        leaves: Its leaves.
    """

    structure: Structure
    leaves: tuple[wire.Wire, ...]


@dataclass(slots=True)
class Residence:
    """What lives in one worker.

    Attributes:
        worker: Worker name.
        composites: Definitions that only call other nodes, by key.
        components: Components and shards by resident name.
    """

    worker: str
    composites: frozenset[str] = frozenset()
    components: dict[str, Any] = field(default_factory=dict[str, Any])

    def execute(self, job: Job) -> Any:
        """Run a job natively and return its result."""
        if job.attribute:
            value = getattr(self.components[job.resident], job.attribute)
            return _plain(job.resident, job.attribute, value)
        _set_threads(job.threads)
        leaves = [wire.decode(leaf) for leaf in job.leaves]
        here().fence(job.tag)
        args, kwargs = pytree.unflatten(job.arguments, iter(leaves))
        if job.function is not None and job.resident:
            call = functools.partial(job.function, self.components[job.resident])
        elif job.function is not None:
            call = job.function
        else:
            call = getattr(self.components[job.resident], job.method)
        mark = running.set(Running(job.path, job.allowed, self.composites))
        told = execution.set(Execution(self.worker, job.wait_ns, job.threads))
        frame = frames.current.set(job.frame)
        try:
            with applied(job.ambient):
                return call(*args, **kwargs)
        finally:
            frames.current.reset(frame)
            execution.reset(told)
            running.reset(mark)


def isolate(leaf: Any) -> Any:
    """A copy of a tensor or array, so that a later update of a live one is not seen by its readers."""
    torch = sys.modules.get("torch")
    tensor = torch is not None and isinstance(leaf, torch.Tensor)
    return copied(leaf) if tensor or type(leaf) is np.ndarray else leaf


def _plain(resident: str, name: str, value: Any) -> Any:
    """The value of an attribute, if glue code may have a copy of it.

    Raises:
        AttributeError: If it can change behind the copy.
    """
    if isinstance(value, str | int | float | bool | bytes | complex | type(None)):
        return value
    if isinstance(value, tuple):
        return tuple(_plain(resident, name, item) for item in cast("tuple[Any, ...]", value))
    raise AttributeError(
        f"{resident}.{name}: expected a plain immutable attribute, got {type(value).__name__} of a component "
        "that lives in a worker. Decorate the method that uses it with @rose.node."
    )


def _set_threads(count: int | None) -> None:
    torch = sys.modules.get("torch")
    if count and torch is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)
