"""Arrow schemas of the trace: the contract between recorder, optimizer and every other reader.

``schemas/*.json`` are snapshots of what is written here; a change asks for a new `SCHEMA_VERSION`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1

WORD = pa.dictionary(pa.int32(), pa.string())
"""A string that repeats: dictionary-encoded."""

REF = pa.struct(
    [
        pa.field("ref", pa.int64()),  # identity of the value; 0 unknown
        pa.field("producer", pa.uint64()),  # span id of the invocation that made it; 0 unknown
        pa.field("slot", pa.string()),  # place in the arguments or the result, e.g. "0.obs.image"
        pa.field("offset", pa.int64()),  # byte offset of the view in its storage
        pa.field("nbytes", pa.int64()),
        pa.field("device", pa.string()),
        pa.field("shape", pa.list_(pa.int64())),
        pa.field("dtype", pa.string()),
    ]
)

STATE = pa.struct(
    [
        pa.field("state", pa.string()),  # absolute name
        pa.field("access", pa.string()),  # read | update | refresh
        pa.field(
            "version", pa.int64()
        ),  # number of writes before this access, since recording began
    ]
)

SPANS = pa.schema(
    [
        pa.field("run", WORD),
        pa.field("process", WORD),  # role of the process: "main", "worker:simulator[0/2]"
        pa.field("pid", pa.int32()),
        pa.field("thread", pa.int64()),  # native thread id
        pa.field("stream", pa.int64()),  # CUDA stream, null without one
        pa.field("worker", WORD),  # worker that ran it, null in a native run
        pa.field("trace_id", WORD),  # 128-bit OpenTelemetry id, 32 hex digits
        pa.field("span_id", pa.uint64()),  # 64-bit OpenTelemetry id
        pa.field("parent_id", pa.uint64()),  # 0 for a root
        pa.field("kind", WORD),  # exec | loop | iteration | foreign | kernel | sync
        pa.field("node", WORD),  # name with its component, "policy.act"
        pa.field("path", WORD),  # "iteration/rollout/interact/policy.act"
        pa.field("key", WORD),  # definition, "module:qualname"
        pa.field("fingerprint", WORD),
        pa.field(
            "declaration", WORD
        ),  # JSON: reads, updates, refreshes, pure, rows, batch_states, component class key
        pa.field(
            "iteration", pa.list_(pa.int32())
        ),  # indices of the enclosing loops, outermost first
        pa.field("ordinal", pa.int32()),  # among calls of this node by the same parent invocation
        pa.field("count", pa.int32()),  # iterations of a loop, null otherwise
        pa.field("group", pa.int16()),  # branch of a split, -1 for the whole batch
        pa.field("groups", pa.int16()),
        pa.field("row_start", pa.int32()),  # global rows served, null for the whole batch
        pa.field("row_stop", pa.int32()),
        pa.field("start_ns", pa.int64()),  # Unix time
        pa.field("end_ns", pa.int64()),
        pa.field("device_end_ns", pa.int64()),  # null without a device
        pa.field(
            "cpu_ns", pa.int64()
        ),  # CPU time of the process between start and end; null if unknown
        pa.field("wait_ns", pa.int64()),  # time between being ready and starting, in a planned run
        pa.field("threads", pa.int16()),  # intra-op threads it ran with, null if unknown
        pa.field("status", WORD),  # ok | error
        pa.field("error", WORD),  # exception type, null if none
        pa.field("inputs", pa.list_(REF)),
        pa.field("outputs", pa.list_(REF)),
        pa.field("states", pa.list_(STATE)),
        pa.field("structure", WORD),  # JSON of the result's pytree, null for an error
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
    ]
)

ACTIVITY = pa.schema(
    [
        pa.field("run", WORD),
        pa.field("source", WORD),  # cpu | pm-sampling | gpm | nvml-utilisation | kernels | dram
        pa.field("device", WORD),  # "cpu", "cuda:0"
        pa.field("start_ns", pa.int64()),
        pa.field("end_ns", pa.int64()),
        pa.field("activity", pa.float32()),  # fraction 0..1
        pa.field("estimate", pa.bool_()),  # derived, not measured
    ]
)

PROBES = pa.schema(
    [
        pa.field("run", WORD),
        pa.field("path", WORD),
        pa.field("variant", WORD),  # whole | part | shard
        pa.field("groups", pa.int16()),
        pa.field("group", pa.int16()),  # -1 for the whole batch
        pa.field("threads", pa.int16()),
        pa.field("duration_ns", pa.int64()),
        pa.field("cpu_ns", pa.int64()),
        pa.field(
            "identical", pa.bool_()
        ),  # rows bit-identical to the native result; null for the native one
        pa.field("iteration", pa.list_(pa.int32())),
    ]
)

TABLES: dict[str, pa.Schema] = {"spans": SPANS, "activity": ACTIVITY, "probes": PROBES}


def describe(table: str) -> dict[str, Any]:
    """A table's columns as JSON data: what ``schemas/<table>.json`` is a snapshot of.

    Args:
        table: ``spans``, ``activity`` or ``probes``.

    Returns:
        Version, table and columns in order.
    """
    return {"schema_version": SCHEMA_VERSION, "table": table, "columns": _fields(TABLES[table])}


def _fields(fields: Any) -> list[dict[str, Any]]:
    return [
        {"name": field.name, "nullable": field.nullable, **_type(field.type)} for field in fields
    ]


def _type(kind: Any) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": _fields(list(kind))}
    if pa.types.is_map(kind):
        return {"type": "map", "key": _type(kind.key_type), "item": _type(kind.item_type)}
    if pa.types.is_list(kind):
        return {"type": "list", "item": _type(kind.value_type)}
    if pa.types.is_dictionary(kind):
        return {"type": "dictionary", "item": _type(kind.value_type)}
    return {"type": str(kind)}
