"""Two traces did the same work: the same invocations, each reading states from the same writers.

Invocations are told apart by path, iteration and ordinal, whatever their order in time. In a planned
trace an invocation may be there as fragments, one per group of rows; together they stand for the
native one. A state version is known by the invocation that wrote it, so runs of different length or
start compare, and the version that an inference read is the update that it saw.

Does not handle: values. Bits are compared by the program that made them. Which version a private copy holds
is not in a trace: its reads are there, and what they saw is not compared.

Paper: §4.3.1 (what a legal reordering preserves).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rose_trace.parquet import read_metadata, read_spans
from rose_trace.records import StateAccess

_COLUMNS = [
    "path",
    "kind",
    "iteration",
    "ordinal",
    "row_start",
    "row_stop",
    "states",
    "status",
    "error",
    "worker",
]

_REPLICA = re.compile(r"(?P<component>.+)@\d+/\d+")
"""Worker of one of several whole instances of a component; what the component holds is there several times."""


class Identity(NamedTuple):
    """One invocation of the program, however it was run."""

    path: str
    iteration: tuple[int, ...]
    ordinal: int

    def __str__(self) -> str:
        place = f" in iteration {'.'.join(map(str, self.iteration))}" if self.iteration else ""
        again = f", call {self.ordinal + 1}" if self.ordinal else ""
        return f"{self.path}{place}{again}"


_PRIVATE = re.compile(r".+(?P<suffix>~\w+)")
"""Worker of a private copy of a component."""

_COPIED = Identity("a private copy", (), 0)
"""What a read of a private copy saw."""

Touch = tuple[str, str, int]
"""State, access and version at the time."""


@dataclass(slots=True)
class Work:
    """One invocation: its fragments and what it touched.

    Attributes:
        rows: Row range of every fragment; ``None`` for one on the whole batch.
        touched: What all fragments touched, the same for each.
        status: ``ok`` or the type of the error.
    """

    rows: list[tuple[int, int] | None] = field(default_factory=list[tuple[int, int] | None])
    touched: set[Touch] = field(default_factory=set[Touch])
    status: str = "ok"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome.

    Attributes:
        invocations: Invocations that both traces have.
        reads: State reads compared.
        difference: The first difference in program order of the first trace; empty if none.
    """

    invocations: int
    reads: int
    difference: str = ""

    @property
    def equal(self) -> bool:
        """Whether both traces did the same work."""
        return not self.difference


class IncompleteTrace(ValueError):
    """A trace that lost rows: nothing can be said about what is not there."""


class SampledTrace(ValueError):
    """A trace without the rows of most iterations: nothing can be compared there."""


def verify_traces(first: str | Path, second: str | Path) -> Comparison:
    """Compare two traces of one program, each native or planned.

    Args:
        first: One trace.
        second: The other.

    Returns:
        What was compared and the first difference.

    Raises:
        IncompleteTrace: If one of them lost rows.
        SampledTrace: If one of them was recorded with `steps`.
    """
    for path in (first, second):
        info = read_metadata(path)
        if not info.complete:
            raise IncompleteTrace(
                f"{path}: expected a complete trace, got one that lost rows ({'; '.join(info.reasons)}). "
                "Record again."
            )
        if info.steps is not None:
            raise SampledTrace(
                f"{path}: expected a trace with every invocation, got one with the first and last {info.steps} "
                "iterations of inner loops. Record both runs without sampling."
            )
    return compare(read_work(first), read_work(second), str(first), str(second))


def read_work(trace: str | Path) -> dict[Identity, Work]:
    """Leaf invocations of a trace, in the order of their first start.

    Args:
        trace: Path of the spans.

    Returns:
        Work by invocation.
    """
    return gather(read_spans(trace).select(_COLUMNS).to_pylist())


def gather(rows: Iterable[Mapping[str, Any]]) -> dict[Identity, Work]:
    """Leaf invocations of spans.

    Args:
        rows: Spans as dicts, in order of start.

    Returns:
        Work by invocation; fragments of one invocation together.
    """
    spans = [row for row in rows if row["kind"] == "exec"]
    parents = {row["path"].rpartition("/")[0] for row in spans}
    result: dict[Identity, Work] = {}
    for row in spans:
        if row["path"] in parents:
            continue
        identity = Identity(row["path"], tuple(row["iteration"] or ()), row["ordinal"] or 0)
        work = result.setdefault(identity, Work())
        whole = row["row_start"] is None
        work.rows.append(None if whole else (row["row_start"], row["row_stop"]))
        work.touched.update(
            (_on_instance(s["state"], row.get("worker")), s["access"], s["version"])
            for s in row["states"] or ()
        )
        if row["status"] != "ok":
            work.status = row["error"] or row["status"]
    return result


def _on_instance(state: str, worker: str | None) -> str:
    """The state as the worker's instance has it, versions and all."""
    private = _PRIVATE.fullmatch(worker or "")
    if private is not None:
        return f"{state}{private['suffix']}"
    replica = _REPLICA.fullmatch(worker or "")
    mine = replica is not None and state.startswith(f"{replica['component']}.")
    return (
        f"{state}{(worker or '').removeprefix(replica['component'])}" if mine and replica else state
    )


def _logical(state: str) -> str:
    """The state of the program that an instance holds."""
    return re.sub(r"(@\d+/\d+|~\w+)$", "", state)


