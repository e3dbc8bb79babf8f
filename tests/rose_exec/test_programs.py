"""Everything a program may contain runs in a session as it runs natively."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import rose_trace as rose
from rose_exec.refs import is_deferred
from rose_exec.replay import Replay, replay
from rose_trace.component import program
from tests.rose_exec.failing import ROWS, Learner, Sim, double, undeclared
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.test_failures import bits

SPLIT = "split-spatial{loop=root/interact groups=2}"


def both(build: Callable[[], Callable[[], Any]], *transforms: str, **settings: Any) -> Replay:
    """A session of the program; its first two iterations are compared with native ones."""
    with program():
        native = build()
        expected = [native(), native()]
    session = replay(
        observed_plan(build, *transforms, rows=ROWS, **settings), build=build, strict=True
    )
    with session:
        assert [bits(session.built()) for _ in range(2)] == [bits(value) for value in expected]
        assert session._driver is not None
        assert not session._driver.serial
    return session


def with_suspended_calls() -> Callable[[], Any]:
    learner = Learner()

    @rose.iteration(name="root")
    def iteration() -> Any:
        seen: list[Any] = []
        for k in learner.count_up(2):
            seen.append(k)
            learner.learn(k)

        async def main() -> None:
            seen.append(await learner.soon())
            learner.learn(0.5)
            async for k in learner.each(2):
                seen.append(k)
                learner.learn(k)

        asyncio.run(main())
        counting = learner.count_up(5)
        seen.append(next(counting))
        counting.close()  # type: ignore[attr-defined]
        return seen, learner.look()

    return iteration


def test_generators_and_coroutines() -> None:
    both(with_suspended_calls)


def with_traced_loop() -> Callable[[], Any]:
    learner, sim = Learner(), Sim(ROWS)

    @rose.iteration(name="root")
    def iteration() -> Any:
        losses: list[Any] = []
        obs = sim.reset(0)
        for k in rose.iterations("epochs", range(4)):
            obs = sim.step(obs)
            losses.append(learner.learn(obs))
            if k == 2:
                break
        return losses, double(losses[0]), learner.look()

    return iteration


def test_loops_that_cannot_be_rewritten() -> None:
    both(with_traced_loop, processes=("learner", "sim"))


def with_functions_and_fences() -> Callable[[], Any]:
    sim, learner = Sim(ROWS), Learner()

    @rose.loop
    def interact(obs: Any, t: int) -> Any:
        obs = sim.step(action=obs)  # by name, and rows="action"
        return obs, obs

    @rose.iteration(name="root")
    def iteration() -> Any:
        obs = sim.reset(1)
        obs = sim.step(obs * 2.0)  # outside the split: every shard takes its rows
        last, seen = interact(obs, count=2)
        loss = learner.learn(last)
        total = undeclared(double(loss))
        return sim.peek(), seen, total, sim.step(last, row=3), learner.look()

    return iteration


def test_shards_inside_and_outside_their_loop_functions_and_fences() -> None:
    both(with_functions_and_fences, SPLIT, "interleave", "merge", processes=("learner",))


def with_fetched_items() -> Callable[[], Any]:
    learner = Learner()

    @rose.loop
    def learn(total: float, item: Any) -> Any:
        loss = learner.learn(item)
        return total + 1.0, loss

    @rose.iteration(name="root")
    def iteration() -> Any:
        items = (
            learner.learn(float(k)) for k in range(3)
        )  # fetched one by one, between the bodies
        count, losses = learn(0.0, over=items)
        pairs = learn(count, over=map(float, range(2)))
        return count, losses, pairs, learner.look()

    return iteration


def test_items_that_are_made_by_nodes_keep_their_place() -> None:
    both(with_fetched_items)
    both(with_fetched_items, processes=("learner",))


gate = threading.Event()


@rose.node(pure=True)
def hold() -> int:
    """Keeps the worker busy until the program has what it asks for."""
    assert gate.wait(30)
    return 1


@rose.node(pure=True)
def pack(x: Any, y: Any) -> Any:
    return {"pair": (x, [y]), "none": None}


def with_a_busy_worker() -> Callable[[], Any]:
    sim, learner = Sim(ROWS), Learner()
    gate.set()  # the native run waits for nobody

    @rose.iteration(name="root")
    def iteration() -> Any:
        held = hold()
        packed = pack(sim.reset(0), held)
        (one, [two]), nothing = packed["pair"], packed["none"]
        parts = [held, one, two, learner.learn(two)]
        waiting = [is_deferred(part) for part in parts] if nothing is None else []
        gate.set()
        return waiting, parts

    return iteration


def test_taking_a_result_apart_waits_for_nothing() -> None:
    plan = observed_plan(with_a_busy_worker)
    with program():
        expected = with_a_busy_worker()()
    with replay(plan, build=with_a_busy_worker, strict=True) as session:
        gate.clear()
        waiting, parts = session.built()
    assert waiting == [True] * 4
    assert bits(parts) == bits(expected[1])
