"""Coroutines and generators in the program: each of their steps runs after everything earlier."""

from __future__ import annotations

import inspect
import types
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any


def resumed_after(wait: Callable[[], None], made: Any, is_async: bool) -> Any:
    """What the program gets instead of `made`: the same steps, each after `wait`.

    Args:
        wait: Waits for everything submitted so far.
        made: A coroutine, generator or asynchronous generator.
        is_async: Whether it is a coroutine.

    Returns:
        An awaitable, a generator or an asynchronous generator.
    """
    if is_async:
        return types.coroutine(_steps)(wait, made)
    return _asynchronous(wait, made) if inspect.isasyncgen(made) else _steps(wait, made)


def _steps(
    wait: Callable[[], None], made: Coroutine[Any, Any, Any] | Generator[Any, Any, Any]
) -> Generator[Any, Any, Any]:
    step: Callable[[], Any] = lambda: made.send(None)  # noqa: E731
    while True:
        wait()
        try:
            item = step()
        except StopIteration as stop:
            return stop.value
        try:
            given = yield item
        except BaseException as error:
            step = lambda e=error: made.throw(e)  # noqa: E731
        else:
            step = lambda g=given: made.send(g)  # noqa: E731


async def _asynchronous(
    wait: Callable[[], None], made: AsyncGenerator[Any, Any]
) -> AsyncGenerator[Any, Any]:
    given: Any = None
    try:
        while True:
            wait()
            try:
                item = await made.asend(given)
            except StopAsyncIteration:
                return
            given = yield item
    finally:
        await made.aclose()
