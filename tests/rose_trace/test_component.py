from __future__ import annotations

import functools
import pickle
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rose_trace as rose
from rose_trace import hooks
from rose_trace.component import Instance, construct_natively, instance_of, rebuild


@rose.component(name="sim", batch_states=["episode"])
class Simulator:
    def __init__(self, envs: int, *, seed: int = 0) -> None:
        self.envs, self.seed = envs, seed

    @classmethod
    def shard(cls, index: int, count: int, envs: int, *, seed: int = 0) -> tuple[Any, ...]:
        return (envs // count,)

    @staticmethod
    @rose.node(pure=True)
    def twice(x: Any) -> Any:
        return [x, x]

    @rose.node(reads="episode")
    def look(self) -> int:
        return self.envs


def _instance(component: Any) -> Instance:
    found = instance_of(component)
    assert found is not None
    return found


def test_names_and_constructor_calls_are_kept() -> None:
    with rose.program() as first:
        a, b = Simulator(4), Simulator(8, seed=3)
    with rose.program():
        c = Simulator(2)
    with rose.program(first):
        d = Simulator(1)
    assert [_instance(x).name for x in (a, b, c, d)] == ["sim", "sim#1", "sim", "sim#2"]
    assert (_instance(b).args, _instance(b).kwargs) == ((8,), {"seed": 3})
    assert first.instances["sim#1"] is _instance(b)
    assert _instance(a).declared.shardable
    assert _instance(a).batch_states == ("episode",)
    assert instance_of(object()) is None


def test_instances_travel_and_build_again() -> None:
    with rose.program():
        whole = Simulator(8, seed=3)
    instance = pickle.loads(pickle.dumps(_instance(whole)))
    assert instance.name == "sim"
    copy = rebuild(instance)
    assert (copy.envs, copy.seed, _instance(copy).name) == (8, 3, "sim")
    assert rebuild(instance, 1, 2).envs == 4


def test_subclasses_and_modules() -> None:
    class Plain(Simulator):
        pass

    assert instance_of(Plain(3)) is None

    @rose.component
    class Policy(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(width, 1)

    with rose.program():
        policy = Policy(3)
    assert _instance(policy).name == "policy"
    assert policy.layer.in_features == 3
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = policy.missing

    @rose.component
    @dataclass
    class Settings:
        width: int

    assert Settings(3).width == 3


def test_a_class_without_a_dict_is_refused() -> None:
    with pytest.raises(
        TypeError, match="expected a class whose instances take attributes, got one with __slots__"
    ):

        @rose.component
        class Slotted:
            __slots__ = ("x",)


def test_static_methods_keep_their_first_argument(tmp_path: Any) -> None:
    with rose.program():
        sim = Simulator(4)
    assert sim.twice(sim) == [sim, sim]
    with rose.record(tmp_path / "t.parquet", activity="none") as recording:
        assert sim.twice(sim) == [sim, sim]
        assert sim.twice(3) == [3, 3]
    assert recording.info is not None
    assert recording.info.complete


def test_a_resolver_may_keep_a_component_elsewhere() -> None:
    calls: list[Any] = []

    class Resolver:
        invoke = None  # nothing is called

        def construct(self, instance: Instance, component: Any, args: Any, kwargs: Any) -> None:
            calls.append((instance.name, args, kwargs))
            instance.home = "worker"

        def attribute(self, instance: Instance, component: Any, name: str) -> Any:
            return (instance.home, name)

    resolver: Any = Resolver()
    hooks.install_executor(resolver)
    try:
        with rose.program():
            sim = Simulator(4)
        assert calls == [("sim", (4,), {})]
        assert sim.envs == ("worker", "envs")
    finally:
        hooks.install_executor(None)
    with pytest.raises(AttributeError, match="object has no attribute 'envs'"):
        _ = sim.envs
    construct_natively(_instance(sim), sim)
    assert sim.envs == 4


def test_the_executor_stands_in_front_of_the_recorder() -> None:
    def invoke(name: str, node: Any, args: Any, kwargs: Any) -> Any:
        return name, args

    recorder: Any = SimpleNamespace(invoke=functools.partial(invoke, "recorder"))
    executor: Any = SimpleNamespace(invoke=functools.partial(invoke, "executor"))

    @rose.node(pure=True)
    def work(x: int) -> Any:
        return x

    try:
        hooks.install_recorder(recorder)
        assert hooks.active is recorder
        assert work(1) == ("recorder", (1,))
        hooks.install_executor(executor)
        assert hooks.active is executor
        assert hooks.recorder() is recorder
        assert work(1) == ("executor", (1,))
        hooks.install_recorder(None)
        assert hooks.active is executor
        assert work(1) == ("executor", (1,))
        hooks.install_executor(None)
        assert hooks.active is None
        assert work(1) == 1
    finally:
        hooks.install_executor(None)
        hooks.install_recorder(None)
