"""The demo's training: what PPO computes, what it leaves alone, and that it repeats."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import rose_trace as rose
from examples.demo.compare import digest
from examples.demo.network import Sizes
from examples.demo.policy import Policy
from examples.demo.program import Config, Outcome, build
from examples.demo.simulator import TASKS, Task
from examples.demo.trainer import PPO, Trainer, Transition, advantages


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are small here: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SMALL = Config(task="Reacher-v5", num_envs=8, epochs=2, steps=3, chunk=4)


def run(config: Config, iterations: int) -> list[Outcome]:
    with rose.program():
        program = build(config)
        return [program.iteration(index) for index in range(iterations)]


def one_epoch(
    sizes: Sizes, rows: int, steps: int, reward: Tensor
) -> tuple[list[Transition], Tensor]:
    """An epoch in which only the rewards are made up. Shape of reward: [steps, rows]."""
    policy = Policy(sizes, 0, rows)
    draws = torch.Generator().manual_seed(3)
    done = torch.zeros(rows, dtype=torch.bool)
    seen = [
        torch.randn(rows, sizes.chunk, sizes.observation, generator=draws) for _ in range(steps + 1)
    ]
    transitions = [Transition(policy.act(seen[t], t), reward[t], done) for t in range(steps)]
    return transitions, policy.value(seen[-1])


def test_advantages_by_hand() -> None:
    ppo = PPO(discount=0.5, trace_decay=0.5)
    reward = torch.tensor([[1.0], [2.0]])
    value = torch.tensor([[4.0], [8.0]])
    advantage, target = advantages(ppo, reward, value, bootstrap=torch.tensor([16.0]))
    # step 1: 2 + 0.5 * 16 - 8 = 2; step 0: 1 + 0.5 * 8 - 4 + 0.25 * 2 = 1.5
    assert torch.equal(advantage, torch.tensor([[1.5], [2.0]]))
    assert torch.equal(target, torch.tensor([[5.5], [10.0]]))


def test_update_makes_rewarded_chunks_likelier() -> None:
    sizes = SMALL.sizes
    # Row 0 is always rewarded, the others never: its chunks must gain probability over theirs.
    reward = torch.zeros(4, 8)
    reward[:, 0] = 20.0
    epoch = one_epoch(sizes, 8, 4, reward)
    trainer = Trainer(sizes, 0, PPO(minibatch=32, passes=4))
    trainer.update(epoch)
    head = trainer.net.head
    with torch.no_grad():
        gained = torch.stack(
            [
                head.logprob(d.chunk, head.mean(d.draft, head.context(d.features))) - d.logprob
                for d in (step.decision for step in epoch[0])
            ]
        )
    assert gained[:, 0].mean() > gained[:, 1:].mean() + 0.01


def test_policy_acts_with_its_own_weights_until_it_loads_the_new() -> None:
    sizes = SMALL.sizes
    policy, trainer = Policy(sizes, 0, 8), Trainer(sizes, 0, SMALL.ppo)
    seen = torch.ones(8, sizes.chunk, sizes.observation)
    before = digest(policy.act(seen, 0))
    handed_out = trainer.weights()
    kept = digest(handed_out)
    trainer.update(one_epoch(sizes, 8, 3, torch.randn(3, 8)))
    assert digest(policy.act(seen, 0)) == before
    assert digest(handed_out) == kept  # a copy: later updates do not reach it
    policy.load(trainer.weights())
    assert digest(policy.act(seen, 0)) != before


def test_backbone_stays_as_it_was() -> None:
    first, last = run(SMALL, 1)[0].weights, run(SMALL, 2)[1].weights
    frozen = {name for name in first if name.startswith("backbone.")}
    assert frozen
    assert all(torch.equal(first[name], last[name]) for name in frozen)
    assert any(not torch.equal(first[name], last[name]) for name in first.keys() - frozen)


def test_same_seed_same_bits_and_other_seed_other_bits() -> None:
    assert digest(run(SMALL, 2)) == digest(run(SMALL, 2))
    assert digest(run(SMALL, 1)) != digest(run(dataclasses.replace(SMALL, seed=1), 1))


def test_training_draws_from_no_shared_generator() -> None:
    before = torch.get_rng_state()
    run(SMALL, 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_epoch_starts_elsewhere() -> None:
    first, second = run(SMALL, 2)
    starts = [digest(steps[0].decision.features) for o in (first, second) for steps, _ in o.epochs]
    assert len(set(starts)) == len(starts)


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.env_id)
def test_tasks_are_described_as_gymnasium_has_them(task: Task) -> None:
    import gymnasium as gym

    spec = gym.spec(task.env_id)
    env = gym.make(task.env_id)
    assert (env.observation_space.shape, env.action_space.shape) == (
        (len(task.scale),),
        (task.actions,),
    )
    assert spec.max_episode_steps == task.horizon
    assert Config.of(task.env_id, 0).steps * Config().chunk == task.horizon


def test_digest_tells_bits_types_and_shapes_apart() -> None:
    zero = torch.zeros(4)
    different = [
        zero,
        -zero,
        zero.double(),
        zero.view(2, 2),
        zero[:3],
        [zero],
        (zero,),
        {"a": zero},
    ]
    assert len({digest(value) for value in different}) == len(different)
    assert digest(torch.arange(6).view(2, 3).T) == digest(torch.arange(6).view(2, 3).T.contiguous())
