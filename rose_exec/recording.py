"""Rows for the loops and composites whose bodies the driver runs itself."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import replace

from rose_trace import hooks
from rose_trace.component import Instance
from rose_trace.frames import Frame
from rose_trace.node import ExecutionNode
from rose_trace.recorder import Recorder


@contextlib.contextmanager
def recorded(
    node: ExecutionNode, instance: Instance | None, caller: Frame | None, count: int | None = None
) -> Generator[Frame]:
    """Record a body that runs as glue, where a recorder is open.

    Args:
        node: The loop, composite or root.
        instance: The component it is a method of.
        caller: The enclosing frame; ``None`` for a root.
        count: Iterations of a loop, where known.

    Yields:
        The frame of the body, with the ids that its children name as their parent.
    """
    recorder = hooks.recorder()
    name = node.full_name(instance)
    if not isinstance(recorder, Recorder):
        yield (
            Frame(name)
            if caller is None
            else replace(caller, path=caller.child_path(name), calls={})
        )
        return
    try:
        span = recorder.opened(node, (), {}, instance, caller)
    except Exception as failure:
        recorder.fail(failure)
        yield (
            Frame(name)
            if caller is None
            else replace(caller, path=caller.child_path(name), calls={})
        )
        return
    frame = Frame(
        span.path,
        span.iteration,
        span.span_id,
        span.trace_id,
        {},
        span.group,
        span.groups,
        span.rows,
    )
    span.count = count
    try:
        yield frame
    except BaseException as error:
        recorder.closed(span, error=error)
        raise
    recorder.closed(span, (None, None))
