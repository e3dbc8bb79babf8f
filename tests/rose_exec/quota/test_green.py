"""Partitions inside a process: opened once, ordered with the caller, and refused with a reason."""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Generator
from typing import Any

import pytest
import torch

from rose_exec.quota.green import GreenQuota
from rose_exec.quota.partitions import TorchPartitions, documented_sizes
from rose_exec.quota.quota import Quota, QuotaError
from rose_opt.measure import QuotaLevel, QuotaMeasurer, quota_levels, search_quota


class Partitions:
    """An H200's sizes, and a log of what happens."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def sizes(self) -> tuple[int, ...]:
        return documented_sizes(132, 9)

    def open(self, sms: int | None) -> tuple[object, Any]:
        self.log.append(f"open {sms}")
        return object(), f"stream {sms} #{len(self.log)}"

    @contextlib.contextmanager
    def joined(self, stream: Any) -> Generator[Any]:
        self.log.append(f"{stream} waits for the caller")
        try:
            yield stream
        finally:
            self.log.append(f"the caller waits for {stream}")


def test_levels_are_the_sizes_of_the_device() -> None:
    levels = GreenQuota(partitions=Partitions()).levels
    assert [level.sms for level in levels] == [*range(8, 129, 8), 132]
    assert [level.k for level in levels] == list(range(1, 18))
    assert (levels[0].percent, levels[12].percent, levels[-1].percent) == (7, 79, 100)


def test_a_block_comes_after_the_caller_and_the_caller_after_it() -> None:
    partitions = Partitions()
    quota = GreenQuota(partitions=partitions)
    with quota.limit(quota.levels[12]) as stream:
        assert stream == "stream 104 #1"
        partitions.log.append("work")
    assert partitions.log == [
        "open 104",
        "stream 104 #1 waits for the caller",
        "work",
        "the caller waits for stream 104 #1",
    ]


def test_the_caller_waits_for_a_block_that_fails() -> None:
    partitions = Partitions()
    quota = GreenQuota(partitions=partitions)
    with pytest.raises(KeyError), quota.limit(quota.levels[0]):
        raise KeyError("work")
    assert partitions.log[-1] == "the caller waits for stream 8 #1"


def test_a_level_is_opened_once_and_the_whole_device_is_no_partition() -> None:
    partitions = Partitions()
    quota = GreenQuota(partitions=partitions)
    low, whole = quota.levels[3], quota.levels[-1]
    assert quota.stream(low) == quota.stream(low) == "stream 32 #1"
    assert quota.stream(low, lane="denoise") == "stream 32 #2"
    assert quota.stream(whole) == "stream None #3"
    assert partitions.log == ["open 32", "open 32", "open None"]
    quota.close()
    assert quota.stream(low) == "stream 32 #4"


def test_a_search_may_renumber_some_of_the_levels() -> None:
    partitions = Partitions()
    quota = GreenQuota(partitions=partitions)
    some = quota_levels({level.percent: level.sms for level in quota.levels[::4]})
    assert [level.sms for level in some] == [8, 40, 72, 104, 132]
    for level in some[-2:]:
        quota.stream(level)
    assert partitions.log == ["open 104", "open None"]


def test_no_limit_changes_nothing() -> None:
    partitions = Partitions()
    quota: Quota = GreenQuota(partitions=partitions)
    with quota.limit(None) as stream:
        assert stream is None
    assert partitions.log == []
    assert quota.environment(quota.levels[0]) == {}
    assert not quota.replaces_worker


def test_a_level_of_another_device_is_refused() -> None:
    quota = GreenQuota(partitions=Partitions())
    with pytest.raises(QuotaError) as refused, quota.limit(QuotaLevel(5, 50, 38)):
        pass
    assert str(refused.value) == (
        "GreenQuota: expected one of the levels 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, "
        "120, 128, 132 SMs, got 50 SMs. Take a level of this device's own levels."
    )


MEASURED_MS = {132: 207, 128: 221, 120: 235, 112: 157, 104: 144, 96: 153, 88: 161, 80: 169}
"""A backbone in one MPS client at a level, its head in another: until both were done, on one H200."""


def test_algorithm_2_finds_the_level_behind_a_bump() -> None:
    class Measured:
        def completion_ns(self, level: QuotaLevel) -> int:
            return MEASURED_MS[level.sms] * 1_000_000

        def iteration_ns(self, level: QuotaLevel) -> int:
            return 4 * self.completion_ns(level)

    measurer: QuotaMeasurer = Measured()
    levels = GreenQuota(partitions=Partitions()).levels
    found = search_quota(measurer, levels, 4 * 207_000_000)
    assert found.level.sms == 104
    assert len(found.trials) <= 10


@pytest.mark.parametrize(
    ("sms", "major", "sizes"),
    [
        (132, 9, (*range(8, 132, 8), 132)),
        (108, 8, (*range(4, 108, 2), 108)),
        (72, 7, (*range(2, 72, 2), 72)),
        (4, 6, (1, 2, 3, 4)),
        (148, 10, (*range(8, 148, 8), 148)),
    ],
)
def test_documented_sizes(sms: int, major: int, sizes: tuple[int, ...]) -> None:
    assert documented_sizes(sms, major) == sizes


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_machine_without_a_gpu_is_told_so() -> None:
    with pytest.raises(QuotaError) as refused:
        GreenQuota()
    assert str(refused.value) == (
        "GreenContext: expected a CUDA device that torch can use, got none. "
        "SM quotas need an NVIDIA GPU and a CUDA build of torch."
    )


def test_a_torch_without_green_contexts_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.green_contexts.SUPPORTED", False)
    monkeypatch.setattr(torch, "__version__", "2.9.0")
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    with pytest.raises(QuotaError) as refused:
        TorchPartitions()
    assert str(refused.value) == (
        "GreenContext: expected torch 2.11 or newer built with CUDA 12.8 or newer, got 2.9.0 with CUDA 12.6. "
        "Update torch, or limit the process by MPS percentage."
    )


class Stream:
    """A stream, and a log of what waits for it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class Context:
    """A green context whose stream is made while it is current."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def set_context(self) -> None:
        self.log.append("set")

    def pop_context(self) -> None:
        self.log.append("pop")

    def Stream(self) -> Stream:  # noqa: N802 - torch's name
        self.log.append("make stream")
        return Stream("limited", self.log)


class Cuda:
    """What `TorchPartitions` uses of torch, on a device of 132 SMs."""

    def __init__(self, refusal: str = "") -> None:
        self.log: list[str] = []
        self.refusal = refusal
        self.caller = Stream("caller", self.log)

    def create(self, *, num_sms: int, device_id: int) -> Context:
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.log.append(f"create {num_sms} on {device_id}")
        return Context(self.log)

    def is_available(self) -> bool:
        return True

    def get_device_properties(self, device: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(multi_processor_count=132, major=9)

    def current_stream(self, device: int | None = None) -> Stream:
        return self.caller

    def set_stream(self, stream: Stream) -> None:
        self.log.append(f"back to {stream.name}")

    def record(self, stream: Stream) -> None:
        self.log.append(f"event on {stream.name}")

    def block(self, on: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> TorchPartitions:
        for name in ("device", "stream"):
            monkeypatch.setattr(torch.cuda, name, self.block)
        for name in ("is_available", "get_device_properties", "current_stream", "set_stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "Event", lambda: self)
        monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream("whole", self.log))
        green = types.SimpleNamespace(create=self.create, Stream=None)
        monkeypatch.setattr("torch.cuda.green_contexts.SUPPORTED", True)
        monkeypatch.setattr("torch.cuda.green_contexts.GreenContext", green)
        return TorchPartitions()


def test_a_partition_leaves_the_callers_context_and_stream_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = Cuda()
    partitions = cuda.install(monkeypatch)
    context, stream = partitions.open(104)
    assert isinstance(context, Context)
    assert cuda.log == [
        "event on caller",
        "create 104 on 0",
        "set",
        "make stream",
        "pop",
        "back to caller",
    ]
    cuda.log.clear()
    with partitions.joined(stream):
        cuda.log.append("work")
    assert cuda.log == ["limited waits for caller", "work", "caller waits for limited"]
    kept, whole = partitions.open(None)
    assert (kept, whole.name) == (None, "whole")


def test_a_driver_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = Cuda("cuda driver too old to use green context!\nC++ stack").install(monkeypatch)
    with pytest.raises(QuotaError) as refused:
        partitions.open(104)
    assert str(refused.value) == (
        "GreenContext: expected a partition of 104 SMs on cuda:0, got: cuda driver too old to use green "
        "context!. Partitions need a driver of CUDA 12.8 or newer; limit the process by MPS percentage instead."
    )


class Driver:
    """The driver's answers: it splits into groups of eight, and not above 128."""

    CUdevResourceType = types.SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)

    def __init__(self, failing: str = "") -> None:
        self.failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> tuple[Any, ...]:
            if name == self.failing:
                return (801, None)
            if name == "cuDevSmResourceSplitByCount":
                rounded = -(-args[3] // 8) * 8
                groups = [types.SimpleNamespace(sm=types.SimpleNamespace(smCount=rounded))]
                return (0, groups, 1, None) if rounded <= 128 else (1, None, None, None)
            return (0,) if name == "cuInit" else (0, object())

        return call


@pytest.mark.parametrize("failing", ["", "cuInit", "cuDeviceGetDevResource"])
def test_sizes_are_the_drivers_or_the_documented_ones(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    partitions = Cuda().install(monkeypatch)
    load = importlib.import_module

    def with_driver(name: str) -> Any:
        return Driver(failing) if name == "cuda.bindings.driver" else load(name)

    monkeypatch.setattr(
        "rose_exec.quota.partitions.importlib", types.SimpleNamespace(import_module=with_driver)
    )
    assert partitions.sizes() == (*range(8, 129, 8), 132)
