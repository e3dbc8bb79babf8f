"""Lanes of a timeline: one per thread, branch, worker and stream, with nested calls on rows of their own.

Paper: Fig. 3 and Fig. 8 (timelines of components).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rose_opt.report.recorded import Span

MOST_LANES = 24  # ours
MOST_ROWS = 12  # ours: deeper calls share the last row of a lane
OTHERS = "other threads"


@dataclass(frozen=True, slots=True)
class Lane:
    """One place where invocations run.

    Attributes:
        name: What to call it.
        first_row: Its first row, counted over all lanes from the top.
        rows: How many rows it takes.
    """

    name: str
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class Laid:
    """Invocations in their rows.

    Attributes:
        lanes: Lanes from top to bottom.
        rows: Row of every span, in the order given.
        merged: Lanes that were put together into the last one, 0 for none.
    """

    lanes: tuple[Lane, ...]
    rows: tuple[int, ...]
    merged: int = 0


def lay_out(spans: Sequence[Span]) -> Laid:
    """Give every span a lane and a row.

    Args:
        spans: Invocations by start.

    Returns:
        The lanes and the rows; in a lane, a call is below its caller, and calls that overlap in time
        are on different rows.
    """
    names = _names(spans)
    order, merged = _order(spans, names)
    by_lane: dict[str, list[int]] = {name: [] for name in order}
    for number, name in enumerate(names):
        by_lane[name if name in by_lane else OTHERS].append(number)
    rows = [0] * len(spans)
    lanes: list[Lane] = []
    first = 0
    for name, members in by_lane.items():
        taken = _pack(spans, members, first, rows)
        lanes.append(Lane(f"{name} ({merged})" if name == OTHERS else name, first, taken))
        first += taken
    return Laid(tuple(lanes), tuple(rows), merged)


def _pack(spans: Sequence[Span], members: Iterable[int], first: int, rows: list[int]) -> int:
    """Fill `rows` for the members of one lane; returns how many rows they take."""
    free_ns: list[int] = []  # per row: from when on it is free
    row_of: dict[int, int] = {}
    for number in sorted(members, key=lambda n: (spans[n].start_ns, -spans[n].end_ns)):
        span = spans[number]
        row = row_of.get(span.parent_id, -1) + 1
        while row < len(free_ns) and free_ns[row] > span.start_ns:
            row += 1
        row = min(row, MOST_ROWS - 1)
        free_ns += [0] * (row + 1 - len(free_ns))
        free_ns[row] = max(free_ns[row], span.end_ns)
        row_of[span.span_id] = row
        rows[number] = first + row
    return len(free_ns)


def _names(spans: Sequence[Span]) -> list[str]:
    """Lane of every span: its stream, worker, branch or thread."""
    pids: dict[str, list[int]] = {}
    threads: dict[tuple[str, int], list[int | None]] = {}
    result: list[str] = []
    for span in spans:
        ranks = pids.setdefault(span.process, [])
        if span.pid not in ranks:
            ranks.append(span.pid)
        rank = ranks.index(span.pid)
        process = f"{span.process}#{rank}" if rank else span.process
        if span.kind == "kernel":
            result.append(span.path[: len(span.path) - len(span.node) - 1])
        elif span.worker is not None:
            alone = span.process == f"worker:{span.worker}"
            result.append(span.worker if alone and not rank else f"{process} / {span.worker}")
        elif span.group >= 0:
            result.append(f"{process} / branch {span.group}")
        else:
            known = threads.setdefault((span.process, span.pid), [])
            if span.thread not in known:
                known.append(span.thread)
            number = known.index(span.thread)
            result.append(f"{process} / thread {number}" if number else process)
    return result


def _order(spans: Sequence[Span], names: Sequence[str]) -> tuple[list[str], int]:
    """Lanes from top to bottom: threads and branches, workers, streams; the least busy share one."""
    kind: dict[str, int] = {}
    busy_ns: dict[str, int] = {}
    for span, name in zip(spans, names, strict=True):
        rank = 3 if span.kind == "kernel" else 2 if span.worker else 1 if span.group >= 0 else 0
        kind.setdefault(name, rank)
        busy_ns[name] = busy_ns.get(name, 0) + span.end_ns - span.start_ns
    ordered = sorted(kind, key=lambda name: (kind[name], "/" in name if kind[name] < 1 else name))
    if len(ordered) <= MOST_LANES:
        return ordered, 0
    busiest = set(sorted(ordered, key=lambda name: -busy_ns[name])[: MOST_LANES - 1])
    kept = [name for name in ordered if name in busiest]
    return [*kept, OTHERS], len(ordered) - len(kept)
