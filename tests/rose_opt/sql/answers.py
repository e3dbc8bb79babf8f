"""The answers of the page's queries, computed from the rows of a trace in plain Python.

Nothing here knows the database: every definition is written again, with loops over all rows.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rose_opt.facts import FactsSettings, build_facts
from rose_trace.parquet import beside, read_metadata, read_spans, read_table

Row = dict[str, Any]
LOW = 0.5
FINEST_NS = {"gpm": 100_000_000, "nvml-utilisation": 100_000_000}
ORDER = ["data", "raw", "waw", "war", "thread"]


class Answers:
    """One trace, read and sorted out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = read_metadata(path)
        self.all: list[Row] = read_spans(path).to_pylist()
        self.by_id = {row["span_id"]: row for row in self.all}
        for row in self.all:
            row["until"] = max(row["end_ns"], row["device_end_ns"] or 0)
            row["ns"] = row["until"] - row["start_ns"]
        self.roots = [r for r in self.all if r["kind"] == "iteration" and r["status"] == "ok"]
        for place, root in enumerate(self.roots):
            root["warm_up"] = place == 0 and len(self.roots) > 1
        inside = [r for r in self.all if r["kind"] in {"exec", "loop"} and self.root(r)]
        first: dict[str, tuple[int, int]] = {}  # ties of starts go to the outer invocation
        for row in self.all:
            first.setdefault(row["path"], (row["start_ns"], len(row["path"])))
        self.inside = sorted(inside, key=lambda r: (r["start_ns"], first[r["path"]], r["span_id"]))
        outer = {r["path"].rpartition("/")[0] for r in self.inside}
        self.leaves = [r for r in self.inside if r["kind"] == "exec" and r["path"] not in outer]
        self.samples: list[Row] = []
        if beside(path, "activity").exists():
            rows: list[Row] = read_table("activity", path).to_pylist()
            sources = {r["source"] for r in rows}
            self.source = "pm-sampling" if "pm-sampling" in sources else min(sources)
            self.samples = [r for r in rows if r["source"] == self.source]
            lengths = [r["end_ns"] - r["start_ns"] for r in self.samples]
            shortest = math.floor(statistics.median(lengths))
            self.resolution_ns = max(shortest, FINEST_NS.get(self.source, 0))

    def root(self, row: Row) -> Row | None:
        while row["parent_id"]:
            row = self.by_id[row["parent_id"]]
        finished = row["kind"] == "iteration" and row["status"] == "ok"
        return row if finished else None

    def counted(self) -> list[Row]:
        return [root for root in self.roots if not root["warm_up"]]

    def during(self, start: int, end: int) -> tuple[int, float, int]:
        """Time covered, integral of activity, and time below half between two moments."""
        covered, busy, low = 0, 0.0, 0
        for sample in self.samples:
            ns = min(end, sample["end_ns"]) - max(start, sample["start_ns"])
            if ns > 0:
                covered += ns
                busy += ns * sample["activity"]
                low += ns * (round(sample["activity"] * 1e4) < LOW * 1e4)
        return covered, busy, low

    @functools.cache  # noqa: B019
    def dependencies(self) -> list[tuple[Row, Row, str, str | None, int | None]]:
        """Invocation, what it depends on, why, state and bytes."""
        found: list[tuple[Row, Row, str, str | None, int | None]] = []
        known = {r["span_id"]: r for r in self.inside}
        for row in self.leaves:
            values = {(v["producer"], v["ref"]): v["nbytes"] for v in row["inputs"]}
            for producer in {p for p, _ in values if p in known}:
                size = sum(nbytes for (p, _), nbytes in values.items() if p == producer)
                found.append((row, known[producer], "data", None, size))
        place = {r["span_id"]: n for n, r in enumerate(self.inside)}
        for row in self.leaves:
            for other in self.leaves:
                if place[other["span_id"]] < place[row["span_id"]]:
                    for state, kind in self._conflicts(row, other):
                        found.append((row, other, kind, state, None))
        return found

    @staticmethod
    def _conflicts(row: Row, other: Row) -> Iterable[tuple[str, str]]:
        for mine in row["states"]:
            for theirs in other["states"]:
                left = theirs["version"] + (theirs["access"] != "read")
                if mine["state"] == theirs["state"] and left == mine["version"]:
                    if theirs["access"] != "read":
                        yield mine["state"], "waw" if mine["access"] == "refresh" else "raw"
                    elif mine["access"] != "read":
                        yield mine["state"], "war"

    @functools.cache  # noqa: B019  lives as long as the tests of a module
    def waits(self) -> dict[int, tuple[Row | None, str, str | None, int, int]]:
        """By invocation: which it followed, why, state, when that let it go, and when it was ready."""
        candidates: dict[int, list[tuple[int, int, int, str, Row, str]]] = defaultdict(list)
        place = {r["span_id"]: n for n, r in enumerate(self.inside)}
        for row, other, kind, state, _ in self.dependencies():
            near = self.root(row) is self.root(other) and other in self.leaves
            if near and other["until"] <= row["end_ns"]:
                key = other["until"], -ORDER.index(kind), place[other["span_id"]], state or ""
                candidates[row["span_id"]].append((*key, other, kind))
        result: dict[int, tuple[Row | None, str, str | None, int, int]] = {}
        before: dict[tuple[int, str, int], Row] = {}
        for row in self.leaves:
            root = self.root(row)
            assert root is not None
            mine = candidates[row["span_id"]]
            ready = max((c[0] for c in mine), default=root["start_ns"])
            lane = root["span_id"], row["process"], row["thread"]
            if lane in before:
                last = before[lane]
                key = last["end_ns"], -ORDER.index("thread"), place[last["span_id"]], ""
                mine.append((*key, last, "thread"))
            before[lane] = row
            best = max(mine, key=lambda c: c[:4], default=None)
            if best is None:
                result[row["span_id"]] = None, "start", None, root["start_ns"], ready
            else:
                result[row["span_id"]] = best[4], best[5], best[3] or None, best[0], ready
        return result

    def critical_path(self, root: Row) -> list[tuple[Row, int, int]]:
        """Steps of the chain, backwards: invocation, gap before it and time on the path."""
        waits = self.waits()
        mine = [r for r in self.leaves if self.root(r) is root]
        step: Row | None = max(mine, key=lambda r: (r["until"], self.leaves.index(r)))
        until: int = step["until"]
        steps: list[tuple[Row, int, int]] = []
        while step is not None:
            follows, _, _, available, _ = waits[step["span_id"]]
            begun = min(max(step["start_ns"], available), until)
            steps.append((step, begun - available, until - begun))
            until, step = available, follows
        return steps


