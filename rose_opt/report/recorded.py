"""One recording as the report shows it: facts, iterations, the spans of one of them, samples.

Does not handle: the first iteration of a recording counts as warm-up wherever there are more, as in
the facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rose_opt.facts import Facts, FactsSettings, build_facts
from rose_trace.parquet import TraceInfo, read_metadata, read_spans

_COLUMNS = (
    "process",
    "pid",
    "thread",
    "worker",
    "span_id",
    "parent_id",
    "kind",
    "node",
    "path",
    "iteration",
    "group",
    "start_ns",
    "end_ns",
    "device_end_ns",
    "wait_ns",
    "status",
)


class ReportError(ValueError):
    """Something asked for is not in the recording."""


@dataclass(frozen=True, slots=True)
class RecordedIteration:
    """One finished call of the root, over all ranks.

    Attributes:
        index: Position in the recording, from 0.
        start_ns: Start of the earliest rank [Unix ns].
        end_ns: End of the latest rank, on the device too [Unix ns].
        used: Whether it counts; the first is warm-up if there are more.
    """

    index: int
    start_ns: int
    end_ns: int
    used: bool

    @property
    def duration_ns(self) -> int:
        """Duration over all ranks [ns]."""
        return self.end_ns - self.start_ns


class Span(NamedTuple):
    """One invocation in the shown iteration.

    Attributes:
        process: Role of its process.
        pid: Process id.
        thread: Native thread id; ``None`` if unknown.
        worker: Worker that ran it; ``None`` in a native run.
        span_id: Its id.
        parent_id: Id of its caller, 0 for none.
        kind: ``exec``, ``loop``, ``iteration`` or ``kernel``.
        node: Node name.
        path: Node path.
        step: Index in the innermost loop around it, -1 for none.
        group: Branch of a split, -1 for the whole batch.
        start_ns: Start [Unix ns].
        end_ns: End, on the device too [Unix ns].
        wait_ns: Time between being ready and starting [ns]; ``None`` in a native run.
    """

    process: str
    pid: int
    thread: int | None
    worker: str | None
    span_id: int
    parent_id: int
    kind: str
    node: str
    path: str
    step: int
    group: int
    start_ns: int
    end_ns: int
    wait_ns: int | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording, ready to be shown.

    Attributes:
        path: Its file.
        info: What the file says about itself.
        facts: What the optimizer knows of it.
        iterations: Finished iterations in order.
        shown: The iteration whose timeline is drawn.
        spans: Invocations that ran during `shown`, by start; those of other libraries left out.
    """

    path: Path
    info: TraceInfo
    facts: Facts
    iterations: tuple[RecordedIteration, ...]
    shown: RecordedIteration
    spans: tuple[Span, ...]

    @property
    def name(self) -> str:
        """File name, without its folder."""
        return self.path.name

    @property
    def used(self) -> tuple[RecordedIteration, ...]:
        """Iterations that count."""
        return tuple(item for item in self.iterations if item.used)


def read_recorded(path: str | Path, iteration: int | None = None) -> Recorded:
    """Read what the report shows of a trace; one that lost rows is read as far as it goes.

    Args:
        path: The spans file; activity is read from the file beside it.
        iteration: Iteration to draw, from 0; by default the one nearest to the median.

    Returns:
        The recording.

    Raises:
        ReportError: If there is no such iteration.
    """
    path = Path(path)
    info = read_metadata(path)
    facts = build_facts(path, FactsSettings(allow_incomplete=True))
    table: Any = read_spans(path).select(list(_COLUMNS)).unify_dictionaries()
    iterations = _iterations(table, facts.graph.root.path)
    shown = _choose(iterations, facts.iteration.iteration_ns, iteration, path)
    return Recorded(path, info, facts, iterations, shown, _spans(table, shown))


def _ends(table: Any) -> Any:
    """End of every span, on the device too. Shape: one int64 per row [Unix ns]."""
    host = table.column("end_ns").to_numpy()
    device = table.column("device_end_ns")
    if device.null_count == len(host):
        return host
    known = np.array([value or 0 for value in device.to_pylist()], dtype=np.int64)
    return np.maximum(host, known)


def _iterations(table: Any, root: str) -> tuple[RecordedIteration, ...]:
    roots = np.flatnonzero(_codes(table, "path", root))
    rows = table.select(["process", "pid", "start_ns", "status"]).take(roots).to_pylist()
    ends = _ends(table)[roots].tolist()
    ranks: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row, end_ns in zip(rows, ends, strict=True):
        if row["status"] == "ok":
            ranks.setdefault((row["process"], row["pid"]), []).append((row["start_ns"], end_ns))
    finished = [sorted(calls) for calls in ranks.values()]
    count = max(map(len, finished))
    return tuple(
        RecordedIteration(
            index,
            min(calls[index][0] for calls in finished if index < len(calls)),
            max(calls[index][1] for calls in finished if index < len(calls)),
            used=index > 0 or count == 1,
        )
        for index in range(count)
    )


def _codes(table: Any, column: str, word: str) -> Any:
    """Which rows of a dictionary column hold `word`. Shape: one bool per row."""
    chunked = table.column(column)
    if not chunked.num_chunks:
        return np.zeros(0, dtype=bool)
    words: list[str] = chunked.chunk(0).dictionary.to_pylist()
    code = words.index(word) if word in words else -1
    return np.concatenate(
        [chunk.indices.to_numpy(zero_copy_only=False) == code for chunk in chunked.chunks]
    )


def _choose(
    iterations: Sequence[RecordedIteration], median_ns: int, wanted: int | None, path: Path
) -> RecordedIteration:
    if wanted is None:
        used = [item for item in iterations if item.used]
        return min(used, key=lambda item: abs(item.duration_ns - median_ns))
    if not 0 <= wanted < len(iterations):
        raise ReportError(
            f"{path}: expected an iteration in 0..{len(iterations) - 1}, got {wanted}. "
            "Choose one that was recorded."
        )
    return iterations[wanted]


def _spans(table: Any, shown: RecordedIteration) -> tuple[Span, ...]:
    ends = _ends(table)
    starts = table.column("start_ns").to_numpy()
    inside = np.flatnonzero((starts < shown.end_ns) & (ends > shown.start_ns))
    rows = table.take(inside).to_pylist()
    return tuple(
        Span(
            row["process"] or "",
            row["pid"] or 0,
            row["thread"],
            row["worker"],
            row["span_id"],
            row["parent_id"] or 0,
            row["kind"],
            row["node"],
            row["path"],
            (row["iteration"] or [-1])[-1],
            -1 if row["group"] is None else row["group"],
            row["start_ns"],
            end_ns,
            row["wait_ns"],
        )
        for row, end_ns in zip(rows, ends[inside].tolist(), strict=True)
        if row["kind"] != "foreign"
    )
