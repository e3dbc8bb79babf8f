"""Percentages of whole processes: the SM counts behind them, and what a process of one can be asked."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rose_exec.quota.mps import PERCENTAGE, MpsDaemon, MpsError
from rose_exec.quota.mps_client import read_sms
from rose_exec.quota.mps_levels import MpsQuota, client_sms, sms_by_percent
from rose_exec.quota.quota import Quota
from rose_opt.measure import quota_levels

DAEMON = MpsDaemon.at(Path("/nowhere"))


def read(daemon: MpsDaemon, percent: int, device: int) -> int:
    """An H200: rounded down to pairs of SMs, and nothing below 3 %."""
    if percent < 3:
        raise MpsError("refused")
    return 132 * percent // 200 * 2


def test_levels_of_an_h200() -> None:
    found = sms_by_percent(DAEMON, read=read)
    assert list(found) == list(range(1, 101))
    assert (found[1], found[2], found[3], found[100]) == (0, 0, 2, 132)
    levels = quota_levels(found)
    assert [level.sms for level in levels[-3:]] == [128, 130, 132]
    assert [level.sms for level in levels] == sorted({sms for sms in found.values() if sms})


def test_only_the_percentages_asked_for_are_read() -> None:
    assert sms_by_percent(DAEMON, [80, 20, 80], read=read) == {20: 26, 80: 104}
    for percents in ([], [0, 50], [101]):
        with pytest.raises(MpsError, match=r"expected percents in 1\.\.100, got .*Leave them out"):
            sms_by_percent(DAEMON, percents, read=read)


def test_where_no_client_starts_the_reason_is_told_once() -> None:
    asked: list[int] = []

    def refuse(daemon: MpsDaemon, percent: int, device: int) -> int:
        asked.append(percent)
        raise MpsError("no device")

    with pytest.raises(MpsError, match="no device"):
        sms_by_percent(DAEMON, read=refuse)
    assert asked == [100]


class Driver:
    """A CUDA driver whose device has 66 SMs left, or that fails in one function."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*args: Any) -> int:
            if name == self.failing:
                return 805
            if name == "cuDeviceGetAttribute":
                args[0]._obj.value = 66
            return 0

        return call


def test_a_client_reads_its_sms(monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = iter((Driver(), Driver("cuInit")))

    def load(name: str) -> Driver:
        return next(drivers)

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert read_sms(0) == 66
    with pytest.raises(SystemExit, match="cuInit: CUDA error 805"):
        read_sms(0)


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="has a driver")
def test_a_client_that_does_not_start_says_why(
    control: Callable[..., None], tmp_path: Path
) -> None:
    control()
    running = MpsDaemon.at(tmp_path / "mps")
    running.start()
    try:
        with pytest.raises(MpsError) as refused:
            client_sms(running, 50)
    finally:
        running.stop()
    assert str(refused.value) == (
        "MPS client of 50 %: expected its SM count, got: libcuda.so.1: cannot open shared object file: "
        f"No such file or directory. The daemon's log is in {running.log}."
    )


def test_without_a_daemon_no_client_is_started(
    control: Callable[..., None], tmp_path: Path
) -> None:
    control()
    with pytest.raises(MpsError) as refused:
        client_sms(MpsDaemon.at(tmp_path), 50)
    assert str(refused.value) == (
        "MPS client of 50 %: expected a running daemon. MPS: expected an answer to 'get_server_list', got: "
        f"Cannot find MPS control daemon process. Its log is in {tmp_path}/log."
    )


def test_a_process_can_only_be_used_at_the_level_it_was_started_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quota: Quota = MpsQuota(DAEMON, quota_levels({79: 104, 100: 132}))
    limited, whole = quota.levels
    assert quota.replaces_worker
    assert PERCENTAGE not in quota.environment()
    assert quota.environment(whole)[PERCENTAGE] == "100"
    monkeypatch.setenv(PERCENTAGE, quota.environment(limited)[PERCENTAGE])
    with quota.limit(limited):
        pass
    with pytest.raises(MpsError) as refused, quota.limit(None):
        pass
    assert str(refused.value) == (
        "MPS: expected a process of 100 %, got one that was started at 79 %. "
        "Replace the worker; the limit is fixed for its life."
    )
    monkeypatch.delenv(PERCENTAGE)
    with quota.limit(None), quota.limit(whole):
        pass
    with pytest.raises(
        MpsError, match="expected a process of 79 %, got one that was started at 100 %"
    ):
        quota.limit(limited)
