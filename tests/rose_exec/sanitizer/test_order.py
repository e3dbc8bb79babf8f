"""Happens-before against the closure of the conflict rules, and pairs that it leaves open."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

import pytest

from rose_exec.program_order import ProgramOrder
from rose_exec.readiness import MAIN, StrandId, TaskId
from rose_exec.sanitizer.check import check
from rose_exec.sanitizer.findings import Checks
from rose_exec.sanitizer.order import Clocks, Order
from rose_exec.sanitizer.touches import Touch, Touches
from rose_trace.legality import AccessSet, RowRange, first_conflict
from rose_trace.records import Access, StateAccess
from tests.rose_exec import programs


def random_access(draw: Random) -> AccessSet:
    if draw.random() < 0.1:
        return AccessSet(opaque=True)
    accesses = tuple(
        Access(state, draw.choice(list(StateAccess)), keyed=state == "sim.episode")
        for state in draw.sample(
            ["sim.episode", "policy.weights", "trainer.weights"], draw.randint(0, 2)
        )
    )
    start = draw.randint(0, 3)
    rows = RowRange(start, draw.randint(start + 1, 4)) if draw.random() < 0.7 else None
    return AccessSet(accesses, rows=rows)


@pytest.mark.parametrize("seed", range(60))
def test_clocks_are_the_closure_of_all_that_orders(seed: int) -> None:
    draw = Random(seed)
    order, edges = Order(), set[tuple[int, int]]()
    accesses: list[AccessSet] = []
    positions = sorted(draw.choices(range(12), k=14))
    for k, position in enumerate(positions):
        inputs = [i for i in range(k) if draw.random() < 0.05]
        access = random_access(draw)
        order.submitted(TaskId(k), (position,), access, map(TaskId, inputs), MAIN)
        edges |= {(i, k) for i in inputs}
        edges |= {
            (i, k)
            for i, earlier in enumerate(accesses)
            if positions[i] != position and first_conflict(earlier, access)
        }
        accesses.append(access)
    before = {k: {i for i, j in edges if j == k} for k in range(len(positions))}
    for k in range(len(positions)):
        before[k] |= set[int]().union(*(before[i] for i in before[k]))
    clocks = order.clocks()
    for i, k in itertools.combinations(range(len(positions)), 2):
        assert clocks.ordered(TaskId(i), TaskId(k)) == (i in before[k])


def placed(order: Order, item: int, strand: StrandId = MAIN, *inputs: int) -> None:
    order.submitted(TaskId(item), (item,), AccessSet(), map(TaskId, inputs), strand)


def test_glue_that_waits_orders_what_it_calls_next() -> None:
    order, branch = Order(), StrandId(1)
    placed(order, 0)
    placed(order, 1)
    order.waited(MAIN, TaskId(0))
    placed(order, 2)
    order.opened(branch, MAIN)
    placed(order, 3, branch)
    order.waited(branch, TaskId(3))
    order.waited(MAIN, TaskId(1))
    placed(order, 4)
    order.joined(MAIN, branch)
    placed(order, 5)
    clocks = order.clocks()
    known = {(i, k) for i in range(6) for k in range(6) if clocks.ordered(TaskId(i), TaskId(k))}
    assert known == {(0, 2), (0, 3), (0, 4), (1, 4), (0, 5), (1, 5), (3, 5)}


def touch(task: int, writes: bool) -> Touch:
    return Touch(TaskId(task), f"node{task}", f"node{task}[0]", writes)


def clocks_of(*edges: tuple[int, int], tasks: int = 3) -> Clocks:
    order = Order()
    for k in range(tasks):
        placed(order, k, MAIN, *(i for i, j in edges if j == k))
    return order.clocks()


def test_pairs_that_nothing_orders_and_how_they_ran() -> None:
    touches = Touches(ran={TaskId(0): 1, TaskId(1): 0, TaskId(2): 2})
    for place, writes in (("a", (True, False, False)), ("b", (False, False, False))):
        for task, wrote in enumerate(writes):
            touches.add(place, touch(task, wrote))
    found = list(touches.pairs(clocks_of((0, 2)), {}))
    assert [(p.place, p.earlier.task, p.later.task, p.inverted) for p in found] == [
        ("a", 0, 1, True)
    ]
    assert list(touches.pairs(clocks_of((0, 1), (1, 2)), {})) == []


def test_reading_an_attribute_reads_what_it_holds() -> None:
    touches = Touches()
    touches.add("sim.log['a'][0]", touch(0, True))
    touches.add("sim.net.weight", touch(0, True))
    touches.add_attribute("sim.log", touch(1, False))
    touches.add_attribute("sim.net", touch(1, False))
    kinds = {"sim.log['a'][0]": "plain", "sim.net.weight": "tensor"}
    assert [p.place for p in touches.pairs(clocks_of(), kinds)] == ["sim.log['a'][0]"]


def test_an_executor_that_breaks_the_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(order: ProgramOrder, submission: object, entries: object) -> Iterator[TaskId]:
        """Order nothing."""
        return iter(())

    monkeypatch.setattr(ProgramOrder, "_conflicting", forget)
    for seed in range(4):  # until an order shows it
        found = check(programs.build, settings=Checks(seed=seed, trials=0)).findings
        if "inversion" in {finding.kind for finding in found}:
            break
    else:
        pytest.fail("no order of completion inverted a pair")
    assert any(
        finding.annotation.startswith("This is a mistake of the executor") for finding in found
    )
