from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

import pytest

import rose_trace as rose
from rose_trace.frames import current

Rows = list[dict[str, Any]]
Recorded = Callable[[Callable[[], Any]], Rows]


@rose.node(pure=True)
def leaf(x: int) -> int:
    return x + 1


@rose.node
async def fetch(x: int) -> int:
    leaf(x)
    await asyncio.sleep(0)
    return leaf(x)


@rose.node
async def fails() -> None:
    await asyncio.sleep(0)
    raise KeyError("mine")


@rose.node
def count(n: int) -> Generator[int, str | None, str]:
    got: list[str | None] = []
    for i in range(n):
        try:
            got.append((yield leaf(i)))
        except ValueError as error:
            got.append(f"threw {error}")
    return repr(got)


@rose.node
async def stream(n: int) -> AsyncIterator[int]:
    for i in range(n):
        await asyncio.sleep(0)
        yield leaf(i)


def test_coroutine_functions_stay_coroutine_functions() -> None:
    assert inspect.iscoroutinefunction(fetch)
    made = fetch(1)
    assert inspect.iscoroutine(made)
    assert asyncio.run(made) == 2


def test_concurrent_coroutines_keep_their_own_context(recorded: Recorded) -> None:
    @rose.node
    async def outer() -> list[int]:
        return await asyncio.gather(*(fetch(i) for i in range(3)))

    rows = recorded(lambda: asyncio.run(outer()))
    assert [r["path"] for r in rows].count("outer/fetch") == 3
    fetches = [r for r in rows if r["node"] == "fetch"]
    assert [r["ordinal"] for r in fetches] == [0, 1, 2]
    assert {r["parent_id"] for r in fetches} == {rows[0]["span_id"]}
    for fetched in fetches:
        children = [r for r in rows if r["parent_id"] == fetched["span_id"]]
        assert [r["path"] for r in children] == ["outer/fetch/leaf"] * 2
        assert children[1]["end_ns"] <= fetched["end_ns"]


def test_a_coroutine_that_raises_or_is_cancelled(recorded: Recorded) -> None:
    @rose.node
    async def forever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        with pytest.raises(KeyError, match="mine"):
            await fails()
        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fetch(1).close()  # never started: no span

    rows = recorded(lambda: asyncio.run(main()))
    assert [(r["node"], r["status"], r["error"]) for r in rows] == [
        ("fails", "error", "KeyError"),
        ("forever", "error", "CancelledError"),
    ]


def test_generators_keep_send_throw_and_return(recorded: Recorded) -> None:
    def drive() -> Any:
        steps = count(3)
        assert inspect.isgenerator(steps)
        out: list[Any] = [next(steps)]
        out.append(steps.send("a"))
        out.append(steps.throw(ValueError("b")))
        with pytest.raises(StopIteration) as stop:
            steps.send("c")
        return [*out, stop.value.value]

    native = drive()
    results: list[Any] = []
    rows = recorded(lambda: results.append(drive()))
    assert results == [native] == [[1, 2, 3, "['a', 'threw b', 'c']"]]
    assert [r["path"] for r in rows] == ["count", "count/leaf", "count/leaf", "count/leaf"]
    assert [r["ordinal"] for r in rows] == [0, 0, 1, 2]


def test_a_paused_generator_is_nobodys_caller(recorded: Recorded) -> None:
    def program() -> None:
        steps = count(3)
        next(steps)
        leaf(10)
        assert current.get() is None
        steps.close()
        unstarted = count(3)
        unstarted.close()

    rows = recorded(program)
    assert [(r["path"], r["status"]) for r in rows] == [
        ("count", "ok"),
        ("count/leaf", "ok"),
        ("leaf", "ok"),
    ]
    assert rows[0]["end_ns"] >= rows[2]["end_ns"]


def test_a_generator_that_raises(recorded: Recorded) -> None:
    @rose.node
    def broken() -> Generator[int]:
        yield 1
        raise OSError("mine")

    def program() -> None:
        with pytest.raises(OSError, match="mine"):
            list(broken())

    rows = recorded(program)
    assert [(r["status"], r["error"]) for r in rows] == [("error", "OSError")]


def test_async_generators(recorded: Recorded) -> None:
    async def main() -> list[int]:
        assert inspect.isasyncgen(stream(1))
        seen: list[int] = [x async for x in stream(4)]
        partial: Any = stream(4)
        seen.append(await anext(partial))
        leaf(100)
        await partial.aclose()
        return seen

    results: list[Any] = []
    rows = recorded(lambda: results.append(asyncio.run(main())))
    assert results == [[1, 2, 3, 4, 1]]
    assert [r["path"] for r in rows] == [
        "stream",
        *["stream/leaf"] * 4,
        "stream",
        "stream/leaf",
        "leaf",
    ]
    assert {r["status"] for r in rows} == {"ok"}


def test_interleaved_generators_do_not_mix(recorded: Recorded) -> None:
    def program() -> None:
        a, b = count(2), count(2)
        assert [next(a), next(b), next(a), next(b)] == [1, 1, 2, 2]
        a.close()
        b.close()

    rows = recorded(program)
    generators = [r["span_id"] for r in rows if r["node"] == "count"]
    owners = [r["parent_id"] for r in rows if r["node"] == "leaf"]
    assert owners == [generators[0], generators[1], generators[0], generators[1]]
