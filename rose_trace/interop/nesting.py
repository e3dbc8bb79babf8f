"""Ranges nested by time: which range is inside which, and which one launched a kernel.

Paper: §4.2, "Execution hierarchy"; here it is read off the clock instead of recorded.
"""

from __future__ import annotations

import fnmatch
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rose_trace.interop.profile import BLOCKING, Kernel, ThreadRange

STEP = "ProfilerStep"
"""Name of the annotation that torch.profiler puts around every step."""

CAPTURE = "capture"
"""Name of the iteration that stands for all a process did, where no range is an iteration."""


@dataclass(slots=True)
class NestedRange:
    """A range in its place.

    Attributes:
        range: The range.
        parent: Position of the range around it; -1 for none.
        kind: ``iteration``, ``exec`` inside of one, ``foreign`` elsewhere; ``sync`` for a CUDA call in
            which the host waits, wherever it is.
        path: Names from the outermost range to this one, joined by slashes.
        iteration: Which iteration of its process it is in; -1 for none.
        ordinal: Position among ranges of this name with the same parent.
        devices: Devices that it launched kernels on itself.
    """

    range: ThreadRange
    parent: int
    kind: str
    path: str
    iteration: int
    ordinal: int
    devices: set[int]


def node_name(name: str) -> str:
    """A name as one element of a path.

    >>> node_name("a/b")
    'a|b'
    """
    return name.replace("/", "|") or "unnamed"


def capture_ranges(ranges: Sequence[ThreadRange], kernels: Sequence[Kernel]) -> list[ThreadRange]:
    """One range around everything that each process did, on threads and on devices.

    Args:
        ranges: Ranges of all threads.
        kernels: Kernels of all devices.

    Returns:
        One range per process, on its main thread.
    """
    found: dict[int, ThreadRange] = {}
    for items in (ranges, kernels):
        for item in items:
            whole = found.setdefault(
                item.pid,
                ThreadRange(
                    item.pid, item.pid, item.start_ns, item.end_ns, CAPTURE, CAPTURE, CAPTURE
                ),
            )
            whole.start_ns = min(whole.start_ns, item.start_ns)
            whole.end_ns = max(whole.end_ns, item.end_ns)
    return list(found.values())


def nest(
    ranges: Sequence[ThreadRange], kernels: Sequence[Kernel], iteration: str, slack_ns: int
) -> tuple[list[NestedRange], list[int]]:
    """Nest ranges by time within their thread, and find what launched each kernel.

    An outermost range of another thread that runs within an iteration of its process (a backward
    pass, say) is placed directly in that iteration.

    Args:
        ranges: Ranges of all threads.
        kernels: Kernels of all devices.
        iteration: Shell pattern for the names of ranges that are iterations; the outermost matching
            range of a thread is one.
        slack_ns: How far a range may outlast the one around it [ns].

    Returns:
        Ranges in their places, parents first, and by kernel the position of the innermost range that
        launched it, -1 for none.
    """
    order = sorted(ranges, key=lambda r: (r.start_ns, -r.end_ns, r.category != CAPTURE))
    parents = _parents(order, slack_ns)
    steps = _iterations(order, parents, iteration)
    _adopt(order, parents, steps)
    placed: list[NestedRange] = []
    ordinals: dict[tuple[int, str], int] = defaultdict(int)
    for position, item in enumerate(order):
        outer = placed[parents[position]] if parents[position] >= 0 else None
        name = node_name(item.name)
        step = steps.get(position, outer.iteration if outer else -1)
        kind = "iteration" if position in steps else "foreign" if step < 0 else "exec"
        if item.category == BLOCKING:
            kind = "sync"
        path = f"{outer.path}/{name}" if outer else name
        ordinal = ordinals[parents[position], name]
        ordinals[parents[position], name] += 1
        placed.append(NestedRange(item, parents[position], kind, path, step, ordinal, set()))
    launched = _launched(order, parents, kernels)
    for kernel, position in zip(kernels, launched, strict=True):
        if position >= 0:
            placed[position].devices.add(kernel.device)
    return placed, launched


def _parents(order: Sequence[ThreadRange], slack_ns: int) -> list[int]:
    """Position of the innermost range of the same thread that holds each range; -1 for none."""
    stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
    parents: list[int] = []
    for position, item in enumerate(order):
        stack = stacks[item.pid, item.tid]
        while stack and order[stack[-1]].end_ns <= item.start_ns:
            stack.pop()
        holding = (n for n in reversed(stack) if item.end_ns <= order[n].end_ns + slack_ns)
        parents.append(next(holding, -1))
        stack.append(position)
    return parents


def _iterations(
    order: Sequence[ThreadRange], parents: Sequence[int], pattern: str
) -> dict[int, int]:
    """Positions of iterations with their number in the process."""
    inside: set[int] = set()
    steps: dict[int, int] = {}
    counts: dict[int, int] = defaultdict(int)
    for position, item in enumerate(order):
        if parents[position] in inside:
            inside.add(position)
        elif fnmatch.fnmatchcase(item.name, pattern):
            inside.add(position)
            steps[position] = counts[item.pid]
            counts[item.pid] += 1
    return steps


def _adopt(order: Sequence[ThreadRange], parents: list[int], steps: dict[int, int]) -> None:
    """Place outermost ranges of other threads in the iteration of their process that holds them."""
    by_pid: dict[int, list[int]] = defaultdict(list)
    for position in steps:
        by_pid[order[position].pid].append(position)
    starts = {pid: [order[n].start_ns for n in found] for pid, found in by_pid.items()}
    for position, item in enumerate(order):
        if parents[position] >= 0 or position in steps or item.pid not in by_pid:
            continue
        before = bisect_right(starts[item.pid], item.start_ns) - 1
        if before >= 0:
            step = by_pid[item.pid][before]
            if step < position and item.end_ns <= order[step].end_ns:
                parents[position] = step


def _launched(
    order: Sequence[ThreadRange], parents: Sequence[int], kernels: Sequence[Kernel]
) -> list[int]:
    """Position of the innermost range on the launching thread at the moment of the launch."""
    threads: dict[tuple[int, int], list[int]] = defaultdict(list)
    for position, item in enumerate(order):
        threads[item.pid, item.tid].append(position)
    starts = {thread: [order[n].start_ns for n in found] for thread, found in threads.items()}
    result: list[int] = []
    for kernel in kernels:
        position = -1
        if kernel.launch is not None:
            tid, moment = kernel.launch
            thread = (kernel.pid, tid)
            before = bisect_right(starts.get(thread, []), moment) - 1
            position = threads[thread][before] if before >= 0 else -1
            while position >= 0 and order[position].end_ns < moment:
                position = parents[position]
        result.append(position)
    return result
