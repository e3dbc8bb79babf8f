"""Quota levels: the distinct numbers of SMs that a process can be limited to.

MPS takes whole percents and rounds to what the hardware can partition, so several percents give the same
number of SMs. A level stands for one number of SMs; its percent is the smallest that gives it.

Paper: §4.4 (levels k = 1..Q).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PARTITION_SMS = 2
"""SMs that MPS hands out together on A100, A800 and H200 (one TPC). # ours"""


@dataclass(frozen=True, slots=True)
class QuotaLevel:
    """One level.

    Attributes:
        k: Number of the level, from 1.
        sms: SMs that the process may use [SMs].
        percent: Smallest percent that gives as many.
    """

    k: int
    sms: int
    percent: int

    def __str__(self) -> str:
        return f"{self.sms} SMs ({self.percent} %)"


def quota_levels(sms_by_percent: Mapping[int, int]) -> tuple[QuotaLevel, ...]:
    """Levels from what fresh clients have read.

    Args:
        sms_by_percent: SMs that a client of each percent sees [SMs]; 0 where none starts.

    Returns:
        Levels 1..Q by increasing number of SMs.

    Raises:
        ValueError: If no percent gives any SM.

    >>> [str(level) for level in quota_levels({10: 12, 11: 12, 50: 66})]
    ['12 SMs (10 %)', '66 SMs (50 %)']
    """
    smallest: dict[int, int] = {}
    for percent in sorted(sms_by_percent):
        if sms_by_percent[percent] > 0:
            smallest.setdefault(sms_by_percent[percent], percent)
    if not smallest:
        raise ValueError(
            f"quota_levels: expected a percent that gives at least one SM, got {dict(sms_by_percent)}. "
            "Read the SM count in a fresh client of each percent."
        )
    return tuple(QuotaLevel(k, sms, smallest[sms]) for k, sms in enumerate(sorted(smallest), 1))


def expected_levels(sms: int, partition_sms: int = PARTITION_SMS) -> tuple[QuotaLevel, ...]:
    """Levels of a device that was not asked: percents rounded down to whole partitions.

    Args:
        sms: SMs of the device.
        partition_sms: SMs that are handed out together.

    Returns:
        Levels 1..Q; Q = 54 for 108 SMs and 66 for 132.

    >>> expected_levels(132)[-2]
    QuotaLevel(k=65, sms=130, percent=99)
    """
    rounded = {p: sms * p // 100 // partition_sms * partition_sms for p in range(1, 101)}
    return quota_levels(rounded)
