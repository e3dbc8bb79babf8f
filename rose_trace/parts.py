"""Parts of a trace: one process's Arrow IPC streams and the manifest it leaves at a clean end.

A stream is readable up to its last whole batch whatever happens to its process; a manifest says how
many rows there must be. Every part already has the columns of the trace.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import operator
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from rose_trace.buffers import Sample
from rose_trace.component_sizes import component_sizes
from rose_trace.dataref import Refs, packed
from rose_trace.invocation import Invocation, Site
from rose_trace.layout import LeafLayout, Signature, input_signature, result_signature
from rose_trace.memory import read_memory
from rose_trace.schema import ACTIVITY, REF, SPANS, STATE

pa: Any = pyarrow  # its type stubs are incomplete
spans: Any = SPANS

log = logging.getLogger("rose_trace")

Clock = tuple[int, int]
"""Unix time and monotonic time of one moment [ns]."""


def read_clocks() -> Clock:
    """Both clocks now: ties the trace to other clocks, and shows if the wall clock was set."""
    return time.time_ns(), time.monotonic_ns()


class PartFile:
    """What one process writes into the parts directory; its file appears with the first invocation.

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
        self._broken: set[str] = set()
        self._writing = threading.Lock()  # the flusher, and threads whose buffer is full
        pa.array([0])  # imports pandas where there is one: now, not in the middle or at the end
        role = re.sub(r"[^A-Za-z0-9.]+", "_", process).strip("_") or "process"
        self._stem = f"{role}-{self.pid}-{self._opened[0]}"

    def begin(self) -> None:
        """Make the stream of spans: from here on the parts tell that this process recorded.

        Raises:
            OSError: If it cannot be written.
        """
        with self._writing:
            self._stream("spans", SPANS)

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

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Append rows of the spans table given by column: spans of other instrumentation."""
        mine = {"run": self.run, "process": self.process, "pid": self.pid}
        batch = pa.RecordBatch.from_pylist([{**row, **mine} for row in rows], schema=SPANS)
        self._write("spans", batch)

    def close(
        self, lost_rows: int, failure: str | None, unfinished: Mapping[str, int] | None = None
    ) -> None:
        """End the streams and leave the manifest, with the memory of this process; never raises.

        Args:
            lost_rows: Rows that could not be written.
            failure: What stopped recording early, if anything.
            unfinished: Invocations that have not ended and have no row, by node path.
        """
        try:
            self._end_streams()
            if self._streams or self._broken or lost_rows or failure:
                self._leave_manifest(lost_rows, failure, unfinished or {})
        except Exception as error:
            log.error(
                "%s: expected to end the parts of process %s there, got %s. The trace is marked incomplete; the "
                "program goes on.",
                self.directory,
                self.process,
                error,
            )

    def _end_streams(self) -> None:
        for kind, (writer, sink) in self._streams.items():
            # The end mark says nothing that the manifest does not say: a full disk may keep it out.
            with contextlib.suppress(OSError):
                if kind not in self._broken:
                    writer.close()
            with contextlib.suppress(OSError):
                sink.close()

    def _leave_manifest(
        self, lost_rows: int, failure: str | None, unfinished: Mapping[str, int]
    ) -> None:
        manifest = {
            "process": self.process,
            "pid": self.pid,
            "rows": self.rows,
            "lost": lost_rows,
            "failure": failure,
            "unfinished": dict(unfinished),
            "memory": read_memory() | component_sizes(),
            "clocks": [self._opened, read_clocks()],
            "streams": {kind: f"{self._stem}.{kind}.arrow" for kind in self._streams},
        }
        fresh = self.directory / f"{self._stem}.json.new"
        fresh.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        os.replace(fresh, self.directory / f"{self._stem}.json")

    def _write(self, kind: str, batch: Any) -> None:
        with self._writing:
            writer = self._stream(kind, batch.schema)
            try:
                writer.write_batch(batch)
            except BaseException:
                self._broken.add(kind)  # readable up to here: after half a batch nothing would be
                raise
            self.rows[kind] += batch.num_rows

    def _stream(self, kind: str, schema: Any) -> Any:
        path = self.directory / f"{self._stem}.{kind}.arrow"
        if kind in self._broken:
            raise OSError(f"{path}: expected a whole stream, got one that could not be written on")
        stream = self._streams.get(kind)
        if stream is None:
            try:
                sink = pa.OSFile(str(path), "wb")
                stream = self._streams[kind] = (pa.ipc.new_stream(sink, schema), sink)
            except BaseException:
                self._broken.add(kind)
                raise
        return stream[0]


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

    inputs = list(map(input_signature, column["inputs"]))
    outputs = list(map(result_signature, column["outputs"]))
    planned = column["execution"]
    ranges = column["rows"]
    columns: dict[str, Any] = {
        "run": _words([run] * n),
        "process": _words([process] * n),
        "pid": pa.array(np.full(n, pid, np.int32)),
        "thread": pa.array(np.full(n, thread, np.int64)),
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
        "threads": pa.array([threads or None for threads in column["threads"]], pa.int16()),
        "status": _words(["ok" if error is None else "error" for error in column["error"]]),
        "error": _words(column["error"]),
        "inputs": _refs(inputs, column["input_refs"]),
        "outputs": _refs(outputs, column["output_refs"]),
        "states": _states(column["site"], column["versions"]),
        "structure": _words(
            [
                signature.structure if carry is None else result_signature(carry).structure
                for carry, signature in zip(column["carry"], outputs, strict=True)
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
    "device_end_ns",
    "stream",
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
    "carry",
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


def _refs(signatures: Sequence[Signature], numbers: Sequence[Refs]) -> Any:
    """The references of every row: what changes from row `numbers`, what stays from the signatures."""
    places: dict[Signature, range] = {}
    layouts: list[LeafLayout] = []
    for signature in signatures:
        if signature not in places:
            places[signature] = range(len(layouts), len(layouts) + len(signature.leaves))
            layouts += signature.leaves
    if not layouts:
        return pa.ListArray.from_arrays(
            pa.array(np.zeros(len(signatures) + 1, np.int32)), pa.array([], REF)
        )
    chosen = itertools.chain.from_iterable(map(places.__getitem__, signatures))
    where = np.fromiter(chosen, np.int32)
    flat = np.frombuffer(b"".join(map(packed, numbers)), np.uint64).reshape(-1, 3)
    refs = pa.StructArray.from_arrays(
        [
            pa.array(flat[:, 0].astype(np.int64)),
            pa.array(np.ascontiguousarray(flat[:, 1])),
            pa.array([x.slot for x in layouts], pa.string()).take(pa.array(where)),
            pa.array(flat[:, 2].astype(np.int64) * np.array([x.unit for x in layouts])[where]),
            pa.array([x.nbytes for x in layouts], pa.int64()).take(pa.array(where)),
            pa.array([x.device for x in layouts], pa.string()).take(pa.array(where)),
            pa.array([x.shape for x in layouts], pa.list_(pa.int64())).take(pa.array(where)),
            pa.array([x.dtype for x in layouts], pa.string()).take(pa.array(where)),
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
