"""What is looked at, under which names, and what a copy of it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import rose_trace as rose
from rose_exec.sanitizer.account import memory_of
from rose_exec.sanitizer.copies import copied
from rose_exec.sanitizer.kept import Kept
from rose_exec.sanitizer.look import Leaf
from rose_exec.sanitizer.memory import Regions
from rose_exec.sanitizer.watch import Watch
from rose_trace.component import instance_of
from rose_trace.rng import RowGenerator

TABLE = {"seen": 0}


class Remade:
    """Pickles only what it was made from, as many simulators do."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.now = start

    def __getstate__(self) -> dict[str, int]:
        return {"start": self.start}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__init__(**state)


def helper() -> None:
    TABLE["seen"] += 1


@rose.component
class Keeper:
    shared: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.net: Any = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.optimizer: Any = torch.optim.Adam(self.net.parameters())
        self.net(torch.ones(3, 2)).sum().backward()
        self.optimizer.step()
        self.nested: Any = {"a": [np.zeros(3), (1, {"b": torch.zeros(2)})], "set": {1, 2}}
        self.generators = [np.random.default_rng(1), random.Random(1), torch.Generator()]
        self.noise = RowGenerator(1, 4)
        self.sim = Remade(3)
        self.text = "x"
        self.opaque: Any = iter(np.zeros(2))
        self.me = self

    @rose.node(pure=True)
    def touch(self) -> None:
        helper()


def changed(change: Callable[[Any], Any], full_bytes: int = 1 << 24) -> list[str]:
    kept, keeper = Kept(full_bytes), Keeper()
    kept.add("keeper", keeper)
    kept.look()
    assert kept.look() == ([], ())
    change(keeper)
    return [path for path, _ in kept.look()[0]]


CHANGES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda k: k.net[0].weight.data.add_(1), "keeper.net.0.weight"),
    (lambda k: k.net[1].running_mean.numpy().fill(7), "keeper.net.1.running_mean"),
    (lambda k: k.net[0].weight.grad.fill_(3), "keeper.net.0.weight.grad"),
    (lambda k: k.net[1].eval(), "keeper.net.1.training"),
    (
        lambda k: k.optimizer.state[k.net[0].bias]["exp_avg"].add_(1),
        "keeper.optimizer.state[#1]['exp_avg']",
    ),
    (
        lambda k: k.optimizer.param_groups[0].update(lr=1.0),
        "keeper.optimizer.param_groups[0]['lr']",
    ),
    (lambda k: k.nested["a"][0].fill(1), "keeper.nested['a'][0]"),
    (lambda k: k.nested["a"][1][1]["b"].fill_(1), "keeper.nested['a'][1][1]['b']"),
    (lambda k: k.nested["set"].add(3), "keeper.nested['set']"),
    (lambda k: k.generators[0].normal(), "keeper.generators[0]"),
    (lambda k: k.generators[1].random(), "keeper.generators[1]"),
    (lambda k: torch.rand(1, generator=k.generators[2]), "keeper.generators[2]"),
    (lambda k: setattr(k.sim, "now", 9), "keeper.sim.now"),
    (lambda k: setattr(k, "text", "y"), "keeper.text"),
    (lambda k: setattr(k, "fresh", 1), "keeper.fresh"),
    (lambda k: delattr(k, "text"), "keeper.text"),
    (lambda k: k.shared.append(1), "Keeper.shared[0]"),
    (lambda k: helper(), "test_watch:TABLE.value['seen']"),
]


@pytest.mark.parametrize(("change", "path"), CHANGES)
def test_every_change_is_seen_under_its_name(change: Callable[[Any], Any], path: str) -> None:
    try:
        assert changed(change) == [path]
    finally:
        Keeper.shared.clear()


def test_a_generator_without_state_has_none() -> None:
    assert changed(lambda keeper: keeper.noise.normal(1, 2)) == []


def test_large_contents_are_sampled_and_versions_tell_the_rest() -> None:
    big = torch.zeros(1 << 18)
    watch = Watch(full_bytes=1 << 12)
    watch.add_component("keeper", keeper := Keeper())
    setattr(keeper, "big", big)  # noqa: B010
    before = watch.look()["keeper.big"]
    big[2_000] = 1  # between two blocks
    after = watch.look()["keeper.big"]
    assert (before.digest, before.version + 1) == (after.digest, after.version)
    big.numpy()[0] = 1  # in a block, and past the version
    assert watch.look()["keeper.big"].digest != after.digest


def test_what_cannot_be_looked_into_is_listed() -> None:
    watch = Watch()
    keeper = Keeper()
    keeper.opaque = memoryview(b"x")
    watch.add_component("keeper", keeper)
    watch.look()
    assert watch.unseen == {"keeper.opaque": "memoryview"}


def test_memory_is_known_by_its_address_whoever_looks() -> None:
    array = np.zeros((4, 3), np.float32)
    tensor = torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]
    leaves = {"a": Leaf("r", "array", "", *(memory_of(array) or (0, 0)))}
    span = memory_of(array[1:2])
    assert span is not None
    leaves["row"] = Leaf("r", "array", "", *span)
    regions = Regions(leaves)
    assert regions.at(*(memory_of(tensor[3]) or (0, 0))) == ["a"]
    assert regions.at(*(memory_of(tensor[1, 1:]) or (0, 0))) == ["a", "row"]
    assert regions.at(*(memory_of(torch.zeros(3)) or (0, 0))) == []
    assert memory_of(torch.zeros(0)) is None
    assert memory_of("text") is None


def test_a_copy_is_as_the_original_is_now_and_apart_from_it() -> None:
    keeper = Keeper()
    keeper.sim.now = 42
    keeper.opaque = None
    copy: Any = copied(keeper)
    assert copy is not keeper
    assert instance_of(copy) is instance_of(keeper)
    assert copy.me is copy
    assert copy.sim.now == 42
    assert copy.optimizer.param_groups[0]["params"][0] is copy.net[0].weight
    copy.net[0].weight.data.zero_()
    copy.optimizer.step()
    copy.generators[0].normal()
    copy.sim.now = 0
    assert changed(lambda k: copied(k).nested["a"][0].fill(5)) == []
    assert keeper.sim.now == 42
    assert keeper.net[0].weight.abs().sum() > 0
