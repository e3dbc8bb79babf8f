"""SM quotas of whole processes: MPS percentages, and the distinct SM counts behind them.

The limit is fixed for a client's life, so another level needs another process.

Paper: §4.4 (levels k = 1..Q).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from rose_exec.quota.mps import PERCENTAGE, MpsDaemon, MpsError
from rose_opt.measure import QuotaLevel, quota_levels

CLIENT = Path(__file__).with_name("mps_client.py")
CLIENT_TIMEOUT_S = 30.0  # ours
AT_ONCE = 4  # ours: clients that start together
AGAIN = 2  # ours: how often one that did not start beside others is started alone

ReadSms = Callable[[MpsDaemon, int, int], int]
"""Reads the SMs that a fresh client of (daemon, percent, device) sees."""


def client_sms(daemon: MpsDaemon, percent: int, device: int = 0) -> int:
    """SMs that a fresh client of one percentage may use.

    Args:
        daemon: The daemon.
        percent: Its active thread percentage [%, 1..100].
        device: Device number, as CUDA counts.

    Returns:
        Number of SMs.

    Raises:
        MpsError: If there is no daemon, or the client does not start or does not answer.
    """
    subject = f"MPS client of {percent} %"
    status = daemon.status()
    if not status.running:  # CUDA would run the client without MPS, and without a limit
        raise MpsError(f"{subject}: expected a running daemon. {status.detail}")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(CLIENT), str(device)],
            env=os.environ | daemon.environment(percent),
            capture_output=True,
            text=True,
            timeout=CLIENT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MpsError(
            f"{subject}: expected its SM count within {CLIENT_TIMEOUT_S:.0f} s, got none. "
            f"The daemon's log is in {daemon.log}."
        ) from error
    if done.returncode or not done.stdout.strip().isdigit():
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise MpsError(
            f"{subject}: expected its SM count, got: {said}. The daemon's log is in {daemon.log}."
        )
    return int(done.stdout)


def sms_by_percent(
    daemon: MpsDaemon,
    percents: Iterable[int] = range(1, 101),
    device: int = 0,
    read: ReadSms = client_sms,
) -> dict[int, int]:
    """SMs behind each percentage, each read by a fresh client; 0 where none starts.

    Args:
        daemon: The daemon.
        percents: Percentages to read [%].
        device: Device number, as CUDA counts.
        read: Reads one.

    Returns:
        SMs by percent, what `quota_levels` takes.

    Raises:
        MpsError: If no client starts at all: the reason of the largest percentage.
    """
    wanted = sorted(set(percents), reverse=True)
    if not wanted or wanted[0] > 100 or wanted[-1] < 1:
        raise MpsError(
            f"sms_by_percent: expected percents in 1..100, got {wanted}. Leave them out."
        )
    found = {wanted[0]: read(daemon, wanted[0], device)}  # where this fails, so do the others

    def read_or_none(percent: int) -> int:
        with contextlib.suppress(MpsError):
            return read(daemon, percent, device)
        return 0

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found |= dict(zip(wanted[1:], pool.map(read_or_none, wanted[1:]), strict=True))
    for _ in range(AGAIN):  # clients that start together may find the daemon's server not ready
        for percent in [percent for percent, sms in found.items() if not sms]:
            found[percent] = read_or_none(percent)
    return dict(sorted(found.items()))


class MpsQuota:
    """Limits whole processes under one daemon.

    Args:
        daemon: The daemon that workers are clients of.
        levels: Its levels; `MpsQuota.find` reads them.
    """

    replaces_worker = True

    def __init__(self, daemon: MpsDaemon, levels: Sequence[QuotaLevel]) -> None:
        self.daemon = daemon
        self.levels = tuple(levels)

    @classmethod
    def find(cls, daemon: MpsDaemon, device: int = 0) -> MpsQuota:
        """Read the levels of a device: a hundred fresh clients, once per GPU.

        Raises:
            MpsError: If no client starts.
        """
        return cls(daemon, quota_levels(sms_by_percent(daemon, device=device)))

    def environment(self, level: QuotaLevel | None = None) -> dict[str, str]:
        """Variables that make a new process a client of this level."""
        return self.daemon.environment(None if level is None else level.percent)

    def limit(self, level: QuotaLevel | None) -> AbstractContextManager[object]:
        """Check that this process was started at the level: it cannot change any more.

        Raises:
            MpsError: If it was started at another one.
        """
        wanted = 100 if level is None else level.percent
        started = int(os.environ.get(PERCENTAGE, "100"))
        if started != wanted:
            raise MpsError(
                f"MPS: expected a process of {wanted} %, got one that was started at {started} %. "
                "Replace the worker; the limit is fixed for its life."
            )
        return contextlib.nullcontext()
