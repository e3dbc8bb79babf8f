"""Process workers on a CUDA device: where tensors stay, when they are there, and that nothing is left."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import psutil
import pytest
import torch

from rose_exec.memory.held import Held
from rose_exec.memory.here import here
from rose_exec.replay import Replay, replay
from rose_exec.wire import Concat, Object, Rows, decode, for_process
from rose_exec.workers.inline import InlineWorker
from rose_exec.workers.process import ProcessWorker, WorkerDied
from rose_trace.component import program
from tests.gpu.worker_programs import Training, broken, filled, slow_ramp, slow_total
from tests.rose_exec import worker_requests as requests
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.worker_requests import ask, plain, workers

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

MIB = 1 << 20
SIZES = {"1 KB": 256, "1 MB": 1 << 18, "100 MB": 25 << 20}


@pytest.fixture(scope="module")
def pair() -> Iterator[list[ProcessWorker]]:
    with workers(2) as made:
        yield made


def shared_bytes(made: list[ProcessWorker]) -> int:
    """Bytes that workers share, once their devices have had time to read what nobody refers to."""
    deadline = time.monotonic() + 10.0
    while True:
        torch.cuda.synchronize()
        here().settle()
        gc.collect()
        shared = sum(plain(ask(worker, requests.used_bytes)) for worker in made)
        if not shared or time.monotonic() > deadline:
            return shared


@pytest.mark.parametrize("size", SIZES)
def test_a_tensor_stays_on_the_device_of_its_worker(pair: list[ProcessWorker], size: str) -> None:
    first, second = pair
    count = SIZES[size]
    result = ask(first, requests.ramp, count, "cuda:0")
    place = result.leaves[0]
    assert isinstance(place, Held)
    assert (place.device, place.chunk.owner) == ("cuda:0", first.owner)
    expected = requests.total(requests.ramp(count, "cuda:0"))
    for worker in (first, second, InlineWorker("inline", frozenset())):
        assert plain(ask(worker, requests.total, place)) == expected
        kind, _, _ = plain(ask(worker, requests.described, place))
        assert kind == "torch.float32 cuda:0"
    found = plain(result)
    assert found.device == torch.device("cuda:0")
    assert torch.equal(found, requests.ramp(count, "cuda:0"))
    del result, place
    assert shared_bytes(pair) == 0


def test_what_a_consumer_writes_nobody_else_sees(pair: list[ProcessWorker]) -> None:
    first, second = pair
    ramp = requests.ramp(1000, "cuda:0")
    place = ask(first, requests.ramp, 1000, "cuda:0").leaves[0]
    for worker in (first, second, InlineWorker("inline", frozenset())):
        assert torch.equal(plain(ask(worker, requests.negated, place)), -ramp)
        found = decode(place)
        here().fence()
        assert torch.equal(found, ramp)
        found.zero_()
    mine = ramp.clone()
    assert torch.equal(plain(ask(second, requests.negated, mine)), -ramp)
    assert torch.equal(mine, ramp)


def test_merges_slices_and_layout(pair: list[ProcessWorker]) -> None:
    first, second = pair
    a = ask(first, requests.ramp, 1000, "cuda:0").leaves[0]
    b = ask(second, requests.ramp, 1000, "cuda:0").leaves[0]
    ones = torch.ones(3, device="cuda")
    both = Concat((a, Rows(b, 10, 1000), Object(ones)))
    ramp = requests.ramp(1000, "cuda:0")
    expected = torch.cat([ramp, ramp[10:], ones])
    for worker in pair:
        answer = ask(worker, requests.negated, Rows(both, 5, 1500))
        assert torch.equal(plain(answer), -expected[5:1500])
    images = torch.rand(2, 3, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    kind, strides, grad = plain(ask(first, requests.described, images.requires_grad_()))
    assert (kind, strides, grad) == ("torch.float32 cuda:0", images.stride(), True)


def test_host_return_is_not_readiness(pair: list[ProcessWorker]) -> None:
    first, second = pair
    count, delay_ms = 1 << 20, 400.0
    for worker in pair:  # contexts, kernels and mappings are there
        plain(ask(worker, slow_total, ask(first, slow_ramp, count, 1.0).leaves[0], 1.0))
    expected = requests.total(requests.ramp(count, "cuda:0"))
    begin = time.monotonic()
    place = ask(first, slow_ramp, count, delay_ms).leaves[0]
    answer = ask(second, slow_total, place, 1.0)
    submitted = time.monotonic() - begin
    assert float(plain(answer)) == expected  # the consumers waited, on the device
    done = time.monotonic() - begin
    print(f"submitted after {submitted * 1e3:.1f} ms, done after {done * 1e3:.1f} ms")
    assert submitted < delay_ms * 0.5e-3
    assert done > delay_ms * 0.8e-3


def test_a_buffer_lives_until_its_last_reader_is_done(pair: list[ProcessWorker]) -> None:
    first, second = pair
    count = 1 << 20
    expected = requests.total(requests.ramp(count, "cuda:0"))
    plain(ask(second, slow_total, ask(first, requests.ramp, count, "cuda:0").leaves[0], 1.0))
    for _ in range(5):
        busy = ask(second, slow_total, ask(first, requests.ramp, 8, "cuda:0").leaves[0], 100.0)
        # Nobody refers to the place any more, but the copy is queued behind 100 ms of work.
        late = ask(second, slow_total, ask(first, requests.ramp, count, "cuda:0").leaves[0], 1.0)
        gc.collect()
        overwritten = [ask(first, requests.ramps, count, 4, "cuda:0") for _ in range(3)]
        assert float(plain(late)) == expected
        del busy, overwritten


def test_a_cpu_consumer_gets_it_through_pinned_memory(pair: list[ProcessWorker]) -> None:
    from rose_exec.readiness import TaskId
    from rose_exec.refs import Output, Result, defer

    answer = ask(pair[0], slow_ramp, 1 << 20, 50.0)
    result = Result(TaskId(1), "node", (0,), leaves=answer.leaves)
    result.done.set()
    leaf = next(answer.structure.leaves())
    value = defer(Output(result, 0), leaf, lambda wanted: wanted.get()).cpu()
    assert (value.device.type, value.is_pinned()) == ("cpu", True)
    assert torch.equal(value, requests.ramp(1 << 20))


def test_without_ipc_tensors_travel_through_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSE_CUDA_IPC", "0")
    with workers(1) as made:
        mine = requests.ramp(1000, "cuda:0")
        assert not isinstance(for_process(Object(mine)), Held)
        answer = ask(made[0], requests.negated, mine)
        assert not isinstance(answer.leaves[0], Held)
        assert torch.equal(plain(answer), -mine)
        assert plain(answer).device == mine.device


def test_events_that_cannot_travel_are_waited_for(
    pair: list[ProcessWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = here().device
    monkeypatch.setattr(device, "_events_travel", False)
    monkeypatch.setattr(device, "_made", {})
    mine = slow_ramp(1 << 20, 50.0)
    place = for_process(Object(mine))
    assert isinstance(place, Held)
    assert place.ready is None
    assert torch.cuda.current_stream().query()
    assert plain(ask(pair[0], requests.total, place)) == requests.total(mine)


def test_out_of_memory_in_a_worker_is_one_error(pair: list[ProcessWorker]) -> None:
    first, second = pair
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory") as caught:
        ask(first, filled, 1000)
    assert f"Raised in worker {first.name}:" in "".join(caught.value.__notes__)
    place = ask(first, requests.ramp, 1000, "cuda:0").leaves[0]
    assert plain(ask(second, requests.total, place)) == 999 * 500


def test_a_lost_context_is_said_and_ends_with_its_worker() -> None:
    with workers(2) as made:
        place = ask(made[1], requests.ramp, 1000, "cuda:0").leaves[0]
        with pytest.raises(Exception, match=r"CUDA error|device-side assert") as caught:
            ask(made[0], broken)
        notes = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
        assert "expected a working CUDA context, got one that no longer works" in notes
        assert plain(ask(made[1], requests.total, place)) == 999 * 500
    assert not any(psutil.pid_exists(worker.pid or 0) for worker in made)


def test_values_outlive_their_workers_only_by_a_copy() -> None:
    torch.cuda.init()
    with workers(2) as made:
        kept = ask(made[0], requests.ramp, 1000, "cuda:0")
        lost = ask(made[1], requests.ramp, 1000, "cuda:0")
        with pytest.raises(WorkerDied):
            ask(made[1], requests.killed, kept.leaves[0])
        with pytest.raises(
            RuntimeError, match=r"expected it to be there, got a worker that has ended"
        ):
            plain(lost)
        assert plain(ask(made[0], requests.total, kept.leaves[0])) == 999 * 500
    assert torch.equal(plain(kept), requests.ramp(1000, "cuda:0"))


def device_bytes() -> int:
    """Memory in use on the device, by all processes."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def left() -> tuple[list[str], list[int], int]:
    here().settle()
    gc.collect()
    files = [name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "rose-"))]
    children = psutil.Process().children(recursive=True)
    return files, sorted(child.pid for child in children), torch.cuda.memory_allocated()


