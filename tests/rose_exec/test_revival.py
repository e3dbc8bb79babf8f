"""After a worker has ended the next iteration works natively, or says which state it would need."""

from __future__ import annotations

from typing import Any

import pytest

from rose_exec.revival import Revival, StateLost
from rose_exec.workers.process import ProcessWorker, WorkerDied
from rose_trace.legality import AccessSet
from rose_trace.records import Access, StateAccess
from tests.rose_exec.test_failures import Pair, alive, bits, pair

READ, UPDATE, REFRESH = StateAccess.READ, StateAccess.UPDATE, StateAccess.REFRESH


def touching(*accesses: tuple[str, StateAccess], opaque: bool = False) -> AccessSet:
    return AccessSet(tuple(Access(*access) for access in accesses), opaque)


def revived() -> Revival:
    revival = Revival()
    states = touching(("sim.episode", READ), ("sim.count", READ), ("generator.torch", READ))
    revival.built_again("sim", "sim-0", states)
    return revival


def test_a_refresh_gives_a_lost_state_back() -> None:
    revival = revived()
    revival.admit("it/sim.reset", "sim", touching(("sim.episode", REFRESH)))
    revival.admit("it/sim.step", "sim", touching(("sim.episode", UPDATE)))
    with pytest.raises(StateLost) as caught:
        revival.admit("it/sim.tell", "sim", touching(("sim.count", READ)))
    assert str(caught.value) == (
        "it/sim.tell: expected state 'sim.count' of sim as it was, got a component built again because "
        "worker sim-0 ended. Refresh it before, or start again from a checkpoint."
    )


@pytest.mark.parametrize("mode", [READ, UPDATE])
def test_a_lost_state_is_refused(mode: StateAccess) -> None:
    with pytest.raises(StateLost, match=r"expected state 'sim\.episode' of sim as it was"):
        revived().admit("it/look", "", touching(("sim.episode", REFRESH), ("sim.episode", mode)))


def test_generators_of_other_processes_are_theirs() -> None:
    revival = revived()
    draw = touching(("generator.torch", UPDATE))
    revival.admit("it/policy.act", "policy", draw)
    with pytest.raises(StateLost, match=r"state 'generator\.torch' of sim"):
        revived().admit("it/sim.noise", "sim", draw)


def test_what_is_not_declared_is_lost_whole() -> None:
    with pytest.raises(StateLost):
        revived().admit("it/sim.anything", "sim", touching(opaque=True))
    revival = Revival()
    revival.built_again("sim", "sim-0", touching(opaque=True))
    with pytest.raises(StateLost, match=r"expected everything it knew of sim as it was"):
        revival.admit("it/sim.anything", "sim", touching(opaque=True))
    revival.admit("it/pure", "", touching())


def died(both: Pair, **orders: Any) -> None:
    both.order(**orders)
    with pytest.raises(WorkerDied, match=r"The next iteration runs in native order"):
        both.planned.iteration()
    both.order()


def test_a_component_whose_state_is_refreshed_goes_on_as_natively() -> None:
    with pair(processes=("sim",)) as both:
        died(both, orders={(0, 1): ("kill",)})
        for _ in range(2):
            assert bits(both.planned.iteration()) == bits(both.natively())
        died(both, orders={(0, 0): ("exit", 3)})
        assert bits(both.planned.iteration()) == bits(both.natively())


def test_a_component_that_learned_says_what_is_lost() -> None:
    with pair(processes=("learner",)) as both:
        first = both.planned.learner.pid()
        assert bits(both.planned.iteration()) == bits(both.natively())
        died(both, orders={0: ("kill",)})
        with pytest.raises(StateLost) as caught:
            both.planned.iteration()
        assert str(caught.value) == (
            "iteration/learn/learner.learn: expected state 'learner.weights' of learner as it was, got a component "
            "built again because worker learner ended. Refresh it before, or start again from a checkpoint."
        )
        worker = both.session._placement.workers["learner"]
        assert isinstance(worker, ProcessWorker)
        second = worker.pid
        assert second is not None
        assert second != first
    assert not alive(first)
    assert not alive(second)
