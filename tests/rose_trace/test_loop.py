from __future__ import annotations

import inspect
from typing import Any

import pytest

import rose_trace as rose
from rose_trace.loop import LoopNode


@rose.loop
def walk(carry: int, item: int) -> tuple[int, int]:
    """Sums up."""
    return carry + item, item * item


def test_scan_convention() -> None:
    assert walk(10, count=3) == (13, [0, 1, 4])
    assert walk(0, over=[5, 6]) == (11, [25, 36])
    assert walk(7, count=0) == (7, [])
    assert walk.__doc__ == "Sums up."
    assert walk.kind == "loop"
    assert inspect.signature(walk.entry).parameters.keys() == {"carry", "item"}


def test_a_loop_can_be_a_method() -> None:
    class Program:
        step = 2

        @rose.loop
        def walk(self, carry: int, _: int) -> tuple[int, None]:
            return carry + self.step, None

    program: Any = Program()
    assert program.walk(1, count=3) == (7, [None] * 3)
    bound: Any = Program.walk
    assert isinstance(bound, LoopNode)
    assert program.walk.instance is None


def test_a_method_of_a_component_has_its_name(tmp_path: Any) -> None:
    @rose.component(name="trainer")
    class Trainer:
        @rose.loop
        def passes(self, carry: int, _: int) -> tuple[int, None]:
            return carry + 1, None

    with rose.program():
        trainer: Any = Trainer()
    from rose_trace.parquet import read_spans

    with rose.record(tmp_path / "t.parquet", activity="none"):
        assert trainer.passes(0, count=2) == (2, [None, None])
    assert read_spans(tmp_path / "t.parquet")["node"].to_pylist() == ["trainer.passes"]


def test_errors() -> None:
    with pytest.raises(
        TypeError, match="expected exactly one of count= and over=, got both or neither"
    ):
        walk(0)
    with pytest.raises(TypeError, match="expected exactly one of count= and over="):
        walk(0, count=1, over=[1])

    @rose.loop
    def wrong(carry: int, _: int) -> Any:
        return carry

    with pytest.raises(
        TypeError, match=r"expected the body to return \(carry, output\), got int\. Return a pair"
    ):
        wrong(0, count=1)

    async def body(carry: int, item: int) -> Any: ...

    with pytest.raises(TypeError, match="expected a plain function, got a coroutine or generator"):
        rose.loop(body)  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_iterations_are_the_items_themselves_without_a_resolver() -> None:
    items = [1, 2]
    assert rose.iterations("name", items) is items


def test_iteration_keeps_the_function() -> None:
    @rose.iteration
    def step(x: int) -> int:
        """Steps."""
        return x + 1

    assert step(1) == 2
    assert step.__doc__ == "Steps."