def test_nothing_is_left_of_a_session(pair: list[ProcessWorker]) -> None:
    def session() -> None:
        with workers(2) as made:
            places = ask(made[0], requests.ramps, 1 << 20, 5, "cuda:0").leaves
            assert plain(ask(made[1], requests.total, *places)) > 0
            assert requests.total(*[decode(place) for place in places]) > 0
            here().fence()
            plain(ask(made[1], requests.negated, torch.ones(1 << 20, device="cuda")))
            with pytest.raises(WorkerDied):
                ask(made[1], requests.killed, *places)

    session()
    before, bytes_before = left(), device_bytes()
    for _ in range(2):
        session()
    assert left() == before
    deadline = time.monotonic() + 10.0  # the driver takes a moment to free a dead process's memory
    while device_bytes() > bytes_before + 8 * MIB and time.monotonic() < deadline:
        gc.collect()
    assert device_bytes() <= bytes_before + 8 * MIB


def test_memory_is_used_again(pair: list[ProcessWorker]) -> None:
    first, second = pair
    totals = {plain(ask(first, requests.chunks))}
    for _ in range(30):
        place = ask(first, requests.ramp, 1 << 22, "cuda:0").leaves[0]  # 16 MiB, 480 in all
        plain(ask(second, requests.total, place))
        del place
        totals.add(plain(ask(first, requests.chunks)))
    assert max(totals) <= min(totals) + 2
    assert shared_bytes(pair) == 0


