"""Rows of an imported trace, built by column: a profiler's file has many rows and few columns."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow

from rose_trace.activity import Sample
from rose_trace.interop.nesting import NestedRange, node_name
from rose_trace.interop.profile import Kernel
from rose_trace.schema import ACTIVITY, SPANS

pa: Any = pyarrow  # its type stubs are incomplete

BATCH = 65_536  # ours


@dataclass(frozen=True, slots=True)
class Origin:
    """The file that rows come from.

    Attributes:
        digest: SHA-256 of its contents, 64 hex digits; ids follow from it.
        names: Names of processes by pid, where the file tells.
    """

    digest: str
    names: Mapping[int, str]

    @property
    def run(self) -> str:
        """Id of the run."""
        return self.digest[:32]

    @property
    def trace_id(self) -> str:
        """OpenTelemetry id that all its spans share."""
        return self.digest[32:]

    def process(self, pid: int) -> str:
        """Role of a process."""
        return self.names.get(pid) or f"process {pid}"


def span_batches(
    nested: Sequence[NestedRange],
    kernels: Sequence[Kernel],
    launched: Sequence[int],
    origin: Origin,
) -> list[pyarrow.RecordBatch]:
    """Spans of ranges and kernels.

    Args:
        nested: Ranges in their places.
        kernels: Kernels of all devices.
        launched: By kernel, position of the range that launched it, -1 for none.
        origin: The file.

    Returns:
        Batches with schema `SPANS`. Shape: one row per range, then one per kernel.
    """
    bits = random.Random(int(origin.digest, 16)).getrandbits
    ids = [bits(64) or 1 for _ in range(len(nested) + len(kernels))]
    batches: list[pyarrow.RecordBatch] = []
    for begin in range(0, len(nested), BATCH):
        some = nested[begin : begin + BATCH]
        columns = _range_columns(some, ids[begin : begin + len(some)], ids, origin)
        batches.append(_batch(SPANS, columns, len(some)))
    for begin in range(0, len(kernels), BATCH):
        some_kernels = kernels[begin : begin + BATCH]
        first = len(nested) + begin
        parents = [0 if n < 0 else ids[n] for n in launched[begin : begin + BATCH]]
        columns = _kernel_columns(
            some_kernels, ids[first : first + len(some_kernels)], parents, origin
        )
        batches.append(_batch(SPANS, columns, len(some_kernels)))
    return batches


def activity_batches(samples: Iterable[Sample], origin: Origin) -> list[pyarrow.RecordBatch]:
    """Rows of the activity table.

    Args:
        samples: Samples of all sources.
        origin: The file.

    Returns:
        Batches with schema `ACTIVITY`. Shape: one row per sample.
    """
    remaining = iter(samples)
    batches: list[pyarrow.RecordBatch] = []
    while some := list(islice(remaining, BATCH)):
        names = ("source", "device", "start_ns", "end_ns", "activity", "estimate")
        columns: dict[str, Any] = dict(zip(names, zip(*some, strict=True), strict=True))
        batches.append(_batch(ACTIVITY, {"run": origin.run, **columns}, len(some)))
    return batches


def _range_columns(
    some: Sequence[NestedRange], own: Sequence[int], ids: Sequence[int], origin: Origin
) -> dict[str, Any]:
    ranges = [item.range for item in some]
    return {
        **_shared_columns(origin),
        "process": [origin.process(item.pid) for item in ranges],
        "pid": [item.pid for item in ranges],
        "thread": [item.tid for item in ranges],
        "span_id": own,
        "parent_id": [0 if item.parent < 0 else ids[item.parent] for item in some],
        "kind": [item.kind for item in some],
        "node": [node_name(item.name) for item in ranges],
        "path": [item.path for item in some],
        "key": [f"{item.category}:{item.name}" for item in ranges],
        "iteration": [[] if item.iteration < 0 else [item.iteration] for item in some],
        "ordinal": [item.ordinal for item in some],
        "start_ns": [item.start_ns for item in ranges],
        "end_ns": [item.end_ns for item in ranges],
        "outputs": [_results(item, span_id) for item, span_id in zip(some, own, strict=True)],
        "attributes": [_range_attributes(item) for item in some],
    }


def _results(item: NestedRange, span_id: int) -> list[dict[str, Any]]:
    """What the kernels of a range left on its devices: values of unknown identity."""
    return [
        {
            "ref": 0,
            "producer": span_id,
            "slot": "kernels",
            "offset": 0,
            "nbytes": 0,
            "device": f"cuda:{device}",
            "shape": None,
            "dtype": "",
        }
        for device in sorted(item.devices)
    ]


def _range_attributes(item: NestedRange) -> list[tuple[str, str]]:
    found = item.range
    attributes = [("category", found.category)]
    if item.kind != "foreign":
        attributes.append(("rewritable", "false"))
    if found.text != node_name(found.name):
        attributes.append(("text", found.text))
    if found.payload is not None:
        attributes.append(("payload", str(found.payload)))
    if found.unfinished:
        attributes.append(("unfinished", "true"))
    return attributes


def _kernel_columns(
    some: Sequence[Kernel], own: Sequence[int], parents: Sequence[int], origin: Origin
) -> dict[str, Any]:
    names = [node_name(item.name) for item in some]
    tracks = [f"cuda:{item.device}/stream {item.stream}" for item in some]
    return {
        **_shared_columns(origin),
        "process": [origin.process(item.pid) for item in some],
        "pid": [item.pid for item in some],
        "thread": [None if item.launch is None else item.launch[0] for item in some],
        "stream": [item.stream for item in some],
        "span_id": own,
        "parent_id": parents,
        "kind": "kernel",
        "node": names,
        "path": [f"{track}/{name}" for track, name in zip(tracks, names, strict=True)],
        "key": [f"kernel:{item.name}" for item in some],
        "ordinal": 0,
        "start_ns": [item.start_ns for item in some],
        "end_ns": [item.end_ns for item in some],
        "device_end_ns": [item.end_ns for item in some],
        "attributes": [_kernel_attributes(item) for item in some],
    }


def _kernel_attributes(item: Kernel) -> list[tuple[str, str]]:
    attributes = [("device", f"cuda:{item.device}")]
    for name, sizes in (("grid", item.grid), ("block", item.block)):
        if sizes is not None:
            attributes.append((name, "x".join(map(str, sizes))))
    return attributes


def _shared_columns(origin: Origin) -> dict[str, Any]:
    return {
        "run": origin.run,
        "trace_id": origin.trace_id,
        "group": -1,
        "groups": 1,
        "status": "ok",
        "iteration": [],
        "inputs": [],
        "outputs": [],
        "states": [],
    }


def _batch(schema: Any, columns: Mapping[str, Any], rows: int) -> pyarrow.RecordBatch:
    """A batch; a column given as one value, or as an empty list, repeats it; a missing one is null."""
    arrays: list[Any] = []
    for field in schema:
        given = columns.get(field.name)
        if given is None:
            arrays.append(pa.nulls(rows, field.type))
        elif pa.types.is_dictionary(field.type):
            words: Any = pa.repeat(given, rows) if isinstance(given, str) else pa.array(given)
            arrays.append(words.cast(pa.string()).dictionary_encode())
        elif isinstance(given, int) or (given == [] and rows):
            arrays.append(pa.array([given] * rows, field.type))
        else:
            arrays.append(pa.array(given, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
