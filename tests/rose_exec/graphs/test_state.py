from __future__ import annotations

from typing import Any

import pytest
import torch

import rose_trace as rose
from rose_exec.graphs.state import State

FACTOR = 2.0
TABLE = torch.ones(3)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR + TABLE


class Policy:
    gain = 1.0

    def __init__(self) -> None:
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.scale = 1.5
        self.calls = 0
        self.history: list[float] = []
        self.caches: dict[str, Any] = {"a": {"b": 1}}

    @property
    def shift(self) -> float:
        return float(self.caches["a"]["b"])

    @rose.node(pure=True)
    def _head(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale * self.gain + self.shift

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        return self._head(self.net(scaled(obs)))

    def learn(self) -> None:
        self.calls += 1
        self.history.append(1.0)
        self.optimizer.zero_grad()


def storage(value: Any) -> int:
    return value.untyped_storage()._cdata


def hook(*_: Any) -> None: ...


def test_what_the_code_names_counts_and_nothing_else() -> None:
    policy = Policy()
    state = State(Policy.act, policy)
    assert state.difference() is None
    policy.learn()
    assert state.difference() is None


def test_gradients_count_where_the_call_uses_or_replaces_them() -> None:
    policy = Policy()
    bias = policy.net[0].bias
    replaced = State(Policy.act, policy)
    policy.net(torch.zeros(1, 3)).sum().backward()  # as part of the call
    replaced.keep({storage(bias)})
    assert replaced.difference() == "self.net._modules['0']._parameters['bias'].grad"

    used, unused = State(Policy.act, policy), State(Policy.act, policy)
    used.keep({storage(bias), storage(bias.grad)})
    unused.keep({storage(bias)})
    assert used.difference() is unused.difference() is None
    policy.optimizer.zero_grad()  # by somebody else, later
    assert unused.difference() is None
    assert used.difference() == "self.net._modules['0']._parameters['bias'].grad"


def test_every_way_to_replace_something_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy()
    linear, dropout = policy.net[0], policy.net[1]
    assert isinstance(linear, torch.nn.Linear)

    def replace_data() -> None:
        linear.weight.data = linear.weight.data.clone()

    def assign() -> None:
        policy.net.load_state_dict(
            {k: v.clone() for k, v in policy.net.state_dict().items()}, assign=True
        )

    def give_gradient() -> None:
        linear.bias.grad = torch.zeros(3)

    def register_hook() -> None:
        dropout.register_forward_hook(hook)

    replacements: list[tuple[Any, str]] = [
        (replace_data, "self.net._modules['0']._parameters['weight']"),
        (assign, "self.net._modules['0']._parameters['weight']"),
        (give_gradient, "self.net._modules['0']._parameters['bias'].grad"),
        (policy.net.eval, "self.net.training"),
        (register_hook, "self.net._modules['1']._forward_hooks"),
        (lambda: setattr(policy, "scale", 2.5), "self.scale"),
        (lambda: policy.caches["a"].update(b=2), "self.caches['a']['b']"),
        (lambda: policy.caches.update(c=1), "self.caches"),
        (lambda: monkeypatch.setattr(Policy, "gain", 2.0), "Policy.gain"),
        (lambda: setattr(policy, "net", torch.nn.Sequential(linear)), "self.net"),
        (lambda: monkeypatch.setitem(globals(), "FACTOR", 3.0), "FACTOR"),
        (lambda: monkeypatch.setitem(globals(), "TABLE", torch.ones(3)), "TABLE"),
    ]
    for replace, name in replacements:
        state = State(Policy.act, policy)
        assert state.difference() is None
        replace()
        assert state.difference() == name


def test_writing_in_place_and_equal_values_are_no_difference() -> None:
    policy = Policy()
    policy.scale = float("1.5")
    state = State(Policy.act, policy)
    policy.net.load_state_dict({k: v + 1 for k, v in policy.net.state_dict().items()})
    policy.scale = float("1.5")  # another object
    assert state.difference() is None
    assert state.difference() is None


def test_closures_and_components_as_modules() -> None:
    weight = torch.ones(2)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * weight

    state = State(function)
    assert storage(weight) in state.storages
    assert state.difference() is None
    weight = torch.zeros(2)
    assert state.difference() == "function.weight"

    module = torch.nn.Linear(2, 2)
    state = State(type(module).forward, module)
    assert storage(module.weight) in state.storages
    module.weight = torch.nn.Parameter(torch.zeros(2, 2))
    assert state.difference() is not None
