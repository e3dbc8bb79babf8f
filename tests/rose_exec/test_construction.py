"""Components built in workers, in shards and too early: built as the program says, or refused with the reason."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rose_trace as rose
from rose_exec.replay import Replay, replay
from rose_exec.workers import WorkerDied
from rose_opt.plan import Plan, PlanComponent, PlanRefused, Resident, WorkerSpec
from rose_trace import hooks
from rose_trace.component import program
from tests.rose_exec.failing import Drawing, Holder, Learner, Misconfigured, Picky


def hosting(workers: dict[str, tuple[Resident, ...]]) -> Plan:
    """A plan that only places components."""
    return Plan(
        "0",
        "0",
        (),
        components=(
            PlanComponent("drawing", "tests.rose_exec.failing:Drawing", ("episode",), True, 2),
        ),
        workers=tuple(WorkerSpec(name, "process", items) for name, items in workers.items()),
    )


@pytest.fixture(scope="module")
def opened() -> Iterator[Replay]:
    one = [Resident(name) for name in ("picky", "picky#1", "holder", "local", "learner", "nested")]
    plan = hosting(
        {
            "a": (*one, Resident("drawing", 0, 2)),
            "b": (Resident("drawing", 1, 2), Resident("drawing#1"), Resident("picky#2")),
        }
    )
    with replay(plan, strict=True) as session, session.paused():
        yield session


@pytest.fixture
def session(opened: Replay) -> Iterator[Replay]:
    hooks.install_executor(opened._driver)
    try:
        with program(opened._program):
            yield opened
    finally:
        hooks.install_executor(None)


def test_a_constructor_that_raises(session: Replay) -> None:
    with pytest.raises(Misconfigured) as caught:
        Picky("fail")
    assert caught.value.args == ("no such robot", 7)
    assert "Raised in worker a:" in "".join(caught.value.__notes__)


def test_the_next_instance_has_its_own_place(session: Replay) -> None:
    picky = Picky()
    assert session._placement.homes[id(picky._rose_instance)][1].residents == [("a", "picky#1")]  # type: ignore[attr-defined]
    assert picky.same({"x": (1, "y")}) == {"x": (1, "y")}
    with pytest.raises(
        Exception, match=r"picky#1\.same: expected values that can be sent to worker a"
    ):
        picky.same(threading.Lock())
    assert picky.same(3) == 3


def test_a_class_that_cannot_be_sent_is_named(session: Replay) -> None:
    @rose.component(name="local")
    class Inside:
        @rose.node(pure=True)
        def same(self, value: Any) -> Any:
            return value

    with pytest.raises(Exception, match=r"Component local: expected values that can be sent"):
        Inside()


def test_a_component_given_to_another_is_refused(session: Replay) -> None:
    with pytest.raises(PlanRefused) as caught:
        Holder(Learner(2.0))
    assert str(caught.value) == (
        "Component holder: expected constructor arguments that can be sent to a worker, got component "
        "learner. Pass its configuration, or name what they share as one absolute state and plan again."
    )


def test_a_shard_that_draws_from_a_shared_generator_is_refused(session: Replay) -> None:
    with pytest.raises(PlanRefused) as caught:
        Drawing(4)
    assert str(caught.value) == (
        "Component drawing: expected a constructor that draws from no process-wide generator, got draws "
        "from random, which shards cannot repeat. Seed a generator of its own."
    )


def test_a_whole_component_draws_what_it_draws_natively(session: Replay) -> None:
    random.seed(5)
    planned, after = Drawing(4), random.random()
    random.seed(5)
    with session.paused(), program():
        native, natively_after = Drawing(4), random.random()
    assert planned.step(np.zeros(4)).tolist() == native.state.tolist()
    assert after == natively_after


def test_a_constructor_whose_process_dies(session: Replay) -> None:
    with pytest.raises(WorkerDied, match=r"Worker b: expected a running process, got exit code 5"):
        Picky(("exit", 5))


def test_a_component_built_before_the_block() -> None:
    with program():
        early = Learner(3.0)
    plan = hosting({"a": (Resident("learner"),)})
    with replay(plan, strict=True) as opened:
        with pytest.raises(PlanRefused) as caught:
            early.learn(1.0)
        worker = opened._placement.workers["a"]
        pid = getattr(worker, "pid", None)
        assert pid is not None
    assert str(caught.value) == (
        "Component learner: expected to be built inside rose_exec.replay, got one built earlier, and the "
        "plan wants it in a. Build the program inside the with block, or pass build= to replay."
    )
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)


def test_components_of_one_name_are_told_apart() -> None:
    with program():
        early = Learner(3.0)
    with replay(hosting({}), strict=True):
        late = Learner(5.0)
        assert early.look().tolist() == [3.0] * 3
        assert late.look().tolist() == [5.0] * 3
        early.learn(1.0)
        assert (early.steps, late.steps) == (1, 0)


def test_one_replay_at_a_time() -> None:
    with replay(hosting({}), strict=True) as opened:
        with pytest.raises(RuntimeError, match="expected no other replay, got an open one"):
            replay(hosting({})).__enter__()
        with opened.paused(), replay(hosting({})):
            assert Learner().look().tolist() == [1.0] * 3
