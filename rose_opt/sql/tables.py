"""Makes the views of one trace: those that read the files at once, the others when they are asked for.

Paper: §4.2, §4.3.2; the critical path is ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np

from rose_opt.facts.activity import FLOOR_NS, MEANING, SOURCES, load_activity
from rose_opt.facts.build import FactsSettings, build_facts
from rose_opt.facts.hierarchy import build_hierarchy
from rose_opt.facts.store import Store, quoted
from rose_opt.facts.timings import node_timings
from rose_opt.graph import GraphNode
from rose_opt.sql.catalogue import views
from rose_trace.parquet import TraceInfo

READ_IN_PLACE = ("spans", "refs", "states", "activity", "probes", "recording", "processes")
"""Views that read the files each time and need nothing else."""

REQUIRES: dict[str, tuple[str, ...]] = {
    "iterations": (),
    "invocations": (),
    "nodes": ("iterations", "invocations"),
    "windows": (),
    "gaps": ("invocations",),
    "dependencies": ("invocations",),
    "edges": ("dependencies",),
    "waits": ("dependencies",),
    "critical_path": ("waits",),
}
"""Views that are made when asked for, with those they read."""

_SAMPLES = (
    "(SELECT NULL::VARCHAR AS source, NULL::VARCHAR AS device, 0::BIGINT AS start_ns, 0::BIGINT AS end_ns, "
    "0::FLOAT AS activity, false AS estimate WHERE false)"
)
_PROBES = (
    '(SELECT NULL::VARCHAR AS path, NULL::VARCHAR AS variant, 0::SMALLINT AS groups, 0::SMALLINT AS "group", '
    "0::SMALLINT AS threads, 0::BIGINT AS duration_ns, 0::BIGINT AS cpu_ns, false AS identical, "
    "NULL::INTEGER[] AS iteration WHERE false)"
)
_EMPTY = {"activity": _SAMPLES, "probes": _PROBES}


_TIMED = (
    "count",
    "total_ns",
    "mean_ns",
    "median_ns",
    "self_ns",
    "cpu_ns",
    "cores_used",
    "threads",
)


class Tables:
    """The views of one trace.

    Attributes:
        made: Names of the views that exist.
    """

    def __init__(self, store: Store, info: TraceInfo) -> None:
        """Make the views that read the files in place.

        Args:
            store: Store whose connection makes views in the schema of this trace.
            info: What the trace says about itself.
        """
        self.made: set[str] = set()
        self._store = store
        self._hierarchy = _Hierarchy(store)
        self._files = {
            "spans": f"read_parquet({quoted(str(store.spans))})",
            "sources": _sources(),
            "recording": _recording(info),
            "processes": _processes(info),
        }
        for table, empty in _EMPTY.items():
            path = store.beside(table)
            self._files[table] = empty if path is None else f"read_parquet({quoted(str(path))})"
        for name in READ_IN_PLACE:
            self._create(name)

    def ensure(self, name: str) -> None:
        """Make one view and those it reads, unless they exist.

        Raises:
            FactsError: If the trace has no finished iteration.
        """
        if name in self.made:
            return
        for needed in REQUIRES[name]:
            self.ensure(needed)
        hierarchy = self._hierarchy
        hierarchy.load()
        prepare: dict[str, Callable[[], None]] = {
            "iterations": hierarchy.glue,
            "nodes": hierarchy.timings,
            "windows": hierarchy.windows,
            "critical_path": self._chain,
        }
        prepare.get(name, lambda: None)()
        self._create(name)

    def _create(self, name: str) -> None:
        sql = views()[name].sql
        for key, text in self._files.items():
            sql = sql.replace(f"{{{key}}}", text)
        self._store.execute(sql)
        self.made.add(name)

    def _chain(self) -> None:
        """Follow waits from the invocation of each iteration that ended last to its start."""
        self._store.execute(
            "CREATE TEMP TABLE numbered AS SELECT span_id, iteration_id, end_ns, "
            "row_number() OVER (ORDER BY seq) - 1 AS n FROM invocations WHERE leaf"
        )
        followed = self._store.column(
            "SELECT coalesce(p.n, -1) AS n FROM numbered c JOIN waits w USING (span_id) "
            "LEFT JOIN numbered p ON p.span_id = w.waits_for_id ORDER BY c.n",
            "n",
        ).tolist()
        last = self._store.column(
            "SELECT arg_max(n, (end_ns, n)) AS n FROM numbered GROUP BY iteration_id ORDER BY n",
            "n",
        ).tolist()
        steps: list[int] = []
        positions: list[int] = []
        for step in last:
            chain: list[int] = []
            while step >= 0:
                chain.append(step)
                step = followed[step]
            steps += reversed(chain)
            positions += range(len(chain))
        self._store.fill_columns(
            "chain_number",
            {
                "n": np.array(steps, dtype=np.int64),
                "position": np.array(positions, dtype=np.int64),
            },
        )
        self._store.execute(
            "CREATE TEMP TABLE chain AS SELECT span_id, position FROM chain_number JOIN numbered USING (n)"
        )


class _Hierarchy:
    """The temporary tables of `rose_opt.facts`, loaded once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._nodes: tuple[GraphNode, ...] = ()

    def load(self) -> None:
        if self._nodes:
            return
        store = self._store
        self._nodes, _ = build_hierarchy(store, allow_incomplete=True)
        activity = load_activity(store)
        if activity is None:
            store.fill("process_device", "process_id INTEGER, device VARCHAR", ())
        store.set(
            source=None if activity is None else activity.source,
            estimate=None if activity is None else activity.estimate,
            sample_ns=None if activity is None else activity.sample_ns,
            resolution_ns=None if activity is None else activity.resolution_ns,
        )
        store.execute((resources.files("rose_opt.sql") / "level.sql").read_text("utf-8"))

    def glue(self) -> None:
        columns = "idx INTEGER, process_id INTEGER, duration_ns BIGINT, glue_ns BIGINT"
        rows = [tuple(row.values()) for row in self._store.run("iterations")]
        self._store.fill("glue", columns, rows)

    def timings(self) -> None:
        timings = node_timings(self._store, self._nodes)
        below = {node.parent for node in self._nodes}
        rows: list[tuple[Any, ...]] = []
        for node in self._nodes:
            timing = timings.get(node.path)
            if timing is not None:
                states = [
                    [access.state for access in node.accesses.accesses if access.mode.value == mode]
                    for mode in ("read", "update", "refresh")
                ]
                values = [getattr(timing, name) for name in _TIMED]
                leaf = node.kind == "exec" and node.path not in below
                named = (node.path, node.name, node.kind, leaf, node.parent, node.key)
                rows.append((*named, node.accesses.opaque, *states, *values))
        self._store.fill(
            "node_timing",
            "path VARCHAR, node VARCHAR, kind VARCHAR, leaf BOOLEAN, parent VARCHAR, key VARCHAR, opaque BOOLEAN, "
            "reads VARCHAR[], updates VARCHAR[], refreshes VARCHAR[], invocations BIGINT, total_ns BIGINT, "
            "mean_ns BIGINT, median_ns BIGINT, self_ns BIGINT, cpu_ns BIGINT, cores_used DOUBLE, threads INTEGER",
            rows,
        )
        counted = self._store.run("iterations")
        self._store.set(
            iterations=len(counted), iterations_ns=sum(row["duration_ns"] for row in counted)
        )

    def windows(self) -> None:
        facts = build_facts(self._store.spans, FactsSettings(allow_incomplete=True))
        self._store.fill(
            "node_window",
            "path VARCHAR, rank INTEGER, tier INTEGER, refused VARCHAR, total_ns BIGINT, mean_ns BIGINT, calls DOUBLE, "
            "activity DOUBLE, coverage DOUBLE, idle_ns DOUBLE, resolved BOOLEAN",
            [
                (
                    window.target,
                    window.rank,
                    window.tier,
                    window.refused,
                    window.total_ns,
                    window.mean_ns,
                    window.calls,
                    window.sm_activity,
                    window.coverage,
                    None if window.sm_activity is None else window.score,
                    window.resolved,
                )
                for window in facts.windows
            ],
        )


