"""Parts of a trace: one process's Arrow IPC streams and the manifest it leaves at a clean end.

A stream is readable up to its last whole batch whatever happens to its process; a manifest says how
many rows there must be. Every part already has the columns of the trace.
"""

from __future__ import annotations

import itertools
import json
import operator
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from rose_trace.buffers import Sample
from rose_trace.dataref import Signature
from rose_trace.invocation import Invocation, Site
from rose_trace.schema import ACTIVITY, REF, SPANS, STATE

pa: Any = pyarrow  # its type stubs are incomplete
spans: Any = SPANS

Clock = tuple[int, int]
"""Unix time and monotonic time of one moment [ns]."""


def read_clocks() -> Clock:
    """Both clocks now: ties the trace to other clocks, and shows if the wall clock was set."""
    return time.time_ns(), time.monotonic_ns()


class PartFile:
    """What one process writes into the parts directory; files appear with the first row.

    Args:
        directory: The parts directory.
        run: Id of the run.
        process: Role of the process, e.g. ``main`` or ``worker:simulator[0/2]``.
    """

    def __init__(self, directory: Path, run: str, process: str) -> None:
        self.directory = directory
        self.run = run
        self.process = process
        self.pid = os.getpid()
        self.rows = {"spans": 0, "activity": 0}
        self._opened = read_clocks()
        self._streams: dict[str, Any] = {}
        pa.array([0])  # imports pandas where there is one: now, not in the middle or at the end
        role = re.sub(r"[^A-Za-z0-9.]+", "_", process).strip("_") or "process"
        self._stem = f"{role}-{self.pid}-{self._opened[0]}"

    def write_spans(self, rows: list[Invocation], thread: int) -> None:
        """Append finished invocations of one native thread."""
        self._write("spans", spans_batch(rows, self.run, self.process, self.pid, thread))

    def write_activity(self, samples: list[Sample]) -> None:
        """Append samples of activity."""
        source, device, start, end, activity, estimate = zip(*samples, strict=True)
        arrays = [
            _words([self.run] * len(samples)),
            _words(source),
            _words(device),
            pa.array(start, pa.int64()),
            pa.array(end, pa.int64()),
            pa.array(activity, pa.float32()),
            pa.array(estimate, pa.bool_()),
        ]
        self._write("activity", pa.RecordBatch.from_arrays(arrays, schema=ACTIVITY))

    def close(self, lost_rows: int, failure: str | None) -> None:
        """End the streams and leave the manifest.

        Args:
            lost_rows: Rows that could not be written.
            failure: What stopped recording early, if anything.
        """
        for writer, sink in self._streams.values():
            writer.close()
            sink.close()
        if self._streams or lost_rows or failure:
            manifest = {
                "process": self.process,
                "pid": self.pid,
                "rows": self.rows,
                "lost": lost_rows,
                "failure": failure,
                "clocks": [self._opened, read_clocks()],
                "streams": {kind: f"{self._stem}.{kind}.arrow" for kind in self._streams},
            }
            text = json.dumps(manifest, indent=1)
            (self.directory / f"{self._stem}.json.new").write_text(text, encoding="utf-8")
            os.replace(
                self.directory / f"{self._stem}.json.new", self.directory / f"{self._stem}.json"
            )

    def _write(self, kind: str, batch: Any) -> None:
        stream = self._streams.get(kind)
        if stream is None:
            sink = pa.OSFile(str(self.directory / f"{self._stem}.{kind}.arrow"), "wb")
            stream = self._streams[kind] = (pa.ipc.new_stream(sink, batch.schema), sink)
        stream[0].write_batch(batch)
        self.rows[kind] += batch.num_rows


def spans_batch(rows: Sequence[Invocation], run: str, process: str, pid: int, thread: int) -> Any:
    """Rows of the spans table.

    Args:
        rows: Finished invocations of one thread.
        run: Id of the run.
        process: Role of the process.
        pid: Its process id.
        thread: Native id of the thread.

    Returns:
        A record batch with schema `SPANS`.
    """
    n = len(rows)
    read: Any = zip(*map(operator.attrgetter(*_READ), rows), strict=True)
    column: dict[str, Any] = dict(zip(_READ, read, strict=True))
    sites: dict[Site, int] = {}
    at = _codes(column["site"], sites)

    def site(read: Callable[[Site], str]) -> Any:
        words: dict[str, int] = {}
        codes = _codes([read(s) for s in sites], words)
        return pa.DictionaryArray.from_arrays(codes[at], pa.array(list(words), pa.string()))

    def numbers(name: str) -> Any:
        kind = spans.field(name).type
        values = column[name]
        if None in values:
            return (
                pa.nulls(n, kind)
                if not any(v is not None for v in values)
                else pa.array(values, kind)
            )
        return pa.array(np.array(values, kind.to_pandas_dtype()))

    planned = column["execution"]
    ranges = column["rows"]
    columns: dict[str, Any] = {
        "run": _words([run] * n),
        "process": _words([process] * n),
        "pid": pa.array(np.full(n, pid, np.int32)),
        "thread": pa.array(np.full(n, thread, np.int64)),
        "stream": pa.nulls(n, pa.int64()),
        "worker": _words([None if e is None else e.worker for e in planned]),
        "trace_id": _words(column["trace_id"], "{:032x}".format),
        "kind": site(lambda s: s.kind),
        "node": site(lambda s: s.node),
        "path": site(lambda s: s.path),
        "key": site(lambda s: s.key),
        "fingerprint": site(lambda s: s.fingerprint),
        "declaration": site(lambda s: s.declaration),
        "iteration": _lists(column["iteration"], lambda flat: pa.array(np.array(flat, np.int32))),
        "row_start": pa.array([None if r is None else r.start for r in ranges], pa.int32()),
        "row_stop": pa.array([None if r is None else r.stop for r in ranges], pa.int32()),
        "device_end_ns": pa.nulls(n, pa.int64()),
        "threads": pa.array([threads or None for threads in column["threads"]], pa.int16()),
        "status": _words(["ok" if error is None else "error" for error in column["error"]]),
        "error": _words(column["error"]),
        "inputs": _refs(column["inputs"], column["input_refs"]),
        "outputs": _refs(column["outputs"], column["output_refs"]),
        "states": _states(column["site"], column["versions"]),
        "structure": _words(
            [
                signature.structure if carry is None else carry
                for carry, signature in zip(column["structure"], column["outputs"], strict=True)
            ]
        ),
        "attributes": _maps([s.attributes for s in column["site"]]),
    }
    arrays = [columns[name] if name in columns else numbers(name) for name in SPANS.names]
    return pa.RecordBatch.from_arrays(arrays, schema=SPANS)


