"""What one process shares another reads: layout, isolation, order, lifetime, and what happens when there is none."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from rose_exec.memory import device
from rose_exec.memory.arena import CHUNK_BYTES
from rose_exec.memory.chunk import HOST, Chunk, open_host
from rose_exec.memory.held import Held, Mapped, ValueLost
from rose_exec.memory.here import Memory
from tests.rose_exec.slow_device import NAME, Driver, Event, SlowDevice

BASE = torch.arange(24.0)
VALUES: dict[str, Any] = {
    "contiguous": BASE.view(4, 6),
    "transposed": BASE.view(4, 6).t(),
    "channels last": BASE.view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "with holes": BASE.view(4, 6)[:, ::2],
    "expanded": BASE[:3].expand(2, 3),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "bfloat16": BASE.bfloat16(),
    "bool": BASE > 3,
    "complex": torch.complex(BASE, -BASE),
    "conjugate": torch.complex(BASE, -BASE).conj(),
    "int64": BASE.long(),
    "parameter": torch.nn.Parameter(BASE.view(2, 12)),
    "array": np.arange(24.0).reshape(4, 6),
    "array, first axis fastest": np.asfortranarray(np.arange(24.0).reshape(4, 6)),
    "array with holes": np.arange(24, dtype=np.int16).reshape(4, 6)[::2, ::-1],
    "array of text": np.array(["a", "bcd"]),
    "array of dates": np.array(["2026-01-01"], dtype="datetime64[D]"),
}


@pytest.fixture(autouse=True)
def _everything_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose_exec.memory.outbox.SHARED_BYTES", 1)


def other(chunk: Chunk) -> Chunk:
    """A chunk as another process gets it."""
    again: Chunk = pickle.loads(pickle.dumps(chunk))
    if chunk.device == HOST:
        again.fd = os.dup(chunk.fd)
    return again


def sent(source: Memory, target: Memory, value: Any) -> Held:
    """Put a value into `source` and tell `target` of it."""
    held = source.outbox.put([value])[0]
    assert held is not None
    for chunk in source.outbox.news()[0]:
        target.inbox.learn(other(chunk))
    again: Held = pickle.loads(pickle.dumps(held))
    return again


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("device", [HOST, NAME])
def test_a_value_is_read_as_a_copy_of_it_would_be(name: str, device: str) -> None:
    value = VALUES[name]
    driver = Driver()
    source, target = (
        (Memory("a"), Memory("b"))
        if device == HOST
        else (Memory("a", SlowDevice(driver)), Memory("b", SlowDevice(driver)))
    )
    found = target.view(sent(source, target, value))
    copy: Any = value.copy() if type(value) is np.ndarray else value.detach().clone()
    assert (type(found), found.shape, found.dtype) == (type(copy), copy.shape, copy.dtype)
    assert content(found) == content(copy)
    if torch.is_tensor(copy):
        assert found.stride() == copy.stride()
    else:
        assert found.flags.c_contiguous or value.flags.f_contiguous


def content(value: Any) -> bytes:
    """The bits, in the order of the last axis first."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    flat = value.detach().resolve_conj().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    "value",
    [
        np.array([None, 1], dtype=object),
        np.zeros(3, dtype=[("a", "f4")]),
        torch.eye(3).to_sparse(),
        torch.empty(0),
        torch.zeros(2, dtype=torch.float32).as_subclass(type("Own", (torch.Tensor,), {})),
        3,
        "text",
    ],
    ids=["objects", "records", "sparse", "empty", "subclass", "number", "text"],
)
def test_what_is_no_plain_tensor_or_array_travels_as_bytes(value: Any) -> None:
    assert Memory("a").outbox.put([value]) == [None]


def test_small_host_values_travel_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose_exec.memory.outbox.SHARED_BYTES", 1000)
    held = Memory("a").outbox.put(
        [torch.zeros(249), torch.zeros(250), np.zeros(124), np.zeros(125)]
    )
    assert [item is None for item in held] == [True, False, True, False]


def test_a_later_value_does_not_touch_one_that_is_still_referred_to() -> None:
    source, target = Memory("a"), Memory("b")
    first = sent(source, target, torch.full((1000,), 1.0))
    second = sent(source, target, torch.full((1000,), 2.0))
    source.outbox.free(first.place)
    third = sent(source, target, torch.full((1000,), 3.0))
    assert third.place == first.place
    assert (target.view(second) == 2).all()
    assert (target.view(third) == 3).all()
    assert source.outbox.used_bytes == second.place.nbytes + third.place.nbytes


def test_reading_waits_for_the_producer_and_tells_when_it_is_over() -> None:
    driver = Driver()
    fast, slow = SlowDevice(driver), SlowDevice(driver)
    source, target = Memory("a", fast), Memory("b", slow)
    produced: list[str] = []
    fast.stream.submitted.append(lambda: produced.append("produced"))
    held = sent(source, target, torch.ones(5))
    target.view(held)
    assert slow.waits == [("a", held.ready.event if held.ready else -1)]
    slow.stream.submitted.append(lambda: produced.append("copied"))
    target.fence("job 1")
    assert (produced, target.inbox.finished(), target.inbox.reading) == ([], [], True)
    slow.stream.run_until(2)
    assert produced == ["produced", "copied"]
    assert (target.inbox.finished(), target.inbox.reading) == (["job 1"], False)