# Whole sessions ---------------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.device == b.device and torch.equal(a, b)
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.fixture
def training() -> Callable[
    ..., contextlib.AbstractContextManager[tuple[Replay, Training, Training]]
]:
    @contextlib.contextmanager
    def start(*processes: str) -> Generator[tuple[Replay, Training, Training]]:
        plan = observed_plan(lambda: Training().train, processes=processes)
        with program():
            native = Training()
        with replay(plan, strict=True) as session:
            yield session, Training(), native

    return start


@pytest.mark.parametrize("processes", [(), ("world",), ("policy",), ("world", "policy")])
def test_a_session_computes_what_the_program_computes(training: Any, processes: Any) -> None:
    with training(*processes) as (session, planned, native):
        for _ in range(3):
            found = planned.train()
            with session.paused():
                expected = native.train()
            assert same(found, expected)


def test_out_of_memory_in_a_session_does_not_end_it(training: Any) -> None:
    with training("world", "policy") as (session, planned, native):
        planned.orders = native.orders = {2: "oom"}
        with pytest.raises(torch.OutOfMemoryError) as caught:
            planned.train()
        assert "Raised by train/world.step" in "".join(caught.value.__notes__)
        with session.paused(), pytest.raises(torch.OutOfMemoryError):
            native.train()
        planned.orders = native.orders = {}
        found = planned.train()
        with session.paused():
            expected = native.train()
        assert same(found, expected)
