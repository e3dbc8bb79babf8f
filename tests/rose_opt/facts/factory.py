"""Traces written by hand: a program's spans with chosen times, values and samples."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rose_trace.parquet import METADATA_KEY, TraceInfo, beside
from rose_trace.schema import SCHEMA_VERSION, TABLES

START_NS = 1_700_000_000_000_000_000
NONE_JSON = '["none",[],"",[]]'
TENSOR_JSON = '["leaf","tensor","float32",[4]]'


def tensor_json(shape: Sequence[int]) -> str:
    """Structure of a result that is one tensor."""
    return json.dumps(["leaf", "tensor", "float32", list(shape)], separators=(",", ":"))


@dataclass(frozen=True)
class Value:
    """A tensor that an invocation returned."""

    ref: int
    producer: int
    shape: tuple[int, ...] = (4,)
    device: str = "cpu"

    def row(self, slot: int) -> dict[str, Any]:
        return {
            "ref": self.ref,
            "producer": self.producer,
            "slot": str(slot),
            "offset": 0,
            "nbytes": 16,
            "device": self.device,
            "shape": list(self.shape),
            "dtype": "float32",
        }


@dataclass
class Recording:
    """Writes the rows that a recorder would, on a clock that the test moves.

    Attributes:
        now_ns: Time since the start of the recording.
    """

    now_ns: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    samples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    probes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    reasons: list[str] = field(default_factory=list[str])
    process: str = "main"
    _stack: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _indices: list[int] = field(default_factory=list[int])
    _roots: int = 0

    def _open(
        self, kind: str, name: str, declaration: dict[str, Any], **columns: Any
    ) -> dict[str, Any]:
        outer = self._stack[-1] if self._stack else None
        row: dict[str, Any] = {
            "run": "test",
            "process": self.process,
            "pid": 1,
            "thread": 1,
            "trace_id": "0" * 31 + "1",
            "span_id": (len(self.rows) + 1) * 7_919,
            "parent_id": outer["span_id"] if outer else 0,
            "kind": kind,
            "node": name,
            "path": f"{outer['path']}/{name}" if outer else name,
            "key": f"program:{name}",
            "fingerprint": name.encode().hex()[:16],
            "declaration": json.dumps(declaration),
            "iteration": list(self._indices),
            "ordinal": 0,
            "group": -1,
            "groups": 1,
            "start_ns": START_NS + self.now_ns,
            "status": "ok",
            "inputs": [],
            "outputs": [],
            "states": [],
            "structure": NONE_JSON,
            "attributes": [],
            "threads": 2,
            **columns,
        }
        self.rows.append(row)
        self._stack.append(row)
        return row

    def _close(self, row: dict[str, Any], cores: float = 1.0) -> None:
        self._stack.pop()
        row["end_ns"] = START_NS + self.now_ns
        row["cpu_ns"] = round((row["end_ns"] - row["start_ns"]) * cores)

    @contextlib.contextmanager
    def iteration(self, name: str = "iteration", **columns: Any) -> Generator[None]:
        self._indices.append(self._roots)
        self._roots += 1
        row = self._open("iteration", name, {}, **columns)
        yield
        self._close(row)
        self._indices.pop()

    def loop(self, name: str, items: int, carry: str = NONE_JSON, **columns: Any) -> Iterator[int]:
        row = self._open("loop", name, {}, count=items, structure=carry, **columns)
        for index in range(items):
            self._indices.append(index)
            yield index
            self._indices.pop()
        self._close(row)

    @contextlib.contextmanager
    def composite(self, name: str, rows: bool = False) -> Generator[dict[str, Any]]:
        row = self._open("exec", name, _declared(name, rows=rows))
        yield row
        self._close(row)

    def node(
        self,
        name: str,
        *inputs: Value,
        ns: int = 100,
        outputs: int = 1,
        shape: tuple[int, ...] = (4,),
        cores: float = 1.0,
        columns: dict[str, Any] | None = None,
        reads: str | Sequence[str] = (),
        updates: str | Sequence[str] = (),
        refreshes: str | Sequence[str] = (),
        pure: bool = False,
        rows: bool = False,
    ) -> Value:
        row = self._open(
            "exec",
            name,
            _declared(name, reads, updates, refreshes, pure, rows),
            structure=tensor_json(shape),
            **columns or {},
        )
        row["inputs"] = [value.row(slot) for slot, value in enumerate(inputs)]
        values = [
            Value(1_000 + len(self.rows) * 10 + n, row["span_id"], shape) for n in range(outputs)
        ]
        row["outputs"] = [value.row(slot) for slot, value in enumerate(values)]
        self.now_ns += ns
        self._close(row, cores)
        return values[0] if values else Value(0, 0)

    def kernel(
        self,
        start_ns: int,
        ns: int,
        blocks: int | None,
        launched_by: dict[str, Any] | None = None,
        device: str = "cuda:0",
    ) -> None:
        """A kernel on the device, on the clock of the test; `launched_by` is the row of a node."""
        attributes = [("device", device)]
        if blocks is not None:
            attributes.append(("grid", f"{blocks}x1x1"))
        self._beside("kernel", "gemm", f"{device}/stream 7/gemm", start_ns, ns, launched_by)
        self.rows[-1]["attributes"] = attributes

    def host_wait(
        self, start_ns: int, ns: int, inside: dict[str, Any], name: str = "cudaStreamSynchronize"
    ) -> None:
        """A CUDA call inside a node in which the host waits, on the clock of the test."""
        self._beside("sync", name, f"{inside['path']}/{name}", start_ns, ns, inside)

    def _beside(
        self,
        kind: str,
        name: str,
        path: str,
        start_ns: int,
        ns: int,
        outer: dict[str, Any] | None,
    ) -> None:
        stack, now_ns = self._stack, self.now_ns
        self._stack, self.now_ns = [], start_ns
        row = self._open(kind, name, {}, path=path, structure=None)
        row["parent_id"] = outer["span_id"] if outer else 0
        self.now_ns = start_ns + ns
        self._close(row)
        row["cpu_ns"] = None
        self._stack, self.now_ns = stack, now_ns

    def sample(
        self,
        start_ns: int,
        end_ns: int,
        activity: float,
        source: str = "pm-sampling",
        device: str = "cuda:0",
    ) -> None:
        self.samples.append(
            {
                "run": "test",
                "source": source,
                "device": device,
                "start_ns": START_NS + start_ns,
                "end_ns": START_NS + end_ns,
                "activity": activity,
                "estimate": source == "kernels",
            }
        )

    def write(self, path: Path) -> Path:
        info = TraceInfo(
            "test",
            SCHEMA_VERSION,
            {},
            not self.reasons,
            self.reasons,
            {"spans": len(self.rows)},
            [],
            {},
        )
        _write(path, "spans", self.rows, info)
        if self.samples:
            _write(beside(path, "activity"), "activity", self.samples, info)
        if self.probes:
            _write(beside(path, "probes"), "probes", self.probes, info)
        return path


def _write(path: Path, table: str, rows: Sequence[dict[str, Any]], info: TraceInfo) -> None:
    schema: Any = TABLES[table]
    schema = schema.with_metadata({METADATA_KEY: info.to_json().encode()})
    rows_table = pa.Table.from_pylist(list(rows), schema=schema)
    pq.write_table(rows_table, path)  # pyright: ignore[reportUnknownMemberType]


def _declared(
    name: str,
    reads: str | Sequence[str] = (),
    updates: str | Sequence[str] = (),
    refreshes: str | Sequence[str] = (),
    pure: bool = False,
    rows: bool = False,
) -> dict[str, Any]:
    component = name.partition(".")[0] if "." in name else None
    simulator = component is not None and component.startswith("sim")
    return {
        "reads": _words(reads),
        "updates": _words(updates),
        "refreshes": _words(refreshes),
        "pure": pure,
        "rows": rows,
        "component": None if component is None else f"program:{component.title()}",
        "batch_states": ["episode"] if simulator else [],
        "shardable": simulator,
    }


def _words(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