def idle_time_by_node(trace: Answers) -> list[tuple[Any, ...]]:
    counted = len(trace.counted())
    eligible = {w.target: w for w in build_facts(trace.path, FactsSettings()).windows}
    rows: list[tuple[Any, ...]] = []
    for path in {r["path"] for r in trace.leaves}:
        mine = [r for r in trace.leaves if r["path"] == path and trace.root(r) in trace.counted()]
        if not mine:
            continue
        sums = [trace.during(r["start_ns"], r["until"]) for r in mine]
        total, covered = sum(r["ns"] for r in mine), sum(s[0] for s in sums)
        if covered < total / 2:
            continue
        value = sum(s[1] for s in sums) / covered
        estimate = total // len(mine) < trace.resolution_ns
        window = eligible[path]  # ranks and refusals are those of rose-opt windows
        rows.append(
            (
                path,
                (total // counted) * (1 - value),
                total // counted,
                value,
                window.rank,
                window.refused,
                trace.source,
                estimate,
                trace.resolution_ns,
            )
        )
    return sorted(rows, key=lambda row: (-round(row[1]), row[0]))


def who_waits_for_whom(trace: Answers) -> list[tuple[Any, ...]]:
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for span_id, (other, reason, state, available, ready) in trace.waits().items():
        row = trace.by_id[span_id]
        if other is not None and trace.root(row) in trace.counted():
            entry = sums[row["path"], other["path"], reason, state]
            entry[0] += 1
            entry[1] += max(row["start_ns"] - ready, 0)
            entry[2] += max(row["start_ns"] - available, 0)
    return sorted(
        ((*key, *value) for key, value in sums.items()),
        key=lambda r: (-r[5], r[0], r[1], r[2], r[3] is None, r[3]),
    )


def first_stall(trace: Answers) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for row in trace.leaves:
        others = [r["ns"] for r in trace.leaves if r["path"] == row["path"]]
        typical = math.floor(statistics.median(others))
        root = trace.root(row)
        if row["ns"] > 3 * typical and root:
            head = row["iteration"][0], row["path"], row["span_id"], row["start_ns"], row["ns"]
            rows.append((*head, typical, row["ns"] / typical, root["warm_up"]))
    return rows


def time_share(trace: Answers) -> list[tuple[Any, ...]]:
    counted = trace.counted()
    everything = sum(root["ns"] for root in counted)
    rows: list[tuple[Any, ...]] = []
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in [*counted, *(r for r in trace.inside if trace.root(r) in counted)]:
        groups[row["path"], row["kind"]].append(row)
    for (path, kind), mine in groups.items():
        own = 0
        for row in mine:
            within = sum(r["ns"] for r in trace.inside if r["parent_id"] == row["span_id"])
            own += max(row["ns"] - within, 0)
        lengths = [r["ns"] for r in mine]
        p95 = sorted(lengths)[math.ceil(0.95 * len(lengths)) - 1]
        mean, median = sum(lengths) // len(mine), math.floor(statistics.median(lengths))
        share = own / everything
        rows.append((path, kind, own // len(counted), share, len(mine), mean, median, p95, own))
    return [row[:-1] for row in sorted(rows, key=lambda row: (-row[-1], row[0]))]


def critical_path_nodes(trace: Answers) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for root in trace.counted():
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for step, gap, on_path in trace.critical_path(root):
            entry = sums[step["path"]]
            entry[0] += 1
            entry[1] += on_path
            entry[2] += gap
        for path, (steps, on_path, gap) in sorted(sums.items(), key=lambda i: (-i[1][1], i[0])):
            head = root["iteration"][0], root["span_id"], path
            rows.append((*head, steps, on_path, gap, on_path / root["ns"]))
    return rows


def data_between_nodes(trace: Answers) -> list[tuple[Any, ...]]:
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row, other, kind, _, nbytes in trace.dependencies():
        if kind == "data":
            entry = sums[other["path"], row["path"]]
            entry[0] += 1
            entry[1] += nbytes or 0
            entry[2] += trace.root(row) is not trace.root(other)
    rows = [(*key, n, size, size // n, across) for key, (n, size, across) in sums.items()]
    return sorted(rows, key=lambda row: (-row[3], row[0], row[1]))


def policy_versions(trace: Answers) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for row in trace.leaves:
        for access in sorted(row["states"], key=lambda s: s["state"]):
            if access["access"] == "read":
                writer = _writer(trace, access["state"], access["version"])
                head = row["iteration"][0], row["path"], row["span_id"], row["group"]
                who = (writer["path"], writer["span_id"]) if writer else (None, None)
                rows.append((*head, access["state"], access["version"], *who))
    return rows


def _writer(trace: Answers, state: str, version: int) -> Row | None:
    for row in trace.leaves:
        for access in row["states"]:
            wrote = access["access"] != "read" and access["version"] + 1 == version
            if access["state"] == state and wrote:
                return row
    return None


def time_below_half(trace: Answers) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for root in trace.roots:
        covered, _, low = trace.during(root["start_ns"], root["until"])
        head = root["iteration"][0], root["span_id"], root["warm_up"], root["ns"], low
        share = low / covered if covered else None
        rows.append((*head, share, covered, trace.source, False, trace.resolution_ns))
    return rows


def cpu_bound_nodes(trace: Answers) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    counted = trace.counted()
    for path in {r["path"] for r in trace.leaves}:
        mine = [r for r in trace.leaves if r["path"] == path and trace.root(r) in counted]
        known = [r for r in mine if r["cpu_ns"] is not None]
        if known:
            total, cpu = sum(r["ns"] for r in mine), sum(r["cpu_ns"] for r in known)
            threads = max((r["threads"] for r in mine if r["threads"]), default=None)
            cores = cpu / sum(r["ns"] for r in known)
            tail = cpu // len(known), total // len(mine), total // len(counted)
            rows.append((path, cores, threads, *tail))
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def longest_gaps(trace: Answers) -> list[tuple[Any, ...]]:
    runs: list[list[Row]] = []
    previous: Row | None = None
    length = math.floor(statistics.median(s["end_ns"] - s["start_ns"] for s in trace.samples))
    for sample in sorted(trace.samples, key=lambda s: s["start_ns"]):
        low = round(sample["activity"] * 1e4) < LOW * 1e4
        near = previous is not None and sample["start_ns"] <= previous["end_ns"] + length
        if low and near and runs and runs[-1][-1] is previous:
            runs[-1].append(sample)
        elif low:
            runs.append([sample])
        previous = sample
    rows: list[tuple[Any, ...]] = []
    for run in runs:
        start, end = run[0]["start_ns"], run[-1]["end_ns"]
        if end - start < trace.resolution_ns:
            continue
        ran: dict[str, int] = defaultdict(int)
        for row in trace.leaves:
            ns = min(end, row["until"]) - max(start, row["start_ns"])
            if ns > 0:
                ran[row["path"]] += ns
        path, ns = min(ran.items(), key=lambda i: (-i[1], i[0])) if ran else (None, 0)
        covered, busy, _ = trace.during(start, end)
        first = min(r["start_ns"] for r in trace.all)
        head = "cuda:0", start - first, end - start, busy / covered
        rows.append((*head, path, ns, trace.source, False, trace.resolution_ns))
    return sorted(rows, key=lambda row: (-row[2], row[0], row[1]))


def losses(trace: Answers) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    info = trace.info
    for p in info.processes:
        spans = p.rows["spans"]
        expected = None if p.expected is None else p.expected["spans"]
        missing = None if expected is None else expected - spans
        tail = p.lost, p.failure, info.complete, info.reasons
        rows.append((p.process, p.pid, spans, expected, missing, *tail))
    if not rows:
        return [(None,) * 7 + (info.complete, info.reasons)]
    return sorted(rows, key=lambda row: (-row[5], row[0], row[1]))


def activity_before_after(before: Answers, after: Answers) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for name, trace in (("before", before), ("after", after)):
        counted = trace.counted()
        sums = [trace.during(r["start_ns"], r["until"]) for r in counted]
        covered = sum(s[0] for s in sums)
        head = name, len(counted), math.floor(statistics.median(r["ns"] for r in counted))
        values = sum(s[1] for s in sums) / covered, sum(s[2] for s in sums) / covered
        rows.append((*head, *values, trace.source, False, trace.resolution_ns))
    return rows


def nodes_before_after(before: Answers, after: Answers) -> list[tuple[Any, ...]]:
    sums: list[dict[str, int]] = []
    for trace in (before, after):
        totals: dict[str, int] = defaultdict(int)
        counted = trace.counted()
        for row in [*counted, *(r for r in trace.inside if trace.root(r) in counted)]:
            totals[row["path"]] += row["ns"]
        sums.append({path: total // len(counted) for path, total in totals.items()})
    rows: list[tuple[Any, ...]] = []
    for path in sums[0].keys() | sums[1].keys():
        b, a = sums[0].get(path), sums[1].get(path)
        ratio = None if a is None or not b else a / b
        rows.append((path, b, a, (a or 0) - (b or 0), ratio))
    return sorted(rows, key=lambda row: (-abs(row[3]), row[0]))


ANSWERS: dict[str, Callable[..., list[tuple[Any, ...]]]] = {
    "activity-before-after": activity_before_after,
    "cpu-bound-nodes": cpu_bound_nodes,
    "critical-path-nodes": critical_path_nodes,
    "data-between-nodes": data_between_nodes,
    "first-stall": first_stall,
    "idle-time-by-node": idle_time_by_node,
    "longest-gaps": longest_gaps,
    "losses": losses,
    "nodes-before-after": nodes_before_after,
    "policy-versions": policy_versions,
    "time-below-half": time_below_half,
    "time-share": time_share,
    "who-waits-for-whom": who_waits_for_whom,
}