_READ = (
    "site",
    "trace_id",
    "span_id",
    "parent_id",
    "iteration",
    "ordinal",
    "count",
    "group",
    "groups",
    "rows",
    "start_ns",
    "end_ns",
    "cpu_ns",
    "wait_ns",
    "threads",
    "execution",
    "error",
    "inputs",
    "input_refs",
    "outputs",
    "output_refs",
    "versions",
    "structure",
)


def _codes(values: Sequence[Any], words: dict[Any, int]) -> Any:
    """Index of every value in `words`, which gets the values in order of first sight."""
    for value in dict.fromkeys(values):
        words[value] = len(words)
    if len(words) == 1:
        return np.zeros(len(values), np.int32)
    return np.fromiter(map(words.__getitem__, values), np.int32, len(values))


def _words(values: Sequence[Any], text: Callable[[Any], str] = str) -> Any:
    """Repeating strings, dictionary-encoded; ``None`` is null."""
    words: dict[Any, int] = {}
    codes = _codes(values, words)
    if None in words:
        missing = words.pop(None)
        null = codes == missing
        codes = np.where(null, 0, codes - (codes > missing)).astype(np.int32)
        codes = pa.array(codes, mask=null)
    return pa.DictionaryArray.from_arrays(codes, pa.array(list(map(text, words)), pa.string()))


def _offsets(lengths: Iterable[int]) -> Any:
    return pa.array(np.fromiter(itertools.accumulate(lengths, initial=0), np.int32), pa.int32())


def _lists(values: Sequence[Sequence[Any]], items: Callable[[list[Any]], Any]) -> Any:
    flat = items(list(itertools.chain.from_iterable(values)))
    return pa.ListArray.from_arrays(_offsets(map(len, values)), flat)


def _refs(signatures: Sequence[Signature], numbers: Sequence[Sequence[int]]) -> Any:
    """The references of every row: what changes from row `numbers`, what stays from the signatures."""
    places: dict[Signature, range] = {}
    layouts: list[Any] = []
    for signature in signatures:
        if signature not in places:
            places[signature] = range(len(layouts), len(layouts) + len(signature.leaves))
            layouts += signature.leaves
    if not layouts:
        return pa.ListArray.from_arrays(
            pa.array(np.zeros(len(signatures) + 1, np.int32)), pa.array([], REF)
        )
    chosen = itertools.chain.from_iterable(map(places.__getitem__, signatures))
    where = pa.array(np.fromiter(chosen, np.int32))
    flat = np.fromiter(itertools.chain.from_iterable(numbers), np.uint64).reshape(-1, 3)
    refs = pa.StructArray.from_arrays(
        [
            pa.array(flat[:, 0].astype(np.int64)),
            pa.array(np.ascontiguousarray(flat[:, 1])),
            pa.array([x.slot for x in layouts], pa.string()).take(where),
            pa.array(flat[:, 2].astype(np.int64)),
            pa.array([x.nbytes for x in layouts], pa.int64()).take(where),
            pa.array([x.device for x in layouts], pa.string()).take(where),
            pa.array([x.shape for x in layouts], pa.list_(pa.int64())).take(where),
            pa.array([x.dtype for x in layouts], pa.string()).take(where),
        ],
        fields=list(REF),
    )
    return pa.ListArray.from_arrays(_offsets([len(s.leaves) for s in signatures]), refs)


def _states(sites: Sequence[Site], versions: Sequence[tuple[int, ...]]) -> Any:
    pairs = list(itertools.chain.from_iterable(site.states for site in sites))
    states = pa.StructArray.from_arrays(
        [
            pa.array([state for state, _ in pairs], pa.string()),
            pa.array([access for _, access in pairs], pa.string()),
            pa.array(np.fromiter(itertools.chain.from_iterable(versions), np.int64)),
        ],
        fields=list(STATE),
    )
    return pa.ListArray.from_arrays(_offsets(map(len, versions)), states)


def _maps(values: Sequence[tuple[tuple[str, str], ...]]) -> Any:
    flat = list(itertools.chain.from_iterable(values))
    keys = pa.array([key for key, _ in flat], pa.string())
    items = pa.array([item for _, item in flat], pa.string())
    return pa.MapArray.from_arrays(_offsets(map(len, values)), keys, items)
