"""The sanitizer on programs whose state is on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import rose_trace as rose
from rose_exec.digest import SAMPLE_BYTES, content, digest
from rose_exec.fuzz import fuzz
from rose_exec.sanitizer.findings import Checks
from rose_exec.sanitizer.kept import Kept
from rose_exec.sanitizer.watch import Watch
from tests.rose_exec.sanitizer.cases import Case
from tests.rose_exec.sanitizer.verdict import assert_found, assert_right, compared
from tests.rose_exec.sanitizer.wrong import ROWS, Build, rollout_of
from tests.rose_exec.sanitizer.wrong_device import (
    Base,
    acting,
    cases,
    right,
    start_on,
    summed,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

DEVICE = "cuda"
MILLISECOND = 1_900_000  # cycles, at some 1.9 GHz
cuda: Any = torch.cuda  # `_sleep` and streams have no types


@pytest.mark.parametrize("case", cases(DEVICE), ids=lambda case: case.name)
def test_a_wrong_program_is_found(case: Case) -> None:
    assert_found(case)


@pytest.mark.parametrize("seed", [None, 3], ids=["program order", "another order"])
def test_a_right_program_is_right(seed: int | None) -> None:
    assert_right(right(DEVICE), Checks(seed=seed))


def test_fuzzing_agrees_with_the_native_run() -> None:
    fuzzed = fuzz(right(DEVICE), seeds=range(3))
    assert fuzzed.differences == ()


# What is written late, or elsewhere ---------------------------------------------------------------


@rose.component(name="policy")
class Late(Base):
    """Returns long before its device is through; keeps a copy in pinned host memory."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.host = torch.zeros(ROWS, 3, pin_memory=True)
        self.aside = cuda.Stream()

    @rose.node(updates="seen")
    def act(self, obs: Any) -> Any:
        self.aside.wait_stream(cuda.current_stream())
        with cuda.stream(self.aside):
            cuda._sleep(20 * MILLISECOND)
            out = self.net(obs)
            self.host.copy_(out, non_blocking=True)
        cuda.current_stream().wait_stream(self.aside)
        out.record_stream(cuda.current_stream())
        return out * 1.0

    @rose.node(reads="weights")
    def judge(self, obs: Any) -> Any:
        return self.net(obs).tanh()


def late(device: str) -> Build:
    def build() -> Callable[[], Any]:
        policy = Late(device)

        def step(obs: Any, t: int) -> Any:
            out = policy.judge(policy.act(obs))
            return out, out

        return rollout_of(step, start_on(device), summed)

    return build


def test_work_that_a_body_leaves_behind_is_its_own() -> None:
    checked = compared(late(DEVICE))
    assert checked.findings == ()


def test_glue_on_a_stream_of_its_own() -> None:
    """Bodies run on the stream that the glue was on; what differs otherwise depends on luck."""

    def build() -> Callable[[], Any]:
        iteration = right(DEVICE)()
        aside = cuda.Stream()

        def run() -> Any:
            aside.wait_stream(cuda.current_stream())
            with cuda.stream(aside):
                cuda._sleep(20 * MILLISECOND)
                losses, epochs = iteration()
                total = sum(epoch[1].sum() for epoch in epochs) + sum(losses)
            cuda.current_stream().wait_stream(aside)
            return total * 1.0

        return run

    assert_right(build)


def test_a_look_waits_for_no_other_stream() -> None:
    kept, policy = Kept(1 << 24), Base(DEVICE)
    kept.watch.add_component("policy", policy)
    kept.look()
    kept.look()
    aside = cuda.Stream()
    with cuda.stream(aside):
        cuda._sleep(500 * MILLISECOND)
    assert kept.look() == ([], ())
    assert not aside.query()
    aside.synchronize()


# How it is looked at ------------------------------------------------------------------------------


def test_equal_bits_have_equal_digests_wherever_they_are() -> None:
    here = torch.arange(1 << 20, dtype=torch.float32)
    there = here.to(DEVICE)
    for full_bytes in (None, 1 << 16, 1 << 30):
        assert digest(here, full_bytes) == digest(there, full_bytes)
    images = torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last)
    for value in (images, images[:, 1], here.reshape(1024, 1024).T, here[:0], here[5]):
        assert digest(value, 256) == digest(value.to(DEVICE), 256)
    complex_values = torch.randn(64, dtype=torch.complex64)
    assert digest(complex_values.conj()) == digest(complex_values.to(DEVICE).conj())


def test_of_large_contents_only_samples_leave_the_device() -> None:
    there = torch.zeros(1 << 26, dtype=torch.uint8, device=DEVICE)
    found = content(there, 1 << 20)
    assert found is not None
    assert found.nbytes == 64 * SAMPLE_BYTES
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    digest(there, 1 << 20)
    assert cuda.max_memory_allocated() - before <= 1 << 20


@rose.component(name="policy")
class WritesTable(Base):
    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.table = torch.zeros(1 << 20, device=device)

    @rose.node(reads="weights")
    def act(self, obs: Any) -> Any:
        self.table[12345] += 1.0
        return self.net(obs)


def test_a_write_between_the_samples_is_known_by_the_version() -> None:
    build = acting(WritesTable, DEVICE)
    case = Case(
        "table", build, "undeclared write", "root/rollout/interact/policy.act", "policy.table"
    )
    assert_found(case, Checks(full_bytes=1 << 16))


def test_every_generator_of_every_device_is_known() -> None:
    cuda.init()
    for index in range(cuda.device_count()):
        kept = Kept(1 << 24)
        torch.rand(1, device=f"cuda:{index}")
        assert kept.look() == ([], ("cuda",))
        assert kept.look() == ([], ())


def test_what_cannot_be_looked_into_is_told_and_no_error() -> None:
    watch = Watch()
    policy: Any = Base(DEVICE)
    policy.sparse = torch.eye(3, device=DEVICE).to_sparse()
    watch.add_component("policy", policy)
    assert "policy.net.weight" in watch.look()
    assert set(watch.unseen) == {"policy.sparse"}


# CUDA graphs --------------------------------------------------------------------------------------


@rose.component(name="policy")
class Captures(Base):
    """Captures a graph, calling a node of its own, and replays it."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.given = torch.zeros(ROWS, 3, device=device)
        self.output = torch.zeros(ROWS, 3, device=device)
        self.graph: Any = None

    @rose.node(reads="weights")
    def scale(self, values: Any) -> Any:
        return self.net(values) * 2.0

    @rose.node(reads="weights", updates="buffers")
    def act(self, obs: Any) -> Any:
        self.given.copy_(obs)
        if self.graph is None:
            aside = cuda.Stream()
            aside.wait_stream(cuda.current_stream())
            with cuda.stream(aside):
                self.scale(self.given)
            cuda.current_stream().wait_stream(aside)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.output = self.scale(self.given)
        self.graph.replay()
        return self.output.clone()


def test_a_capture_is_not_broken_by_looking() -> None:
    checked = compared(acting(Captures, DEVICE))
    assert checked.findings == ()
    told = checked.notes["root/rollout/interact/policy.act/policy.scale"]
    assert told == "runs while a CUDA graph is captured, unwatched"
