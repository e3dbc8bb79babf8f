from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rose_trace as rose
from rose_exec.graphs.state import State
from rose_exec.graphs.unfit import UnfitError
from rose_exec.graphs.watched import Watch, watched_call
from rose_trace import hooks
from rose_trace.rng import RowGenerator

CPU = torch.device("cpu")
WEIGHTS = torch.full((4,), 2.0)
NOISE = RowGenerator(3, 4)


@rose.node(pure=True)
def child(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@rose.loop
def steps(x: torch.Tensor, t: int) -> tuple[torch.Tensor, None]:
    return x + t, None


UNFIT: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: x * x.sum().item(), r"the host reads a value of the device \(aten\._local"),
    (lambda x: x + 1 if x.sum() > 0 else x, r"the host reads a value of the device"),
    (lambda x: x[x > 1], r"indexing by a mask \(aten\.index\.Tensor\)"),
    (lambda x: x.clone().index_put_((x > 1,), x[:2]), r"indexing by a mask"),
    (lambda x: x.nonzero(), r"a shape that depends on values \(aten\.nonzero"),
    (lambda x: x * torch.tensor(3.0), "a tensor made from host values"),
    (lambda x: (x + 1, torch.empty(4, device="meta")), "a tensor on meta"),
    (lambda x: x.add_(1.0), r"a write into an argument \(aten\.add_\.Tensor\)"),
    (lambda x: x[1:].mul_(2.0), r"a write into an argument"),
    (lambda x: torch.add(x, 1.0, out=x), r"a write into an argument"),
    (lambda x: x.view(2, 2), "a result that is an argument or a state"),
    (lambda x: [x + 1, WEIGHTS], "a result that is an argument or a state"),
    (lambda x: x * torch.as_tensor(np.ones(4)), "a tensor made from host values"),
    (lambda x: x * torch.as_tensor(NOISE.normal(1)), "a tensor made from host values"),
    (lambda x: (x + 1).numpy(), "a result of type ndarray"),
    (lambda x: (x + 1, object()), "a result of type object"),
    (lambda x: torch.nn.Parameter(x + 1), "a result of type Parameter"),
    (lambda x: (x + 1).requires_grad_(), "a result that needs gradients"),
    (lambda x: torch.rand(4, generator=torch.Generator()), "draws from a generator of its"),
    (lambda x: x * random.random(), r"draws on the host \(random\)"),
    (lambda x: x * float(np.random.rand()), r"draws on the host \(numpy\)"),
    (lambda x: child(x), r"a call of the node .*:child"),
    (lambda x: steps(x + 1, count=2)[0], r"a call of the node .*:steps"),
    (lambda x: 3, "no work for the device"),
]


def looked_at(
    function: Callable[[Any], Any], *args: torch.Tensor, device: torch.device = CPU
) -> Watch:
    """Make the call under a watch; its result must be that of the plain call."""
    state = State(function)
    watch = Watch(device, args, state.storages)
    result = watched_call(lambda: function(*args), watch)
    watch.judge(result)
    if watch.drawn is not None:
        raise watch.drawn
    return watch


def test_work_on_arguments_state_and_tensors_of_its_own_qualifies() -> None:
    def function(x: torch.Tensor) -> Any:
        hidden = (x * WEIGHTS).reshape(2, 2)
        hidden[0] += 1.0
        WEIGHTS.mul_(1.0)
        left, right = hidden.chunk(2)
        chosen = torch.where(left > 0, right, torch.zeros_like(right))
        return {"a": chosen, "b": [hidden[:, torch.arange(1)], 3, "s", None]}

    with torch.no_grad():
        watch = looked_at(function, torch.arange(4.0))
    held: Any = WEIGHTS.untyped_storage()
    assert watch.used == {held._cdata}
    assert watch.unfit is None


def test_a_training_step_with_gradients_in_place_qualifies() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.zeros(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        assert weight.grad is not None
        weight.grad.zero_()
        loss = (weight * x).sum()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        with torch.no_grad():
            weight.sub_(weight.grad)
        return loss.detach()

    state = State(step)
    watch = looked_at(step, torch.ones(3))
    state.keep(watch.used)
    assert state.difference() is None
    assert torch.equal(weight, torch.zeros(3))


@pytest.mark.parametrize(
    ("function", "fact"),
    UNFIT,
)
def test_what_a_replay_would_not_repeat_is_named(function: Any, fact: str) -> None:
    x = torch.arange(4.0)
    with pytest.raises(UnfitError, match=f"^{fact}") as caught:
        looked_at(function, x)
    assert caught.value.action
    assert hooks.active is None


def test_tensors_of_other_devices_are_named() -> None:
    with pytest.raises(UnfitError, match=r"^a tensor on cpu \(aten\.mul\.Tensor\)"):
        looked_at(lambda x: x * 2, torch.ones(2), device=torch.device("cuda", 0))


def test_exceptions_pass_and_leave_nothing_behind() -> None:
    def function(x: torch.Tensor) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        looked_at(function, torch.ones(2))
    assert hooks.active is None
    modes: Any = torch._C
    assert modes._len_torch_dispatch_stack() == 0


def test_what_an_onlooker_sees_is_still_recorded(tmp_path: Any) -> None:
    with rose.record(tmp_path / "trace.parquet", activity="none") as recording:
        with pytest.raises(UnfitError, match="a call of the node"):
            looked_at(lambda x: steps(child(x), count=3)[0], torch.ones(2))
        recorder = hooks.recorder()
        assert hooks.active is recorder
    assert recording.info is not None
    assert recording.info.rows["spans"] == 2