def _sources() -> str:
    rows = ", ".join(
        f"({rank}, {quoted(name)}, {FLOOR_NS.get(name, 0)}, {quoted(MEANING[name])})"
        for rank, name in enumerate(SOURCES)
    )
    return f"SELECT * FROM (VALUES {rows}) AS s(rank, source, floor_ns, meaning)"


def _recording(info: TraceInfo) -> str:
    source = info.activity.get("source")
    reasons = ", ".join(quoted(reason) for reason in info.reasons)
    return (
        f"SELECT {quoted(info.run)} AS run, {info.schema_version} AS schema_version, {info.complete} AS complete, "
        f"[{reasons}]::VARCHAR[] AS reasons, {info.rows.get('spans', 0)}::BIGINT AS spans, "
        f"{info.rows.get('activity', 0)}::BIGINT AS samples, "
        f"{sum(process.lost for process in info.processes)}::BIGINT AS lost, "
        f"{'NULL' if source is None else quoted(str(source))}::VARCHAR AS activity_source, "
        f"{quoted(json.dumps(info.producer))}::VARCHAR AS producer"
    )


def _processes(info: TraceInfo) -> str:
    rows = ", ".join(
        f"({quoted(p.process)}, {p.pid}, {p.rows.get('spans', 0)}, {p.rows.get('activity', 0)}, "
        f"{'NULL' if p.expected is None else p.expected.get('spans', 0)}, {p.lost}, "
        f"{'NULL' if p.failure is None else quoted(p.failure)})"
        for p in info.processes
    )
    empty = "WHERE false" if not rows else ""
    return (
        "SELECT process::VARCHAR AS process, pid::INTEGER AS pid, spans::BIGINT AS spans, samples::BIGINT AS samples, "
        "expected::BIGINT AS expected, lost::BIGINT AS lost, failure::VARCHAR AS failure "
        f"FROM (VALUES {rows or '(NULL, NULL, NULL, NULL, NULL, NULL, NULL)'}) "
        f"AS p(process, pid, spans, samples, expected, lost, failure) {empty}"
    )
