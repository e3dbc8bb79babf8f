"""What a timeline shows: how busy the device was, and who ran beside whom.

Paper: Fig. 3, Fig. 12 (SM activity); §4.4 (overlapping pairs).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rose_opt.measure import OverlapPair
from rose_opt.schedule.model import Kappa
from rose_opt.simulator.engine import Task, Timeline


def stretches(timeline: Timeline) -> Iterator[tuple[float, frozenset[int]]]:
    """Yield stretches of time in which the same tasks run.

    Args:
        timeline: When tasks ran.

    Yields:
        Length of the stretch [ns] and positions of the tasks that run; none while all wait.
    """
    events = sorted(
        [(start, 1, index) for index, start in enumerate(timeline.start_ns)]
        + [(end, 0, index) for index, end in enumerate(timeline.end_ns)]
    )
    running: set[int] = set()
    before = 0.0
    for now, starts, index in events:
        if now > before:
            yield now - before, frozenset(running)
        before = now
        (running.add if starts else running.discard)(index)


def mean_activity(
    tasks: Sequence[Task], timeline: Timeline, alone: Mapping[str, float]
) -> dict[str, float]:
    """Time-weighted activity of the device while tasks of each name run.

    Args:
        tasks: The tasks.
        timeline: When they ran.
        alone: Activity of each by name while it runs alone [fraction]; 0 where absent.

    Returns:
        Activity by name [fraction]; what runs together adds up, to at most 1.
    """
    weighted: defaultdict[str, float] = defaultdict(float)
    lasted: defaultdict[str, float] = defaultdict(float)
    for length, running in stretches(timeline):
        busy = _activity(tasks, running, alone)
        for name in {tasks[index].name for index in running}:
            weighted[name] += busy * length
            lasted[name] += length
    return {name: weighted[name] / lasted[name] for name in lasted}


def share_below(
    tasks: Sequence[Task], timeline: Timeline, alone: Mapping[str, float], threshold: float = 0.5
) -> float:
    """Share of the makespan in which the device is less active than `threshold` [fraction].

    Paper: Fig. 3, Fig. 12.
    """
    below = sum(
        length
        for length, running in stretches(timeline)
        if _activity(tasks, running, alone) < threshold
    )
    return below / timeline.makespan_ns if timeline.makespan_ns else 0.0


def _activity(tasks: Sequence[Task], running: frozenset[int], alone: Mapping[str, float]) -> float:
    return min(sum(alone.get(tasks[index].name, 0.0) for index in running), 1.0)


def overlap_pairs(
    tasks: Sequence[Task], timeline: Timeline, kappa: Kappa
) -> tuple[OverlapPair, ...]:
    """Pairs of workers that overlap, as Algorithm 2 looks at them.

    Args:
        tasks: The tasks.
        timeline: When they ran.
        kappa: Contention by the tasks' names.

    Returns:
        One pair per two workers that ran side by side and were not done at the same time: the one
        that was done first would be limited; its slack lasts until the other was done.
    """
    done: defaultdict[str, float] = defaultdict(float)
    for task, end in zip(tasks, timeline.end_ns, strict=True):
        for worker in task.workers:
            done[worker] = max(done[worker], end)
    lost: defaultdict[tuple[str, str], float] = defaultdict(float)
    for length, running in stretches(timeline):
        for cause, sufferer in itertools.permutations(sorted(running), 2):
            pair = kappa.get((tasks[sufferer].name, tasks[cause].name), 0.0)
            for key in itertools.product(tasks[cause].workers, tasks[sufferer].workers):
                lost[key] += pair * length
    return tuple(
        OverlapPair(limited, beside, round(done[beside] - done[limited]), round(cost))
        for (limited, beside), cost in sorted(lost.items())
        if done[limited] < done[beside]
    )