def compare(
    first: Mapping[Identity, Work],
    second: Mapping[Identity, Work],
    first_name: str = "the first",
    second_name: str = "the second",
) -> Comparison:
    """Compare the work of two traces.

    Args:
        first: Work of one trace.
        second: Work of the other.
        first_name: What messages call the first.
        second_name: What messages call the second.

    Returns:
        What was compared and the first difference.
    """
    names = first_name, second_name
    reads = sum(
        mode != StateAccess.REFRESH.value for work in first.values() for _, mode, _ in work.touched
    )
    found = next(_differences(first, second, names), "")
    return Comparison(len(first.keys() & second.keys()), reads, found)


def _differences(
    first: Mapping[Identity, Work], second: Mapping[Identity, Work], names: tuple[str, str]
) -> Iterator[str]:
    for here, there, name, other in ((first, second, *names), (second, first, *names[::-1])):
        for identity in here:
            if identity not in there:
                yield f"{identity}: ran in {name}, but not in {other}"
    for work, name in ((first, names[0]), (second, names[1])):
        yield from _incomplete(work, name)
    writers = _writers(first), _writers(second)
    for found, name in zip(writers, names, strict=True):
        for state, version, several in found.twice:
            yield (
                f"state '{state}': version {version} was replaced by {several[0]} and by {several[1]} in "
                f"{name}, so one of them was lost"
            )
    for identity, work in first.items():
        yield from _invocation(identity, work, second[identity], writers, names)
    last = [_last(found) for found in writers]
    for state in sorted(last[0] | last[1]):
        nobody: set[Identity] = set()
        wrote = [found.get(state, nobody) for found in last]
        # Of several instances one holds the last live range: who wrote that is among them.
        if not wrote[0] & wrote[1]:
            told = [" and ".join(sorted(map(str, by))) or "nobody" for by in wrote]
            yield (
                f"state '{state}': last written by {told[0]} in {names[0]} and by {told[1]} in {names[1]}"
            )


def _last(writers: _Writers) -> dict[str, set[Identity]]:
    """Who wrote each state of the program last, once per instance."""
    found: dict[str, set[Identity]] = {}
    for state, identity in writers.last.items():
        found.setdefault(_logical(state), set()).add(identity)
    return found


def _incomplete(work: Mapping[Identity, Work], name: str) -> Iterator[str]:
    """Invocations whose fragments do not make up a whole batch exactly once."""
    batch = max((r[1] for w in work.values() for r in w.rows if r is not None), default=0)
    for identity, item in work.items():
        ranges = sorted(r for r in item.rows if r is not None)
        if len(ranges) == len(item.rows):
            ends = [0, *(stop for _, stop in ranges)]
            starts = [*(start for start, _ in ranges), batch]
            if ends != starts:
                shown = ", ".join(f"{start}..{stop}" for start, stop in ranges)
                yield f"{identity}: its groups in {name} serve rows {shown} of 0..{batch}"
        elif len(item.rows) > 1:
            yield f"{identity}: ran {len(item.rows)} times in {name}"


@dataclass(frozen=True, slots=True)
class _Writers:
    """Who wrote each version of each state.

    Attributes:
        of: Invocation that made a version, by state and version.
        last: Invocation that wrote last, by state.
        twice: Versions that two invocations replaced.
    """

    of: dict[tuple[str, int], Identity]
    last: dict[str, Identity]
    twice: list[tuple[str, int, tuple[Identity, Identity]]]


def _writers(work: Mapping[Identity, Work]) -> _Writers:
    found = _Writers({}, {}, [])
    newest: dict[str, int] = {}
    for identity, item in work.items():
        for state, mode, version in item.touched:
            if mode == StateAccess.READ.value:
                continue
            other = found.of.setdefault((state, version + 1), identity)
            if other != identity:
                found.twice.append((state, version, (other, identity)))
            if version >= newest.get(state, -1):
                newest[state] = version
                found.last[state] = identity
    return found


def _invocation(
    identity: Identity,
    first: Work,
    second: Work,
    writers: tuple[_Writers, _Writers],
    names: tuple[str, str],
) -> Iterator[str]:
    if first.status != second.status:
        yield f"{identity}: ended with {first.status} in {names[0]}, with {second.status} in {names[1]}"
    seen: list[dict[tuple[str, str], set[Identity | None]]] = []
    for work, found in zip((first, second), writers, strict=True):
        sources: dict[tuple[str, str], set[Identity | None]] = {}
        for state, mode, version in work.touched:
            source = None if mode == StateAccess.REFRESH.value else found.of.get((state, version))
            source = _COPIED if "~" in state else source
            sources.setdefault((_logical(state), mode), set()).add(source)
        seen.append(sources)
    for key in sorted(seen[0].keys() | seen[1].keys()):
        state, mode = key
        if key not in seen[0] or key not in seen[1]:
            name, other = names if key in seen[0] else names[::-1]
            yield f"{identity}: has {mode} of '{state}' in {name}, but not in {other}"
        elif seen[0][key] != seen[1][key] and _COPIED not in seen[0][key] | seen[1][key]:
            told = [" and ".join(sorted(_source(s) for s in item[key])) for item in seen]
            yield (
                f"{identity}: {mode} of '{state}' saw what {told[0]} left in {names[0]}, and what "
                f"{told[1]} left in {names[1]}"
            )


def _source(identity: Identity | None) -> str:
    return "the state before recording" if identity is None else str(identity)
