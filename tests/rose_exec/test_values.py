"""A deferred value is the plain value to everything that uses it, and nothing that only carries it waits."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rose_exec.memory.held import Held
from rose_exec.memory.here import Memory, enter, here
from rose_exec.readiness import TaskId
from rose_exec.refs import Output, Result, Value, concrete, defer, is_deferred, value_of
from rose_exec.scope import Outputs
from rose_exec.split import merge_leaves, slice_leaf
from rose_exec.wire import Object
from rose_trace import pytree
from rose_trace.legality import RowRange
from tests.rose_exec.slow_device import Driver, SlowDevice

TENSOR = torch.arange(6.0).view(3, 2)
ARRAY = np.arange(6.0).reshape(3, 2)


def deferred(value: Any) -> Any:
    """A deferred leaf whose producer is done."""
    result = Result(TaskId(1), "node", (0,), leaves=(Object(value),))
    result.done.set()
    return defer(Output(result, 0), pytree.describe_leaf(value), lambda wanted: wanted.get())


def unfinished(value: Any) -> Any:
    """A deferred leaf that must not be used."""

    def wait(_: Value) -> Any:
        raise AssertionError("waited for")

    result = Result(TaskId(1), "node", (0,))
    return defer(Output(result, 0), pytree.describe_leaf(value), wait)


def same(a: Any, b: Any) -> bool:
    """Whether two plain results are of one type and equal."""
    if type(a) in (torch.Tensor, np.ndarray):
        return type(a) is type(b) and np.array_equal(np.asarray(a), np.asarray(b))
    if type(a) in (list, tuple):
        return type(a) is type(b) and all(map(same, a, b)) and len(a) == len(b)
    return type(a) is type(b) and a == b


USES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "add": (2.5, lambda x: x + 1),
    "radd": (2.5, lambda x: 1 + x),
    "rsub": (2, lambda x: 10 - x),
    "divide": (7, lambda x: (x / 2, x // 2, x % 4, divmod(x, 4), 100 / x)),
    "power": (3, lambda x: (x**2, 2**x)),
    "bits": (6, lambda x: (x & 3, x | 1, x ^ 2, ~x, x << 1, 1 << x)),
    "sign": (-3, lambda x: (-x, +x, abs(x))),
    "compare": (3, lambda x: (x < 4, x <= 3, x == 3, x != 3, x > 3, x >= 4)),
    "sort": (3, lambda x: sorted([5, x, 1])[1] == 3),
    "max": (3, lambda x: max(x, 1) + 0),
    "bool": (0, lambda x: (bool(x), not x, "yes" if x else "no")),
    "truth of an array": (np.array([True]), lambda x: bool(x)),
    "float": (3, lambda x: (float(x), int(x), complex(x), round(x))),
    "math": (2.0, lambda x: (math.sqrt(x), math.floor(x), math.isfinite(x))),
    "format": (3.14159, lambda x: (f"{x:.2f}", f"{x}", f"{x!r}", str(x), repr(x))),
    "index": (1, lambda x: ([5, 6, 7][x], list(range(x)), [0] * x, "ab"[x:])),
    "hash": ("key", lambda x: {"key": 1}[x]),
    "string": ("abc", lambda x: (x.upper(), len(x), "b" in x, x[1], x + "d", list(x))),
    "bytes": (b"abc", lambda x: (bytes(x), x.hex())),
    "set": ({1, 2}, lambda x: (1 in x, len(x), sorted(x))),
    "dict with other keys": ({1: "a"}, lambda x: (x[1], list(x), dict(x.items()))),
    "isinstance": (1.5, lambda x: (isinstance(x, float), isinstance(x, str))),
    "isinstance tensor": (TENSOR, lambda x: isinstance(x, torch.Tensor)),
    "isinstance array": (ARRAY, lambda x: isinstance(x, np.ndarray)),
    "pickle": (ARRAY, lambda x: pickle.loads(pickle.dumps(x))),
    "pickle tensor": (TENSOR, lambda x: pickle.loads(pickle.dumps({"x": [x]}))["x"][0]),
    "deepcopy": (ARRAY, lambda x: copy.deepcopy(x)),
    "deepcopy inside": (TENSOR, lambda x: copy.deepcopy([x])[0]),
    "array item": (ARRAY, lambda x: (x[0], x[1:, 0], x[..., -1].tolist())),
    "array iteration": (ARRAY, lambda x: [row.tolist() for row in x]),
    "array unpacking": (ARRAY, lambda x: [[*x], sum(x)]),
    "array length": (ARRAY, lambda x: (len(x), x.shape, x.ndim, str(x.dtype))),
    "asarray": (ARRAY, lambda x: np.asarray(x)),
    "asarray scalar": (1.5, lambda x: np.asarray(x)),
    "asarray list": (1.5, lambda x: np.asarray([x, 2.0])),
    "asarray tensor": (TENSOR, lambda x: np.asarray(x)),
    "ufunc": (ARRAY, lambda x: (np.sin(x), np.add(x, 1), x @ x.T, ARRAY + x, ARRAY * x)),
    "array reduction": (ARRAY, lambda x: (np.sum(x), np.stack([x, x]), np.concatenate([x, x]))),
    "array of rows": (np.array([2, 0]), lambda x: (ARRAY[x], ARRAY[:, x[1]])),
    "array comparison": (ARRAY, lambda x: ((x > 2), (x == ARRAY).all())),
    "array method": (ARRAY, lambda x: (x.mean(), x.sum(axis=0), x.astype("float32"))),
    "tensor arithmetic": (TENSOR, lambda x: (x + 1, 1 - x, x * TENSOR, TENSOR / (x + 1), x @ x.T)),
    "tensor method": (TENSOR, lambda x: (x.mean(), x.sum(0), x.float(), x.shape, x.numpy())),
    "torch function": (
        TENSOR,
        lambda x: (
            torch.sin(x),
            torch.stack([x, x]),
            torch.cat([x, TENSOR]),
            torch.where(x > 2, x, 0),
        ),
    ),
    "torch functional": (
        TENSOR,
        lambda x: (
            torch.nn.functional.mse_loss(x, TENSOR * 2),
            torch.nn.functional.linear(x, torch.ones(1, 2)),
        ),
    ),
    "tensor item": (TENSOR, lambda x: (x[0], x[1, 1].item(), x[:, :1], float(x[2, 0]), len(x))),
    "tensor iteration": (TENSOR, lambda x: [row.tolist() for row in x]),
    "tensor of rows": (torch.tensor([2, 0]), lambda x: TENSOR[x]),
    "tensor from scalar": (
        1.5,
        lambda x: (TENSOR * x, TENSOR + x, TENSOR.clamp(min=x), torch.full((2,), x)),
    ),
    "tensor made of it": (
        TENSOR,
        lambda x: (concrete(torch.as_tensor(x)), x.unsqueeze(0), TENSOR.new_tensor(x.tolist())),
    ),
    "tensor in place": (
        TENSOR,
        lambda x: (TENSOR.clone().copy_(x), TENSOR.clone().add_(x), TENSOR.clone().fill_(x[0, 1])),
    ),
    "tensor as scalar": (
        torch.tensor(2.0),
        lambda x: (torch.full((2,), x), TENSOR.clamp(x, x + 1), torch.pow(2.0, x), 3 // x),
    ),
    "mask": (
        TENSOR > 2,
        lambda x: (TENSOR[x], torch.where(x, TENSOR, 0), TENSOR.masked_fill(x, 1)),
    ),
    "tensor scalar": (torch.tensor(2.0), lambda x: (float(x), bool(x), x.item(), f"{x:.1f}")),
    "no grad": (TENSOR, lambda x: x.detach().clone()),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_deferred_value_equals_that_of_the_plain_one(use: str) -> None:
    plain, function = USES[use]
    assert same(plain_of(function(deferred(plain))), function(plain))


def plain_of(result: Any) -> Any:
    """A use never hands the deferred object itself on, except where it is a plain part of a container."""
    assert not is_deferred(result)
    return result


def test_in_place_arithmetic_rebinds_a_number() -> None:
    x = deferred(2)
    x += 3
    x *= 2
    assert x == 10


def test_gradients_flow_through_a_deferred_tensor() -> None:
    weight = torch.ones(2, requires_grad=True)
    (deferred(TENSOR) * weight).sum().backward()  # pyright: ignore[reportUnknownMemberType]
    assert weight.grad is not None
    assert torch.equal(weight.grad, TENSOR.sum(0))


def test_carrying_describing_and_slicing_wait_for_nothing() -> None:
    x = unfinished(TENSOR)
    tree = {"a": (x, [x]), "b": None}
    leaves, structure = pytree.flatten(tree, lambda leaf: leaf._self_leaf)
    assert [value_of(leaf) is value_of(x) for leaf in leaves] == [True, True]
    again = pytree.unflatten(structure, iter(leaves))
    assert again["a"][0] is x
    assert copy.copy(x) is x
    assert is_deferred(x)
    part = slice_leaf(x, 3, RowRange(0, 2), x._self_value)
    assert part._self_leaf.shape == (2, 2)
    whole = merge_leaves("loop", [x, x], (RowRange(0, 3), RowRange(3, 6)), None)
    assert whole._self_leaf.shape == (6, 2)
    with pytest.raises(AssertionError, match="waited for"):
        _ = x + 1


def test_slices_and_merges_are_the_rows() -> None:
    ranges = (RowRange(0, 1), RowRange(1, 3))
    parts = [slice_leaf(deferred(TENSOR), 3, rows, Value.get) for rows in ranges]
    assert [torch.equal(*both) for both in zip(parts, (TENSOR[:1], TENSOR[1:]), strict=True)] == [
        True
    ] * 2
    merged = merge_leaves("loop", parts, ranges, Value.get)
    assert torch.equal(merged, TENSOR)
    back = slice_leaf(merged, 3, ranges[1], Value.get)
    assert value_of(back) is value_of(parts[1])  # no merge is carried out to take it apart again


def test_outputs_of_a_running_loop_are_a_list_of_known_length() -> None:
    there = [10, 11]
    asked: list[int] = []

    def wait(index: int) -> int:
        asked.append(index)
        return there[index]

    outputs = Outputs(2, wait)
    assert (len(outputs), asked) == (2, [])
    assert outputs[-1] == 11
    assert asked == [1]
    assert (outputs[0:1], list(outputs), [*reversed(outputs)]) == ([10], [10, 11], [11, 10])
    assert 11 in outputs
    more: list[Any] = [12]
    assert (outputs + more, more + outputs) == ([10, 11, 12], [12, 10, 11])
    assert outputs == [10, 11]
    assert outputs != [10]
    assert repr(outputs) == "[10, 11]"
    assert (outputs.index(11), outputs.count(10)) == (1, 1)
    with pytest.raises(IndexError, match="list index out of range"):
        _ = outputs[2]


def test_a_value_used_by_several_threads_is_fetched_once_for_each() -> None:
    x = deferred(3)
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(x + 1)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [4] * 4


class Pinning(SlowDevice):
    """Counts the copies to host memory."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.copies = 0

    def to_host(self, tensor: Any) -> Any:
        self.copies += 1
        return super().to_host(tensor)


def test_the_host_copy_of_a_tensor_on_a_device_goes_there_at_once() -> None:
    usual, driver = here(), Driver()
    device = Pinning(driver)
    try:
        source, mine = Memory("a", SlowDevice(driver)), enter(Memory("program", device))
        held = source.outbox.put([TENSOR])[0]
        assert isinstance(held, Held)
        for chunk in source.outbox.news()[0]:
            mine.inbox.learn(chunk)
        result = Result(TaskId(1), "node", (0,), leaves=(held,))
        result.done.set()
        x = defer(Output(result, 0), pytree.describe_leaf(TENSOR), lambda wanted: wanted.get())
        assert same(x.cpu(), TENSOR)
        assert device.copies == 1
        assert same(x + 0, TENSOR)  # found: the value itself is here from now on
        assert same(x.cpu(), TENSOR)
        assert (device.copies, mine.inbox.reading) == (1, True)
        mine.inbox.wait()
        assert not mine.inbox.reading
    finally:
        enter(usual)


def test_the_host_copy_of_a_tensor_of_this_process_is_the_tensor() -> None:
    assert deferred(TENSOR).cpu() is TENSOR
