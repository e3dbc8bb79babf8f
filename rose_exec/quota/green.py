"""SM quotas of a node or an overlap region: partitions of the process's own device, changed live.

Nothing is restarted, and outside the block all SMs are there. Inside an MPS client they limit that client
beside others.

Paper: none; §4.4 limits whole processes (docs/quotas.md compares).
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Generator
from typing import Any

from rose_exec.quota.partitions import Partitions, TorchPartitions
from rose_exec.quota.quota import QuotaError
from rose_opt.measure import QuotaLevel, quota_levels


class GreenQuota:
    """Limits what a thread submits within a block.

    A level is opened at first use and kept: changing it costs nothing after that. Blocks of one level and
    one lane share a stream and so run one after the other; give branches that overlap lanes of their own.

    Args:
        device: Device number, as torch counts.
        partitions: Where partitions come from; torch's green contexts by default.

    Raises:
        QuotaError: If there is no CUDA device, or torch cannot make partitions.
    """

    replaces_worker = False

    def __init__(self, device: int = 0, partitions: Partitions | None = None) -> None:
        self._partitions = TorchPartitions(device) if partitions is None else partitions
        self._open: dict[tuple[int, str], tuple[object, Any]] = {}
        self._levels: tuple[QuotaLevel, ...] = ()
        self._lock = threading.Lock()

    @property
    def levels(self) -> tuple[QuotaLevel, ...]:
        """Sizes that the device can be split into, as levels; percents are of its SMs."""
        if not self._levels:
            sizes = self._partitions.sizes()
            self._levels = quota_levels({math.ceil(100 * sms / sizes[-1]): sms for sms in sizes})
        return self._levels

    def level(self, sms: int) -> QuotaLevel:
        """The level of a size [SMs].

        Raises:
            QuotaError: If the device cannot be split so.
        """
        for level in self.levels:
            if level.sms == sms:
                return level
        raise QuotaError(
            f"GreenQuota: expected one of the levels {_sizes(self.levels)} SMs, got {sms} SMs. "
            "Take a level of this device's own levels."
        )

    def environment(self, level: QuotaLevel | None = None) -> dict[str, str]:
        """Nothing: the limit is set inside the process, whatever the level."""
        return {}

    def stream(self, level: QuotaLevel, lane: str = "") -> Any:
        """The stream of a level; work on it uses no more SMs than the level has.

        Args:
            level: The level; the whole device is a stream without a partition.
            lane: Name of the branch; other lanes have other streams.

        Raises:
            QuotaError: If the level cannot be had here.
        """
        self.level(level.sms)  # a search may renumber some of them
        with self._lock:
            key = (level.sms, lane)
            if key not in self._open:
                whole = level.sms == self.levels[-1].sms
                self._open[key] = self._partitions.open(None if whole else level.sms)
            return self._open[key][1]

    @contextlib.contextmanager
    def limit(self, level: QuotaLevel | None, lane: str = "") -> Generator[Any]:
        """Limit what this thread submits within a block.

        The block starts after what the caller's stream has been given, and the caller's stream goes on
        after it. What shall overlap with it goes to another stream.

        Args:
            level: The level; ``None`` leaves everything as it is.
            lane: Name of the branch.

        Yields:
            The stream, or ``None`` without a limit.

        Raises:
            QuotaError: If the level cannot be had here.
        """
        if level is None:
            yield None
            return
        with self._partitions.joined(self.stream(level, lane)) as stream:
            yield stream

    def close(self) -> None:
        """Give partitions back; their work must be done."""
        with self._lock:
            self._open.clear()


def _sizes(levels: tuple[QuotaLevel, ...]) -> str:
    return ", ".join(str(level.sms) for level in levels)
