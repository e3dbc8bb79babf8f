"""Invocations that pause: coroutines, generators and async generators keep their nature.

Each is one span, from its first step to its end; while it is paused, the caller's frame is current.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any

from rose_trace.dataref import describe_result
from rose_trace.frames import Frame, current

if TYPE_CHECKING:
    from rose_trace.invocation import Invocation
    from rose_trace.node import ExecutionNode
    from rose_trace.recorder import Recorder

Call = tuple["ExecutionNode", tuple[Any, ...], dict[str, Any], "Frame | None"]


def drive(
    recorder: Recorder, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The coroutine, generator or async generator of one invocation; the caller is whoever made it."""
    call = (node, args, kwargs, current.get())
    if node.is_async:
        return _coroutine(recorder, call)
    if inspect.isasyncgenfunction(node.entry):
        return _async_generator(recorder, call)
    return _generator(recorder, call)


async def _coroutine(recorder: Recorder, call: Call) -> Any:
    node, args, kwargs, caller = call
    try:
        inv = recorder.opened(node, args, kwargs, caller=caller)
    except Exception as failure:
        recorder.fail(failure)
        return await node.entry(*args, **kwargs)
    try:
        result = await node.entry(*args, **kwargs)
    except BaseException as error:
        recorder.closed(inv, error=error)
        raise
    recorder.closed(inv, result)
    return result


def _generator(recorder: Recorder, call: Call) -> Generator[Any, Any, Any]:
    node, args, kwargs, caller = call
    inner: Generator[Any, Any, Any] = node.entry(*args, **kwargs)
    try:
        inv = recorder.opened(node, args, kwargs, caller=caller)
    except Exception as failure:
        recorder.fail(failure)
        return (yield from inner)
    pause(recorder, inv)
    step: Callable[[Any], Any] = inner.send
    value: Any = None
    while True:
        resume(recorder, inv)
        try:
            item = step(value)
        except StopIteration as stop:
            recorder.closed(inv, stop.value)
            return stop.value
        except BaseException as error:
            recorder.closed(inv, error=None if isinstance(error, GeneratorExit) else error)
            raise
        _hand_out(recorder, inv, item)
        pause(recorder, inv)
        try:
            value = yield item
            step = inner.send
        except BaseException as error:
            step = inner.throw
            value = error


async def _async_generator(recorder: Recorder, call: Call) -> AsyncGenerator[Any, Any]:
    node, args, kwargs, caller = call
    inner: AsyncGenerator[Any, Any] = node.entry(*args, **kwargs)
    try:
        inv = recorder.opened(node, args, kwargs, caller=caller)
    except Exception as failure:
        recorder.fail(failure)
        async for item in inner:
            yield item
        return
    pause(recorder, inv)
    step: Callable[[Any], Any] = inner.asend
    value: Any = None
    while True:
        resume(recorder, inv)
        try:
            item = await step(value)
        except StopAsyncIteration:
            recorder.closed(inv)
            return
        except BaseException as error:
            recorder.closed(inv, error=None if isinstance(error, GeneratorExit) else error)
            raise
        _hand_out(recorder, inv, item)
        pause(recorder, inv)
        try:
            value = yield item
            step = inner.asend
        except BaseException as error:
            step = inner.athrow
            value = error


def pause(recorder: Recorder, inv: Invocation) -> None:
    """Take the contexts of an invocation away until its next step."""
    try:
        recorder.leave(inv)
    except Exception as failure:
        recorder.fail(failure)


def resume(recorder: Recorder, inv: Invocation) -> None:
    """Attach the contexts of an invocation for its next step."""
    try:
        recorder.attach(inv)
    except Exception as failure:
        recorder.fail(failure)


def _hand_out(recorder: Recorder, inv: Invocation, item: Any) -> None:
    """A yielded value was produced by the generator."""
    try:
        describe_result(item, (inv.span_id, inv.start_ns, inv.start_ns))
    except Exception as failure:
        recorder.fail(failure)
