"""`graph=True` where there is no CUDA, and what is decided before anything is captured."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import torch

import rose_trace as rose
from rose_exec.graphs.calls import MAX_CAPTURES, MAX_FORGOTTEN, Calls
from rose_trace.invocation import declaration_json
from rose_trace.node import ExecutionNode
from rose_trace.records import Declaration


def definition(function: Callable[..., Any]) -> ExecutionNode:
    return function.__rose_node__  # type: ignore[attr-defined]


@rose.component
class Policy:
    def __init__(self) -> None:
        self.weights = torch.arange(3.0)

    @rose.node(reads="weights", rows=True, graph=True)
    def act(self, obs: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """Acts."""
        return obs * self.weights * scale


@pytest.mark.skipif(torch.cuda.is_available(), reason="captures where CUDA is in use")
def test_without_cuda_the_node_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy()
    with caplog.at_level(logging.DEBUG, "rose_trace"):
        for _ in range(3):
            assert torch.equal(policy.act(torch.ones(3), scale=2.0), 2.0 * torch.arange(3.0))
    said = [r for r in caplog.records if "graph=True" in r.getMessage()]
    assert [r.levelno for r in said] == [logging.DEBUG]
    assert said[0].getMessage() == (
        f"rose.node({__name__}:Policy.act, graph=True): CUDA is not in use, calls run eagerly."
    )


def test_the_entry_looks_like_the_function() -> None:
    node = definition(Policy.act)
    assert node.entry is not node.function
    assert inspect.signature(node.entry) == inspect.signature(node.function)
    assert inspect.getsource(node.entry) == inspect.getsource(node.function)
    assert (node.entry.__name__, Policy.act.__doc__) == ("act", "Acts.")
    assert node.is_method

    @rose.node(pure=True)
    def plain(x: int) -> int:
        return x

    assert definition(plain).entry is definition(plain).function


def test_the_option_is_declared_and_changes_no_fingerprint() -> None:
    def made(graph: bool) -> ExecutionNode:
        @rose.node(pure=True, graph=graph)
        def work(x: int) -> int:
            return x

        return definition(work)

    assert made(True).declaration.graph
    assert not made(False).declaration.graph
    assert made(True).fingerprint == made(False).fingerprint
    assert repr(Declaration(pure=True, graph=True)) == repr(Declaration(pure=True))
    assert json.loads(declaration_json(made(True), None))["graph"] is True
    assert "graph" not in json.loads(declaration_json(made(False), None))


def test_functions_that_return_before_their_work_are_refused() -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    async def both() -> AsyncIterator[int]:
        yield 1

    for function, kind in (
        (coroutine, "a coroutine function"),
        (generator, "a generator"),
        (both, "a generator"),
    ):
        with pytest.raises(ValueError, match=r"graph=True\): expected a plain function") as caught:
            rose.node(graph=True)(function)
        assert str(caught.value) == (
            f"rose.node({__name__}:{function.__qualname__}, graph=True): expected a plain function, got "
            f"{kind}. Only what a call has launched when it returns can be captured: put that into a "
            "node of its own."
        )


def test_signatures_are_bounded_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls(definition(Policy.act))
    policy, other = Policy(), Policy()
    slots = [calls._slot(policy, (n,)) for n in range(MAX_CAPTURES)]
    assert calls._slot(policy, (0,)) is slots[0]
    assert not caplog.records
    newest = calls._slot(policy, (MAX_CAPTURES,))
    assert calls._slot(policy, (0,)) is slots[0]  # used lately, so it was kept
    assert calls._slot(policy, (1,)) is not slots[1]
    assert calls._slot(policy, (MAX_CAPTURES,)) is newest
    assert calls._slot(other, (1,)) not in slots
    many = [calls._slot(policy, ("many", n)) for n in range(2 * MAX_FORGOTTEN)]
    assert not many[0].eager
    assert many[-1].eager
    assert many[-1] is many[-2]
    (said,) = caplog.records
    assert said.getMessage() == (
        f"rose.node({__name__}:Policy.act, graph=True): expected at most 8 sets of argument shapes and "
        "values, got another one. Those not used for longest run eagerly again. Pad to fewer shapes, "
        "and pass numbers that change from call to call as tensors."
    )


def test_captures_go_with_their_component() -> None:
    calls = Calls(definition(Policy.act))
    policy = Policy()
    calls._slot(policy, (0,))
    assert len(calls._slots) == 1
    del policy
    assert not calls._slots
