"""What a component holds travels in one piece, or is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rose_trace as rose
from rose_exec.boundary import Boundary
from rose_exec.handover import NotCarried, load, save, shared, uninterrupted
from rose_trace import hooks
from rose_trace.component import program
from tests.rose_exec import programs


class Learner:
    """An optimizer over its own module, gradients that are kept, and two views of one storage."""

    def __init__(self) -> None:
        self.net = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self.flat = torch.zeros(4)
        self.head = self.flat[:2]
        self.generator = torch.Generator().manual_seed(3)

    def update(self) -> torch.Tensor:
        noise = torch.randn(5, 3, generator=self.generator)
        self.net(noise).square().sum().backward()  # accumulates: gradients live on
        self.optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        self.head += 1
        return torch.cat([p.detach().flatten() for p in self.net.parameters()] + [self.flat])


def test_a_learner_goes_on_elsewhere() -> None:
    first, second = Learner(), Learner()
    first.update()
    load(second, save(first))
    for _ in range(3):
        assert torch.equal(first.update(), second.update())
    assert second.optimizer.param_groups[0]["params"][0] is second.net.weight
    assert torch.equal(second.flat[:2], torch.full((2,), 4.0))


class Offering:
    def __init__(self) -> None:
        self.hidden: Any = lambda: 1
        self.value = 1

    def snapshot(self) -> int:
        return self.value

    def restore(self, value: int) -> None:
        self.value = value


def test_a_class_may_say_itself_what_it_holds() -> None:
    first, second = Offering(), Offering()
    first.value = 7
    load(second, save(first))
    assert second.value == 7
    assert second.hidden() == 1


class Bag:
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


def shared_arrays() -> Bag:
    whole = np.zeros(4)
    return Bag(whole=whole, part=whole[:2])


def tensor_over_array() -> Bag:
    array = np.zeros(4, np.float32)
    return Bag(array=array, tensor=torch.from_numpy(array))  # pyright: ignore[reportUnknownMemberType]


def graph() -> Bag:
    return Bag(tensor=torch.ones(1, requires_grad=True) * 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (shared_arrays, "expected arrays of their own memory, got two that share it"),
        (tensor_over_array, "expected arrays of their own memory, got"),
        (graph, "expected no autograd graph between iterations"),
        (lambda: Bag(call=lambda: 1), "expected attributes that can be pickled"),
        (lambda: Bag(inner=programs.Policy(1)), "got component policy inside"),
    ],
    ids=["arrays", "tensor", "graph", "lambda", "component"],
)
def test_what_a_copy_would_change_is_refused(make: Callable[[], Bag], message: str) -> None:
    with program(), pytest.raises(NotCarried, match=message):
        save(make())


def test_what_two_components_share_is_seen() -> None:
    module = torch.nn.Linear(2, 2)
    found = shared({"a": Bag(x=module), "b": Bag(y=module), "c": Bag(z=torch.zeros(2))})
    assert set(found) == {"a", "b"}
    assert "as a" in found["b"]
    weight = torch.zeros(3)
    assert set(shared({"a": Bag(x=weight), "b": Bag(x=weight[1:2])})) == {"a", "b"}


def test_ctrl_c_waits_for_the_end_of_a_handover() -> None:
    done: list[bool] = []

    def interrupted() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == [True]


def watched(iterations: int) -> Boundary:
    boundary = Boundary()
    with program():
        iteration = programs.build()
    hooks.install_executor(boundary)
    try:
        for _ in range(iterations):
            iteration()
    finally:
        hooks.install_executor(None)
    return boundary


def test_what_lives_on_is_what_an_iteration_does_not_begin_with_refreshing() -> None:
    boundary = watched(1)
    carried = {name: boundary.carried(name) for name in boundary.members}
    assert carried == {"policy": True, "simulator": False, "trainer": True}
    assert not boundary.constant("simulator")


@rose.component
class Sometimes:
    """Refreshed in the first iteration, inherited by the second."""

    def __init__(self) -> None:
        self.value = 0
        self.calls = 0

    @rose.node(refreshes="value")
    def reset(self) -> None:
        self.value = 0

    @rose.node(updates="value")
    def add(self) -> int:
        self.value += 1
        return self.value


def test_one_iteration_that_inherits_is_enough() -> None:
    with program():
        thing = Sometimes()
    numbers = iter(range(9))

    @rose.iteration
    def iteration() -> int:
        if next(numbers) % 2 == 0:
            thing.reset()
        return thing.add()

    boundary = Boundary()
    hooks.install_executor(boundary)
    try:
        iteration()
        assert not boundary.carried("sometimes")
        iteration()
        assert boundary.carried("sometimes")
    finally:
        hooks.install_executor(None)
