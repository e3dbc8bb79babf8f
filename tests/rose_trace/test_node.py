from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import rose_trace as rose
from rose_trace import hooks
from rose_trace.legality import AccessSet
from rose_trace.node import ExecutionNode, registry
from rose_trace.records import Access, Declaration, StateAccess


def definition(function: Callable[..., Any]) -> ExecutionNode:
    return function.__rose_node__  # type: ignore[attr-defined]


def test_a_decorated_function_is_the_plain_function_without_a_resolver() -> None:
    @rose.node(pure=True, name="shown")
    def work(x: int, *, y: int = 2) -> int:
        """Adds."""
        return x + y

    assert hooks.active is None
    assert work(1, y=4) == 5
    assert work.__doc__ == "Adds."
    assert inspect.signature(work) == inspect.signature(definition(work).entry)
    assert definition(work).name == "shown"
    assert definition(work).key == f"{__name__}:{work.__qualname__}"
    assert registry[definition(work).key] is definition(work)


def test_coroutine_functions_run_natively() -> None:
    @rose.node
    async def work(x: int) -> int:
        return x

    assert asyncio.run(work(3)) == 3


def test_accesses() -> None:
    @rose.component(batch_states="episode")
    class Sim:
        @rose.node(reads=("weights", "other.table"), updates="episode")
        def step(self) -> None: ...

        @rose.node
        def silent(self) -> None: ...

    with rose.program():
        sim: Any = Sim()
    step = definition(sim.step)
    assert step.full_name(sim._rose_instance) == "sim.step"
    assert step.accesses(sim._rose_instance) == AccessSet(
        (
            Access("sim.weights", StateAccess.READ),
            Access("other.table", StateAccess.READ),
            Access("sim.episode", StateAccess.UPDATE, keyed=True),
        )
    )
    assert definition(sim.silent).accesses(sim._rose_instance) == AccessSet(opaque=True)
    assert str(Access("sim.weights", StateAccess.READ)) == "read sim.weights"


def test_contradicting_declarations() -> None:
    with pytest.raises(
        ValueError, match=r"rose\.node\(pure=True\): expected no declared states, got a, b\."
    ):
        rose.node(pure=True, reads="a", updates="b")
    with pytest.raises(
        ValueError, match=r"expected each state in one of reads, updates, refreshes, got a more"
    ):
        rose.node(reads="a", refreshes="a")
    with pytest.raises(
        ValueError, match="State 'a': expected an absolute name outside a component"
    ):
        Declaration(reads=("a",)).accesses(None)
    assert Declaration(reads=("c.a",)).accesses(None) == (Access("c.a", StateAccess.READ),)
    assert Declaration(rows=True).silent
    assert not Declaration(pure=True).silent


def test_built_in_functions_can_be_nodes() -> None:
    absolute = rose.node(pure=True)(abs)
    assert absolute(-3) == 3
    assert len(definition(absolute).fingerprint) == 16
