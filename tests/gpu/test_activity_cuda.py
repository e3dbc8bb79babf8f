"""Every source of activity on a real device: idle, then busy with big matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rose_trace import activity
from rose_trace.activity import devices
from rose_trace.activity.kernels import Kernels

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

Sample = tuple[str, str, int, int, float, bool]
IDLE_SECONDS = 2.0
BUSY_SECONDS = 4.0
cuda: Any = torch.cuda  # its properties have no type


@pytest.fixture(scope="module")
def factors() -> list[torch.Tensor]:
    """One big matrix on every device; everything is warm."""
    made = [
        torch.randn(8192, 8192, device=f"cuda:{k}", dtype=torch.bfloat16)
        for k in range(torch.cuda.device_count())
    ]
    multiply(made, time.time_ns() + 500_000_000)
    return made


def multiply(factors: list[torch.Tensor], until_ns: int) -> None:
    while time.time_ns() < until_ns:
        for factor in factors:
            for _ in range(4):
                torch.mm(factor, factor)
        for k in range(len(factors)):
            torch.cuda.synchronize(k)


def phases(factors: list[torch.Tensor]) -> tuple[int, int, int]:
    """Idle, then busy; the moments at which they begin and end [Unix ns]."""
    begin = time.time_ns()
    time.sleep(IDLE_SECONDS)
    middle = time.time_ns()
    multiply(factors, middle + round(BUSY_SECONDS * 1e9))
    return begin, middle, time.time_ns()


def mean(samples: list[Sample], device: str, start_ns: int, end_ns: int) -> float:
    """Time-weighted mean of the samples inside."""
    inside = [
        (end - start, share)
        for _, name, start, end, share, _ in samples
        if name == device and start >= start_ns and end <= end_ns
    ]
    assert inside, f"no sample of {device} inside"
    return sum(ns * share for ns, share in inside) / sum(ns for ns, _ in inside)


@pytest.mark.parametrize("name", ["pm-sampling", "gpm", "nvml-utilisation", "kernels"])
def test_source(name: str, factors: list[torch.Tensor]) -> None:
    known = next(item for item in activity.SOURCES if item.name == name)
    reason = known.unavailable()
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    source = known.make()
    samples: list[Sample] = []
    source.start(samples.append)
    begin, middle, end = phases(factors)
    if name == "kernels":  # its first window opens with the recording, its last ends with it
        multiply(factors, time.time_ns() + 500_000_000)
    source.stop()
    edge = 1_000_000_000  # NVML averages over up to a second
    found: dict[str, Any] = {}
    for device in (f"cuda:{k}" for k in range(torch.cuda.device_count())):
        found[device] = (
            mean(samples, device, begin + edge // 2, middle - edge // 4),
            mean(samples, device, middle + edge, end - edge // 4),
        )
    lengths = sorted(e - s for _, _, s, e, _, _ in samples)
    print(
        f"{name}: idle and busy {found}; {len(samples)} samples, median {lengths[len(lengths) // 2]} ns"
    )
    assert {sample[0] for sample in samples} == {name}
    assert {sample[5] for sample in samples} == {source.estimate}
    assert lengths[len(lengths) // 2] >= source.resolution_ns * 0.9
    assert all(0.0 <= sample[4] <= 1.0 for sample in samples)
    for idle, busy in found.values():
        assert idle < 0.1
        assert busy > 0.5


def test_auto_takes_the_best_that_works_and_says_why() -> None:
    source, about = activity.choose("auto")
    print(about)
    assert source is not None
    order = [known.name for known in activity.SOURCES]
    assert list(about["rejected"]) == order[: order.index(about["source"])]
    assert about["source"] in ("pm-sampling", "gpm", "nvml-utilisation")


def test_cuda_and_nvml_mean_the_same_gpu() -> None:
    assert devices.missing() is None
    seen = devices.visible()
    assert [name for name, _ in seen] == [f"cuda:{k}" for k in range(torch.cuda.device_count())]
    for k, (_, handle) in enumerate(seen):
        properties = cuda.get_device_properties(k)
        uuid = devices.nvml.nvmlDeviceGetUUID(handle)
        assert str(properties.uuid) in (uuid if isinstance(uuid, str) else uuid.decode())


def test_uuids_select_as_numbers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.missing() is None
    uuids = [devices.nvml.nvmlDeviceGetUUID(handle) for _, handle in devices.visible()]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(reversed(uuids)))
    found = [devices.nvml.nvmlDeviceGetUUID(handle) for _, handle in devices.visible()]
    assert found == uuids[::-1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuids[-1][:12])
    assert len(devices.visible()) == 1


def test_kernels_of_every_thread_count(factors: list[torch.Tensor]) -> None:
    """The profiler runs on a thread of its own; the program's kernels are launched elsewhere."""
    if Kernels.unavailable() is not None:
        pytest.skip(str(Kernels.unavailable()))
    samples: list[Sample] = []
    write: Callable[[Sample], None] = samples.append
    source = Kernels(window_seconds=0.5)
    source.start(write)
    begin = time.time_ns()
    multiply(factors[:1], begin + 2_000_000_000)
    end = time.time_ns()
    source.stop()
    assert mean(samples, "cuda:0", begin + 200_000_000, end - 600_000_000) > 0.5
    covered = sum(e - s for _, name, s, e, _, _ in samples if name == "cuda:0")
    print(f"kernels: {covered / (end - begin):.2f} of the time covered with windows of 0.5 s")
    assert covered > 0.5 * (end - begin)
