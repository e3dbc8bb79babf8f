"""Tracks of a timeline: processes, their threads and CUDA streams, and lanes for what overlaps.

Slices of one track must nest. Invocations of coroutines and generators overlap on one thread without
that; whatever does not fit below its caller gets a lane of its own beside the thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rose_trace.interop.export.flows import Flows
from rose_trace.interop.export.slices import Slice

LARGEST_ID = 2**31 - 1
"""Largest process and thread id that the formats hold."""


@dataclass(frozen=True, slots=True)
class ProcessTrack:
    """A process.

    Attributes:
        name: Its role.
        pid: Its id in the trace.
        shown_pid: An id that no other process of the file has.
    """

    name: str
    pid: int
    shown_pid: int

    @property
    def shown_name(self) -> str:
        """Its role, with its id where another process of the file has that too."""
        return self.name + ("" if self.shown_pid == self.pid else f" (pid {self.pid})")


@dataclass(frozen=True, slots=True)
class Track:
    """A row of the timeline.

    Attributes:
        process: Whose it is.
        name: What to call it.
        tid: Native thread id, where it is the first lane of a thread; ``None`` otherwise.
        lane: Number among the lanes of the same thread or stream.
        number: Position in order of first use, over all processes.
        uuid: 64-bit id; the same for the same trace.
    """

    process: ProcessTrack
    name: str
    tid: int | None
    lane: int
    number: int
    uuid: int


@dataclass(frozen=True, slots=True)
class Begin:
    """A slice begins.

    Attributes:
        item: The slice.
        track: Where.
        out: Ids of the flows that begin in it.
        into: Ids of the flows that end in it.
    """

    item: Slice
    track: Track
    out: Iterable[int] = ()
    into: Iterable[int] = ()


@dataclass(frozen=True, slots=True)
class End:
    """The innermost slice of a track ends.

    Attributes:
        track: Where.
        time_ns: When [Unix ns].
    """

    track: Track
    time_ns: int


@dataclass(slots=True)
class _Open:
    """A slice that has not ended."""

    span_id: int
    end_ns: int


@dataclass(slots=True)
class _Lane:
    track: Track
    stack: list[_Open] = field(default_factory=list[_Open])

    def close(self, start_ns: int, parent_id: int, end_ns: int) -> list[int]:
        """Take off what has ended by `start_ns`; an ended caller stays for what takes no time."""
        ended: list[int] = []
        while self.stack:
            top = self.stack[-1]
            if top.end_ns > start_ns or (
                top.end_ns == end_ns == start_ns and top.span_id == parent_id
            ):
                break
            ended.append(self.stack.pop().end_ns)
        return ended


def stable_id(*parts: object) -> int:
    """A 64-bit id, never zero, that is the same for the same parts."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") or 1


class Tracks:
    """Gives every slice its track.

    Args:
        flows: Flows of the trace; a caller that is not among their spans was lost.

    Attributes:
        slices: Number of slices that have one.
    """

    def __init__(self, flows: Flows) -> None:
        self._flows = flows
        self.slices = 0
        self._processes: dict[tuple[str, int], ProcessTrack] = {}
        self._shown: set[int] = set()
        self._lanes: dict[tuple[object, ...], list[_Lane]] = {}
        self._count = 0

    def drawn(self, slices: Iterable[Slice]) -> Iterator[Begin | End]:
        """Slices with their tracks and flows.

        Args:
            slices: In the order of `read_slices`.

        Yields:
            Begins in the same order; ends before whatever begins on their track afterwards.
        """
        for item in slices:
            track, ended = self._placed(item)
            yield from ended
            if item.device is None:
                span_id = item.row["span_id"]
                yield Begin(item, track, self._flows.out_of(span_id), self._flows.into(span_id))
            else:
                yield Begin(item, track)
            self.slices += 1
        for lanes in self._lanes.values():
            for lane in lanes:
                while lane.stack:
                    yield End(lane.track, lane.stack.pop().end_ns)

    def _placed(self, item: Slice) -> tuple[Track, list[End]]:
        """The track of a slice, and what ended beside it on the same thread or stream before it starts."""
        row = item.row
        process = self._process(row["process"] or "process", row["pid"] or 0)
        number = row["thread"] if item.device is None else row["stream"]
        key = (process, item.device, number)
        lanes = self._lanes.setdefault(key, [])
        span_id, parent_id = row["span_id"], row["parent_id"] or 0
        ended: list[End] = []
        for lane in lanes:
            closed = lane.close(item.start_ns, parent_id, item.end_ns)
            ended += [End(lane.track, end_ns) for end_ns in closed]
        by_time = item.device is not None or (parent_id != 0 and parent_id not in self._flows.spans)
        lane = _fitting(lanes, parent_id, item.end_ns, by_time)
        if lane is None:
            lane = _Lane(self._track(process, item.device, number, len(lanes)))
            lanes.append(lane)
        lane.stack.append(_Open(span_id, item.end_ns))
        return lane.track, ended

    def _process(self, name: str, pid: int) -> ProcessTrack:
        found = self._processes.get((name, pid))
        if found is None:
            shown = pid if 0 < pid <= LARGEST_ID else 1
            while shown in self._shown:
                shown = shown % LARGEST_ID + 1
            self._shown.add(shown)
            found = self._processes[name, pid] = ProcessTrack(name, pid, shown)
        return found

    def _track(
        self, process: ProcessTrack, device: str | None, number: int | None, lane: int
    ) -> Track:
        if device is not None:
            name = f"{device} stream {number}" if number is not None else f"{device} work"
        elif number is None:
            name = "spans"
        else:
            name = "main thread" if number == process.pid else f"thread {number}"
        if lane:
            name = f"{name}, overlapping {lane}"
        fits = number is not None and 0 < number <= LARGEST_ID
        tid = number if fits and device is None and not lane else None
        self._count += 1
        parts = (process.name, process.pid, device, number, lane)
        return Track(process, name, tid, lane, self._count, stable_id(*parts))


def _fitting(lanes: list[_Lane], parent_id: int, end_ns: int, by_time: bool) -> _Lane | None:
    """The lane on which the caller is innermost, or one that is free."""
    free: _Lane | None = None
    for lane in lanes:
        if not lane.stack:
            free = free or lane
            continue
        top = lane.stack[-1]
        if top.end_ns >= end_ns and (by_time or top.span_id == parent_id):
            return lane
    return free
