"""Flows: arrows from the invocation that made a value to those that take it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pyarrow.compute

from rose_trace.interop.export.rows import batches

np: Any = numpy  # its type stubs leave results of mixed arrays unknown
pc: Any = pyarrow.compute


class Flows:
    """Pairs of producer and consumer, each with an id that is the same for the same trace.

    Several values between the same two invocations are one flow. A producer that is not in the trace
    has none, nor has a value that an invocation hands to itself.

    Args:
        trace: The spans file.

    Attributes:
        spans: Span ids of the trace.
        count: Number of flows.
    """

    def __init__(self, trace: Path) -> None:
        ids: list[Any] = []
        taken: list[Any] = []
        for batch in batches(trace, "spans", ("span_id", "inputs")):
            columns: Any = batch
            own = columns.column("span_id").to_numpy(zero_copy_only=False)
            inputs = columns.column("inputs")
            ids.append(own)
            owners = pc.list_parent_indices(inputs).to_numpy(zero_copy_only=False)
            made = pc.struct_field(pc.list_flatten(inputs), "producer").fill_null(0)
            pairs = np.stack([made.to_numpy(zero_copy_only=False), own[owners]], axis=1)
            taken.append(pairs[pairs[:, 0] != 0])
        spans = np.concatenate(ids) if ids else np.empty(0, np.uint64)
        self.spans: set[int] = set(spans.tolist())
        pairs = np.concatenate(taken) if taken else np.empty((0, 2), np.uint64)
        pairs = pairs[np.isin(pairs[:, 0], spans) & (pairs[:, 0] != pairs[:, 1])]
        pairs = np.unique(pairs, axis=0).reshape(-1, 2)
        self.count = len(pairs)
        flow = _mixed(pairs)
        self._out = (pairs[:, 0], flow)
        order = np.argsort(pairs[:, 1], kind="stable")
        self._into = (pairs[order, 1], flow[order])

    def out_of(self, span_id: int) -> list[int]:
        """Ids of the flows that begin at an invocation."""
        return _found(self._out, span_id)

    def into(self, span_id: int) -> list[int]:
        """Ids of the flows that end at an invocation."""
        return _found(self._into, span_id)


def _mixed(pairs: Any) -> Any:
    """Ids of 64 bits, none zero, from pairs of them (the finaliser of SplitMix64)."""
    x = pairs[:, 0] ^ (pairs[:, 1] * np.uint64(0x9E3779B97F4A7C15))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.maximum(x ^ (x >> np.uint64(31)), np.uint64(1))


def _found(table: tuple[Any, Any], span_id: int) -> list[int]:
    keys, flow = table
    if not len(keys):
        return []
    wanted = np.uint64(span_id)
    begin = int(np.searchsorted(keys, wanted, "left"))
    if begin == len(keys) or keys[begin] != wanted:
        return []
    return flow[begin : int(np.searchsorted(keys, wanted, "right"))].tolist()
