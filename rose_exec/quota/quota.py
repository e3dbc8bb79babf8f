"""One interface for both ways to limit how many SMs work may use.

Paper: §4.4 has one way, MPS percentages; partitions of a process (green contexts) are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from rose_opt.measure import QuotaLevel


class QuotaError(RuntimeError):
    """A limit that this machine, driver or build of torch does not offer."""


class Quota(Protocol):
    """A way to limit SMs.

    A limit has two halves, and a mechanism uses one of them: what a worker process must be started
    with, and a block inside the process. A caller that does both can use any mechanism:

    * start the worker with `environment(level)`, again wherever `replaces_worker` and the level changes;
    * run the node, or the overlap region, within `limit(level)`.
    """

    @property
    def replaces_worker(self) -> bool:
        """Whether another level needs another process."""
        ...

    @property
    def levels(self) -> tuple[QuotaLevel, ...]:
        """Levels 1..Q by increasing SMs; the last one is the whole device."""
        ...

    def environment(self, level: QuotaLevel | None = None) -> Mapping[str, str]:
        """Variables that a worker process of this level needs; ``None`` is no limit."""
        ...

    def limit(self, level: QuotaLevel | None) -> AbstractContextManager[object]:
        """Limit what the calling thread submits within a block; ``None`` is no limit.

        The block sees what was submitted before it, and what is submitted after it sees the block.

        Raises:
            QuotaError: If the level cannot be had here.
        """
        ...