def test_a_device_that_no_longer_works_reads_nothing_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(event: Event) -> bool:
        raise RuntimeError("CUDA error")

    driver = Driver()
    source, target = Memory("a", SlowDevice(driver)), Memory("b", SlowDevice(driver))
    target.view(sent(source, target, torch.ones(5)))
    target.fence("job")
    monkeypatch.setattr(Event, "query", lost)
    monkeypatch.setattr(Event, "synchronize", lost)
    target.inbox.wait()
    assert not target.inbox.reading


def test_a_value_of_the_same_process_needs_no_event() -> None:
    device = SlowDevice(Driver())
    memory = Memory("a", device)
    held = memory.outbox.put([torch.ones(5)])[0]
    assert held is not None
    assert (memory.view(held) == 1).all()
    memory.fence("job")
    assert (device.waits, memory.inbox.reading) == ([], False)


def test_chunks_that_became_too_small_are_given_back() -> None:
    driver = Driver()
    source, target = Memory("a", SlowDevice(driver)), Memory("b", SlowDevice(driver))
    held = sent(source, target, torch.ones(5))
    target.view(held)
    source.outbox.free(held.place)
    big = source.outbox.put([torch.zeros(CHUNK_BYTES + 1, dtype=torch.uint8)])[0]
    assert big is not None
    made, retired = source.outbox.news()
    assert ([chunk.id for chunk in made], retired) == ([big.chunk], [held.chunk])
    target.inbox.close(held.chunk)
    assert driver.released == []
    source.outbox.release(held.chunk.number)
    assert driver.released == [held.chunk]
    with pytest.raises(
        ValueLost, match=r"^A value of worker a: expected it to be there, got a worker"
    ):
        target.view(held)
    source.close()
    assert driver.released == [held.chunk, big.chunk]


def test_a_copy_outlives_its_process() -> None:
    source, target = Memory("a"), Memory("b")
    held = sent(source, target, torch.ones(5))
    target.save(held)
    source.close()
    target.inbox.forget("a")
    assert (target.view(held) == 1).all()


def test_without_memory_to_share_values_travel_as_bytes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = Memory("sim#3", SlowDevice(Driver(), full=True))
    with caplog.at_level(logging.WARNING):
        assert memory.outbox.put([torch.ones(5), torch.ones(5)]) == [None, None]
    assert [record.getMessage() for record in caplog.records] == [
        "Worker sim#3: expected 32 MiB of slow:0 memory to share, got device full. Values travel as "
        "bytes, which is slower."
    ]


def test_host_memory_that_cannot_be_had_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = descriptors()
    memory = Memory("sim#3")
    for _ in range(2):
        assert memory.outbox.put([np.ones(50)]) == [None]
    assert len(caplog.records) == 1
    assert "[Errno 28] No space left on device. Values travel as bytes" in caplog.text
    assert descriptors() == before
    monkeypatch.undo()
    monkeypatch.setattr("rose_exec.memory.outbox.SHARED_BYTES", 1)
    assert memory.outbox.put([np.ones(50)])[0] is not None  # there may be some later


def test_nothing_is_left_open() -> None:
    before = descriptors()
    source, target = Memory("a"), Memory("b")
    held = [sent(source, target, np.ones(1000)) for _ in range(10)]
    assert all((target.view(item) == 1).all() for item in held)
    assert (
        len(descriptors()) == len(before) + 2 + 2
    )  # each side its file and what its mapping needs
    source.close()
    target.close()
    del source, target
    assert descriptors() == before


def descriptors() -> set[str]:
    """What is open, after what nobody refers to any more has been closed."""
    gc.collect()
    listed = os.listdir("/proc/self/fd")
    return {name for name in listed if os.path.exists(f"/proc/self/fd/{name}")}


def test_a_chunk_is_opened_by_its_descriptor_alone() -> None:
    source = Memory("a")
    held = source.outbox.put([np.arange(7)])[0]
    chunk = source.outbox.news()[0][0]
    assert held is not None
    assert dataclasses.astuple(pickle.loads(pickle.dumps(chunk)))[-1] == -1
    assert (held.within(Mapped(open_host(other(chunk)))) == np.arange(7)).all()


def test_a_chunk_of_a_device_that_no_longer_works_is_never_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    class Storage:
        def __del__(self) -> None:
            ended.append("closed")  # where torch ends the process

    answers = iter([True, False])

    def works(_: str) -> bool:
        return next(answers)

    monkeypatch.setattr(device, "_works", works)
    cuda = device.Cuda()
    for _ in range(2):
        opened = Storage()
        cuda.close("cuda:0", opened)
        del opened
        gc.collect()
        assert ended == ["closed"]
