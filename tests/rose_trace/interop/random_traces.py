"""Traces of programs that never ran: calls that nest, coroutines that overlap, devices, foreign spans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from rose_trace.parquet import ProcessRows, TraceInfo, beside, write_sorted
from rose_trace.schema import SCHEMA_VERSION, TABLES

T0 = 1_764_000_000_000_000_123
Row = dict[str, Any]
WORDS = ("act", "step", "a/b", "größe", 'quo"te', "lrn\n", "x" * 300, "名前")


class RandomProgram:
    """Rows of one program.

    Args:
        random: Where all its choices come from.
        overlapping: Whether calls may overlap on a thread, as coroutines do.
    """

    def __init__(self, random: Random, overlapping: bool = True) -> None:
        self.random = random
        self.overlapping = overlapping
        self.rows: list[Row] = []
        self.trace_id = f"{random.getrandbits(128) or 1:032x}"
        for pid in random.sample([100, 200, 2**22], random.randint(1, 2)):
            for thread in random.sample([pid, pid + 1, 2**40], random.randint(1, 2)):
                self._calls((pid, thread), None, T0, random.randint(0, 5_000), 0)
        random.shuffle(self.rows)

    def _calls(
        self, at: tuple[int, int], caller: Row | None, start: int, room: int, deep: int
    ) -> None:
        end = start + room
        moment = start
        for ordinal in range(self.random.randint(0, 3)):
            if self.overlapping and self.random.random() < 0.4:
                begin, finish = sorted(self.random.randint(start, end) for _ in range(2))
            else:
                begin, finish = sorted(self.random.randint(moment, end) for _ in range(2))
                moment = finish
            row = self._row(at, caller, begin, finish, ordinal)
            self.rows.append(row)
            if deep < 3:
                self._calls(at, row, begin, finish - begin, deep + 1)
            if not self.overlapping:
                moment = max(moment, finish)

    def _row(
        self, at: tuple[int, int], caller: Row | None, start: int, end: int, ordinal: int
    ) -> Row:
        random, name = self.random, self.random.choice(WORDS)
        step = name.replace("/", "|")
        pid, thread = at
        row: Row = {
            "run": "r1",
            "process": f"worker:{pid}",
            "pid": pid,
            "thread": thread,
            "worker": random.choice([None, "w"]),
            "trace_id": self.trace_id,
            "span_id": random.getrandbits(64) or 1,
            "parent_id": caller["span_id"] if caller else 0,
            "kind": random.choice(["exec", "exec", "loop", "iteration", "foreign"]),
            "node": name,
            "path": f"{caller['path']}/{step}" if caller else step,
            "key": f"m:{name}",
            "fingerprint": "",
            "declaration": '{"pure":true}',
            "iteration": [random.randrange(9) for _ in range(random.randint(0, 2))],
            "ordinal": ordinal,
            "count": random.choice([None, 4]),
            "group": random.choice([-1, 1]),
            "groups": random.choice([1, 2]),
            "row_start": None,
            "row_stop": None,
            "start_ns": start,
            "end_ns": end,
            "device_end_ns": None,
            "cpu_ns": random.choice([None, 0, 77]),
            "wait_ns": None,
            "threads": random.choice([None, 2]),
            "status": "ok",
            "error": None,
            "inputs": [self._ref() for _ in range(random.randint(0, 3))],
            "outputs": [self._ref() for _ in range(random.randint(0, 2))],
            "states": [
                {"state": "policy.weights", "access": a, "version": random.randrange(5)}
                for a in random.sample(["read", "update"], random.randint(0, 2))
            ],
            "structure": random.choice([None, '["*"]']),
            "attributes": [
                (k, random.choice(WORDS)) for k in random.sample(["path", "u", "v.w"], 2)
            ],
        }
        if random.random() < 0.2:
            row |= {"status": "error", "error": random.choice(["ValueError", "error"])}
        if random.random() < 0.3:
            row |= {
                "stream": random.choice([None, 0, 7]),
                "device_end_ns": end + random.randint(0, 99),
            }
        if row["kind"] == "foreign":
            self._make_foreign(row)
        return row

    def _make_foreign(self, row: Row) -> None:
        row |= {"key": f"lib.x:{row['node']}", "inputs": [], "outputs": [], "states": []}
        row |= dict.fromkeys(
            ("fingerprint", "declaration", "structure", "count", "cpu_ns", "threads")
        )
        row |= {"group": -1, "groups": 1}
        events = [
            {
                "name": "exception",
                "time_ns": T0,
                "attributes": {"exception.type": "OSError", "n": 3},
            }
        ]
        row["attributes"] = [
            *((f"http.{key}", value) for key, value in row["attributes"]),
            ("otel.kind", self.random.choice(["internal", "server"])),
        ]
        if row["status"] == "error":
            row["error"] = "OSError"
            row["attributes"] += [
                ("otel.status_description", "gone"),
                ("otel.events", compact(events)),
            ]
        else:
            link = {
                "trace_id": self.trace_id,
                "span_id": f"{7:016x}",
                "attributes": {"why": ["a", 1.5]},
            }
            row["attributes"].append(("otel.links", compact([link])))

    def _ref(self) -> Row:
        known = [row["span_id"] for row in self.rows]
        return {
            "ref": self.random.getrandbits(62),
            "producer": self.random.choice([0, self.random.getrandbits(64), *known]),
            "slot": self.random.choice(["0.obs", "1"]),
            "offset": 8,
            "nbytes": 4,
            "device": self.random.choice(["cpu", "cuda:1"]),
            "shape": self.random.choice([None, [], [2, 3]]),
            "dtype": "float32",
        }

    def activity(self) -> list[Row]:
        """Samples of two sources, with one gap in the second."""
        found: list[Row] = []
        for number in range(self.random.randint(0, 6)):
            found.append(sample("cpu", "cpu", number * 100, 100, number / 8, False))
            gap = 1_000 if number > 3 else 0
            found.append(sample("kernels", "cuda:0", gap + number * 50, 50, 0.5, True))
        return sorted(found, key=lambda row: row["start_ns"])


def sample(source: str, device: str, start: int, length: int, value: float, estimate: bool) -> Row:
    """A row of the activity table; times count from `T0`."""
    return {
        "run": "r1",
        "source": source,
        "device": device,
        "start_ns": T0 + start,
        "end_ns": T0 + start + length,
        "activity": value,
        "estimate": estimate,
    }


def compact(value: object) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def write_trace(
    path: Path, rows: Sequence[Row], activity: Sequence[Row] = (), reasons: Sequence[str] = ()
) -> Path:
    """Write rows as a trace."""
    given = {"spans": rows, "activity": activity}
    counts = {table: len(some) for table, some in given.items()}
    process = ProcessRows("worker", 100, counts, counts, 0, [], None)
    about = {"source": "kernels", "estimate": True}
    info = TraceInfo(
        "r1", SCHEMA_VERSION, {"rose": "0"}, not reasons, list(reasons), counts, [process], about
    )
    for table, some in given.items():
        schema: Any = TABLES[table]
        plain = pa.schema(
            [f.with_type(pa.string()) if pa.types.is_dictionary(f.type) else f for f in schema]
        )
        made: Any = pa.Table.from_pylist(list(some), schema=plain).cast(schema)
        write_sorted(beside(path, table), table, made.to_batches(), info)
    return path
