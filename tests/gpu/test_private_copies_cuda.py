"""Private copies of components on a CUDA device: the native bits, and memory that goes from device to device."""

from __future__ import annotations

import functools

import pytest
import torch

from rose_exec.replay import replay
from rose_exec.snapshot import put, taken
from rose_trace.component import program
from tests.rose_exec import shared_weights
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.test_replay import assert_identical

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

PRIVATE = "privatise{state=actor.weights readers=iteration/rollout}"
REWIRE = "rewire{node=iteration/learn beside=iteration/rollout}"


class Holder:
    """Anything with attributes."""


def test_a_module_on_the_device_stays_there() -> None:
    first, second = Holder(), Holder()
    first.__dict__["model"] = torch.nn.Linear(3, 4).cuda()
    first.__dict__["host"] = torch.arange(5)
    rest, host, gpu = taken(first)
    assert (host.device.type, gpu.device.type) == ("cpu", "cuda")
    put(second, (rest.copy(), host.clone(), gpu.clone()))
    made = second.__dict__["model"]
    assert made.weight.device.type == "cuda"
    assert torch.equal(made.weight, first.__dict__["model"].weight)
    assert torch.equal(second.__dict__["host"], torch.arange(5))


def test_training_with_a_copy_gives_the_native_weights() -> None:
    build = functools.partial(shared_weights.build, device="cuda")
    with program():
        iteration = build()
        expected = [iteration() for _ in range(3)]
    plan = observed_plan(build, PRIVATE, REWIRE, processes=("arm",))
    with replay(plan, build=build, strict=True) as session:
        found = [session.built() for _ in range(3)]
        assert not session.native
    assert_identical(found, expected)
