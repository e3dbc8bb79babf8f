"""The demo's bits do not depend on how rows are grouped or on the number of threads.

This is what lets a plan split its batch and still promise the native run's bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from examples.demo.policy import Decision
from examples.demo.program import Config, build
from examples.demo.simulator import Simulator
from rose_trace import frames
from rose_trace.legality import RowRange

ROWS = 64
HALVES = (RowRange(0, 32), RowRange(32, 64))


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def assert_same_bits(whole: Tensor, halves: list[Tensor]) -> None:
    joined = torch.cat(halves)
    assert whole.shape == joined.shape
    assert torch.equal(whole, joined)


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(task="Reacher-v5", steps=5),
        pytest.param(Config.policy_heavy(), marks=pytest.mark.slow),
    ],
)
def test_policy_on_two_threads_equals_its_halves_on_one(config: Config) -> None:
    policy = build(config).policy
    draws = torch.Generator().manual_seed(1)
    for draw, length in enumerate([1, config.chunk, config.chunk]):
        seen = torch.randn(ROWS, length, config.sizes.observation, generator=draws)
        torch.set_num_threads(2)
        whole, value = policy.act(seen, draw), policy.value(seen)
        torch.set_num_threads(1)
        halves: list[Decision] = []
        values: list[Tensor] = []
        for group, rows in enumerate(HALVES):
            with frames.entered(frames.Frame(group=group, groups=2, rows=rows)):
                halves.append(policy.act(seen[rows.start : rows.stop], draw))
                values.append(policy.value(seen[rows.start : rows.stop]))
        for field in Decision._fields:
            assert_same_bits(getattr(whole, field), [getattr(half, field) for half in halves])
        assert_same_bits(value, values)


@pytest.mark.parametrize("task", ["Pusher-v5", "Reacher-v5"])
def test_shards_simulate_the_rows_of_the_whole(task: str) -> None:
    arguments = (task, ROWS, 5)
    whole = Simulator(*arguments)
    shards = [Simulator(*Simulator.shard(i, 2, *arguments)) for i in range(2)]
    draws = torch.Generator().manual_seed(2)
    for epoch in (0, 3):
        assert_same_bits(whole.reset(epoch), [shard.reset(epoch) for shard in shards])
        for _ in range(2):
            chunk = torch.randn(ROWS, 4, whole.task.actions, generator=draws)
            together = whole.step(chunk)
            apart = [
                shard.step(half)
                for shard, half in zip(shards, (chunk[:32], chunk[32:]), strict=True)
            ]
            for result, parts in zip(together, zip(*apart, strict=True), strict=True):
                assert_same_bits(result, list(parts))


def test_reset_inherits_nothing() -> None:
    used, fresh = Simulator("Pusher-v5", 3, 9), Simulator("Pusher-v5", 3, 9)
    first = used.reset(0)
    used.step(torch.ones(3, 5, 7))
    used.reset(4)
    used.step(-torch.ones(3, 5, 7))
    assert torch.equal(used.reset(7), fresh.reset(7))
    actions = torch.full((3, 5, 7), 0.5)
    for mine, its in zip(used.step(actions), fresh.step(actions), strict=True):
        assert torch.equal(mine, its)
    assert not torch.equal(first, fresh.reset(7))
