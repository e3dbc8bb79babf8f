"""How long one machine needs for jobs that become ready late and are followed by more.

Jackson's preemptive schedule runs, at every moment, the ready job with the longest tail. It ends at the
largest value, over all sets of jobs, of least head + work + least tail (Carlier), so no schedule that
runs the jobs one at a time ends earlier, and for cores, where each job counts with its share of the
machine, none that keeps the capacity does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple


class Job(NamedTuple):
    """A job on one machine; all three in one unit of time.

    Attributes:
        head: Time before which it cannot start.
        length: Time that the machine needs for it.
        tail: Time that passes after it before everything can be done.
    """

    head: float
    length: float
    tail: float


def one_machine_bound(jobs: Iterable[Job]) -> float:
    """Time before which no schedule is done that runs the jobs one at a time.

    Args:
        jobs: The jobs, in any order.

    Returns:
        End of Jackson's preemptive schedule, tails included; 0 without jobs.

    >>> one_machine_bound([Job(0, 3, 4), Job(1, 2, 9)])
    12
    """
    waiting = sorted(jobs)
    ready: list[tuple[float, float]] = []  # minus the tail, work left
    now, done, following = 0, 0, 0
    while ready or following < len(waiting):
        if not ready:
            now = max(now, waiting[following].head)
        while following < len(waiting) and waiting[following].head <= now:
            job = waiting[following]
            heapq.heappush(ready, (-job.tail, job.length))
            following += 1
        minus_tail, left = heapq.heappop(ready)
        until = waiting[following].head if following < len(waiting) else now + left
        if now + left > until:
            heapq.heappush(ready, (minus_tail, now + left - until))
            now = until
        else:
            now += left
            done = max(done, now - minus_tail)
    return done
