"""Process workers: where large values stay, who may see what, and that nothing is left."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Generator, Iterator

import numpy as np
import psutil
import pytest
import torch

from rose_exec.memory.arena import CHUNK_BYTES
from rose_exec.memory.held import Held, ValueLost
from rose_exec.wire import Blob, Concat, Object, Rows, Wire, decode
from rose_exec.workers import process
from rose_exec.workers.inline import InlineWorker
from rose_exec.workers.process import ProcessWorker, WorkerDied
from tests.rose_exec import worker_requests as requests
from tests.rose_exec.worker_requests import ask, plain, workers

COUNT = 100_000  # 400 kB: shared


@contextlib.contextmanager
def spawned(count: int) -> Generator[list[ProcessWorker]]:
    """Workers that are started as a program starts them."""
    with contextlib.ExitStack() as open_workers:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process, "START_METHOD", "spawn")
            made = open_workers.enter_context(workers(count))
        yield made


@pytest.fixture(scope="module")
def pair() -> Iterator[list[ProcessWorker]]:
    with workers(2) as made:
        yield made


@pytest.fixture
def two(pair: list[ProcessWorker]) -> list[ProcessWorker]:
    assert [settled(worker) for worker in pair] == [0, 0]
    return pair


def settled(worker: ProcessWorker) -> int:
    """Bytes that a worker shares, after what nobody refers to any more has been given back."""
    gc.collect()
    return plain(ask(worker, requests.used_bytes))


def held(answer: Wire) -> Held:
    assert isinstance(answer, Held)
    return answer


def test_a_large_result_stays_where_it_was_made(two: list[ProcessWorker]) -> None:
    first, second = two
    result = ask(first, requests.ramp, COUNT)
    place = held(result.leaves[0])
    assert (place.chunk.owner, place.nbytes) == (first.owner, 4 * COUNT)
    expected = requests.total(requests.ramp(COUNT))
    for worker in (second, first, InlineWorker("inline", frozenset())):
        assert plain(ask(worker, requests.total, place)) == expected
    assert torch.equal(plain(result), requests.ramp(COUNT))
    assert settled(first) == place.place.nbytes
    assert settled(second) == 0
    del result, place
    assert settled(first) == 0


def test_a_small_result_travels_as_bytes(two: list[ProcessWorker]) -> None:
    assert isinstance(ask(two[0], requests.ramp, 10).leaves[0], Blob)


def test_what_a_consumer_writes_nobody_else_sees(two: list[ProcessWorker]) -> None:
    first, second = two
    place = ask(first, requests.ramp, COUNT).leaves[0]
    for worker in (first, second, InlineWorker("inline", frozenset())):
        changed = plain(ask(worker, requests.negated, place))
        assert torch.equal(changed, -requests.ramp(COUNT))
        found = decode(place)
        assert torch.equal(found, requests.ramp(COUNT))
        found.zero_()
    mine = requests.ramp(COUNT)
    assert torch.equal(plain(ask(first, requests.negated, mine)), -mine)
    assert torch.equal(mine, requests.ramp(COUNT))


def test_merges_and_slices_are_carried_out_by_the_consumer(two: list[ProcessWorker]) -> None:
    first, second = two
    a = ask(first, requests.ramp, COUNT).leaves[0]
    b = ask(second, requests.ramp, COUNT).leaves[0]
    both = Concat((a, Rows(b, 10, COUNT), Object(torch.ones(3))))
    expected = torch.cat([requests.ramp(COUNT), requests.ramp(COUNT)[10:], torch.ones(3)])
    for worker in two:
        answer = ask(worker, requests.negated, Rows(both, 5, COUNT + 5))
        assert torch.equal(plain(answer), -expected[5 : COUNT + 5])
    assert torch.equal(decode(both), expected)


def test_what_the_program_sends_is_shared_until_it_has_been_read(two: list[ProcessWorker]) -> None:
    before = requests.used_bytes()  # of programs that other tests still hold
    value = np.arange(float(COUNT))
    answer = two[0].run(requests.job(np.sum, value)).result(600)
    assert plain(answer) == value.sum()
    gc.collect()
    assert requests.used_bytes() <= before


def test_layout_and_gradients_arrive(two: list[ProcessWorker]) -> None:
    value = torch.zeros(8, 3, 64, 64).to(memory_format=torch.channels_last).requires_grad_()
    found = plain(ask(two[0], requests.described, value))
    assert found == ("torch.float32 cpu", value.stride(), True)
    graph = (torch.zeros(COUNT, requires_grad=True) * 2,)
    with pytest.raises(Exception, match=r"expected no autograd graph"):
        ask(two[0], requests.described, *graph)
    assert plain(ask(two[0], requests.described, graph[0].detach()))[2] is False


def test_memory_that_became_too_small_is_given_back(two: list[ProcessWorker]) -> None:
    first, second = two
    place = ask(first, requests.ramp, COUNT).leaves[0]
    assert plain(ask(second, requests.total, place)) == plain(ask(first, requests.total, place))
    before = plain(ask(second, requests.opened))
    del place
    assert settled(first) == 0
    big = ask(first, requests.ramp, CHUNK_BYTES // 4 + 1)  # no room for it in the only chunk
    assert held(big.leaves[0]).nbytes > CHUNK_BYTES
    assert plain(ask(second, requests.opened)) == before - 1
    ask(first, requests.used_bytes)  # by now it knows that all others have closed it
    assert plain(ask(first, requests.chunks)) == 1


def test_values_outlive_a_session_that_ends() -> None:
    with workers(1) as made:
        answer = ask(made[0], requests.ramp, COUNT)
    assert torch.equal(plain(answer), requests.ramp(COUNT))
    with workers(1) as made:
        assert plain(ask(made[0], requests.total, answer.leaves[0])) > 0


def test_host_values_outlive_a_worker_that_dies() -> None:
    with workers(2) as made:
        answer = ask(made[0], requests.ramp, COUNT)
        other = ask(made[1], requests.ramp, COUNT).leaves[0]
        with pytest.raises(WorkerDied):
            ask(made[0], requests.killed, other)
        assert torch.equal(plain(answer), requests.ramp(COUNT))
        assert plain(ask(made[1], requests.total, answer.leaves[0])) > 0
        with pytest.raises(WorkerDied):
            ask(made[0], requests.total, other)
        made[0]._reader.join()  # it lets go of what the dead one was given
        del other
        assert settled(made[1]) == 0  # what the dead one was given counts no more


def test_a_value_that_is_gone_says_so() -> None:
    with workers(1) as made:
        answer = ask(made[0], requests.ramp, COUNT)
        place = held(answer.leaves[0])
        gone = Held(place.chunk, place.place, place.nbytes, place.device, place.layout)
    with pytest.raises(ValueLost) as caught:
        decode(gone)
    assert str(caught.value) == (
        "A value of worker worker-0: expected it to be there, got a worker that has ended. Use values "
        "before the session closes, or run the iteration again."
    )


def left() -> tuple[list[str], list[int], list[str]]:
    """Shared memory by name, processes and what is open."""
    gc.collect()
    files = [name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "rose-"))]
    open_files: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            open_files.append(os.readlink(f"/proc/self/fd/{name}"))
    children = psutil.Process().children(recursive=True)
    return files, sorted(child.pid for child in children), sorted(open_files)


def test_nothing_is_left_of_a_session(two: list[ProcessWorker]) -> None:
    assert torch.equal(plain(ask(two[0], requests.ramp, COUNT)), requests.ramp(COUNT))
    assert settled(two[0]) == 0  # what sessions share and what stays for good is there by now
    before = left()
    with spawned(2) as made:
        places = ask(made[0], requests.ramps, COUNT, 5).leaves
        assert plain(ask(made[1], requests.total, *places)) > 0
        assert requests.total(*[decode(place) for place in places]) > 0
        with pytest.raises(WorkerDied):
            ask(made[1], requests.killed, *places)
    del places, made
    assert left() == before
