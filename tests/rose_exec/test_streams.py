"""Which streams are waited for, on a CUDA that only writes down what it is asked; `tests/gpu` has the real one."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rose_trace as rose
from rose_exec.sanitizer.check import check
from rose_exec.sanitizer.kept import Kept
from rose_exec.streams import capturing, current, is_device_error, wait
from tests.rose_exec.sanitizer import wrong

CAPTURES: ContextVar[bool] = ContextVar("captures", default=False)


@dataclass
class Stream:
    device: int
    cuda: Cuda

    def synchronize(self) -> None:
        self.cuda.waited.append(self.device)


@dataclass
class Cuda:
    """What `torch.cuda` looks like to the module."""

    used: bool = True
    waited: list[int] = field(default_factory=list[int])
    entered: list[Any] = field(default_factory=list[Any])

    def current_device(self) -> int:
        assert self.used, "asking for the device starts CUDA"
        return 0

    def current_stream(self, device: int) -> Stream:
        return Stream(device, self)

    def is_current_stream_capturing(self) -> bool:
        return CAPTURES.get()

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Generator[None]:
        self.entered.append(stream)
        yield


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr("rose_exec.streams._cuda", lambda: made if made.used else None)
    return made


def on(device: int) -> Any:
    return SimpleNamespace(is_cuda=True, device=SimpleNamespace(index=device))


def test_the_streams_of_the_values_and_of_the_thread_are_waited_for(cuda: Cuda) -> None:
    wait([on(2), torch.ones(1), 3.5, on(2)])
    assert cuda.waited == [0, 2]


def test_where_cuda_is_not_in_use_nothing_starts_it(cuda: Cuda) -> None:
    cuda.used = False
    wait([torch.ones(1)])
    with current("mine"):
        assert not capturing()
    assert cuda.waited == []
    assert cuda.entered == []


def test_a_body_runs_on_the_stream_of_its_caller(cuda: Cuda) -> None:
    with current("mine"), current(None):
        pass
    assert cuda.entered == ["mine"]


def test_a_look_waits_for_what_may_still_write_host_memory(cuda: Cuda) -> None:
    Kept(1 << 24).look()
    assert cuda.waited == [0]


def test_device_errors_are_told_from_others() -> None:
    assert is_device_error(torch.AcceleratorError("device-side assert", 59))
    assert not is_device_error(RuntimeError("no storage"))


@rose.component(name="policy")
class Captures(wrong.Base):
    """Writes in a node that only reads, while its caller, which may write, captures."""

    @rose.node(reads="weights")
    def scale(self, obs: Any) -> Any:
        self.net.weight.mul_(0.99)
        return self.net(obs)

    @rose.node(updates="weights")
    def act(self, obs: Any) -> Any:
        mark = CAPTURES.set(True)
        try:
            return self.scale(obs)
        finally:
            CAPTURES.reset(mark)


def test_the_node_that_captures_answers_for_what_is_recorded(cuda: Cuda) -> None:
    checked = check(wrong.one_component(Captures))
    assert checked.findings == ()
    told = checked.notes["root/rollout/interact/policy.act/policy.scale"]
    assert told == "runs while a CUDA graph is captured, unwatched"
