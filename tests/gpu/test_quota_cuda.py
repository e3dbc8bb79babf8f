"""SM quotas on a device: partitions limit a stream, percentages limit a process, and both give way cleanly."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psutil
import pytest
import torch

from rose_exec.quota.green import GreenQuota
from rose_exec.quota.mps import PID_FILE, MpsDaemon, MpsError, daemon
from rose_exec.quota.mps_levels import client_sms, sms_by_percent
from rose_opt.measure import quota_levels

pytestmark = pytest.mark.filterwarnings("default")
cuda: Any = torch.cuda


def sms() -> int:
    return int(cuda.get_device_properties(0).multi_processor_count)


@pytest.fixture
def quota() -> Generator[GreenQuota]:
    made = GreenQuota()
    yield made
    torch.cuda.synchronize()
    made.close()


@pytest.fixture
def big() -> torch.Tensor:
    return torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)


def median_ms(block: Callable[[], AbstractContextManager[object]], big: torch.Tensor) -> float:
    """Of products within a block: from submission until the caller's stream is through."""
    out = torch.empty_like(big)
    taken: list[float] = []
    for _ in range(8):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with block():
            torch.mm(big, big, out=out)
            torch.mm(big, big, out=out)
        torch.cuda.current_stream().synchronize()
        taken.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(taken[3:])


@pytest.mark.gpu
def test_a_partition_slows_big_products_as_it_should(quota: GreenQuota, big: torch.Tensor) -> None:
    whole = median_ms(nullcontext, big)
    half = min(quota.levels, key=lambda level: abs(level.sms - sms() // 2))
    limited = median_ms(lambda: quota.limit(half), big)
    unlimited = median_ms(lambda: quota.limit(quota.levels[-1]), big)
    again = median_ms(nullcontext, big)
    print({"sms": half.sms, "whole": whole, "limited": limited, "unlimited": unlimited})
    assert 1.5 < limited / whole < 2.6
    assert unlimited / whole < 1.15
    assert again / whole < 1.15  # the limit lasts as long as its block


@pytest.mark.gpu
def test_levels_are_made_as_asked_and_quickly(quota: GreenQuota) -> None:
    assert quota.levels[-1].sms == sms()
    assert quota.levels[0].sms <= 8
    driver: Any = pytest.importorskip("cuda.bindings.driver")
    spent: list[float] = []
    for level in quota.levels[:-1]:
        begin = time.perf_counter()
        stream = quota.stream(level)
        spent.append((time.perf_counter() - begin) * 1e3)
        code, green = driver.cuStreamGetGreenCtx(stream.cuda_stream)
        assert not int(code)
        code, resource = driver.cuGreenCtxGetDevResource(
            green, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        )
        assert not int(code)
        assert int(resource.sm.smCount) == level.sms
    print({"open_ms": spent})
    assert statistics.median(spent) < 50


@pytest.mark.gpu
def test_a_block_is_ordered_with_the_callers_stream(quota: GreenQuota) -> None:
    x = torch.zeros(1 << 20, device="cuda")
    for turn in range(20):
        level = quota.levels[turn % (len(quota.levels) - 1)]
        cuda._sleep(2_000_000)
        x.add_(1)  # the block must see it
        with quota.limit(level):
            cuda._sleep(2_000_000)
            x.mul_(2)
        x.sub_(1)  # and this the block
    expected = 0
    for _ in range(20):
        expected = (expected + 1) * 2 - 1
    assert x.min().item() == x.max().item() == float(expected)


@pytest.mark.gpu
def test_results_within_a_limit_are_those_without(quota: GreenQuota) -> None:
    x = torch.randn(64, 1024, device="cuda")
    expected = torch.softmax(x, -1)
    with quota.limit(quota.levels[0]):
        found = torch.softmax(x, -1)
    assert torch.equal(found, expected)


@pytest.mark.mps
def test_percentages_of_fresh_clients() -> None:
    with daemon() as running:
        found = sms_by_percent(running, (10, 20, 25, 50, 80, 90, 100))
    print(found)
    assert found[100] == sms()
    counts = list(found.values())
    assert counts == sorted(counts)
    assert abs(found[50] - sms() / 2) <= 2
    assert len(quota_levels(found)) == 7


@pytest.mark.mps
def test_a_client_of_a_dead_daemon_is_refused() -> None:
    with daemon() as running:
        pid = int((running.pipe / PID_FILE).read_text())
        assert client_sms(running, 50) < sms()
        assert running.status().servers
        running.stop()
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            psutil.Process(pid).wait(timeout=20)
        assert not running.status().running
        with pytest.raises(MpsError, match="MPS client of 50 %: expected a running daemon"):
            client_sms(running, 50)


PARTITION_IN_CLIENT = """
import torch
from rose_exec.quota.green import GreenQuota
quota = GreenQuota()
x = torch.ones(1024, device="cuda")
with quota.limit(quota.levels[len(quota.levels) // 2]):
    x.mul_(3)
print(int(x.sum().item()), len(quota.levels))
"""


@pytest.mark.mps
def test_partitions_inside_an_mps_client() -> None:
    with daemon() as running:
        told = client(running, PARTITION_IN_CLIENT)
        status = running.status()
    assert told.split() == ["3072", str(len(GreenQuota().levels))]
    assert status.running


def client(running: MpsDaemon, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | running.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
