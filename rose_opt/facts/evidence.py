"""What is known about the time of each leaf node, gathered from kernels, host calls, CPU time and samples.

Paper: §4.2 (sources of activity); the causes it serves are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rose_opt.facts.activity import Activity
from rose_opt.facts.causes import BUSY_HOST_FROM, WindowEvidence, find_cause
from rose_opt.facts.store import Store
from rose_opt.facts.timings import Timing
from rose_opt.facts.windows import ELIGIBLE_BELOW, LowActivityWindow
from rose_opt.graph import Graph
from rose_trace.records import NodePath

SM_COUNT = 132  # ours: SMs of a device of which the trace tells no number (H100 and H200 SXM)


def with_causes(
    store: Store,
    graph: Graph,
    windows: Sequence[LowActivityWindow],
    activity: Activity,
    timings: Mapping[str, Timing],
    sm_count: Mapping[str, int],
) -> tuple[LowActivityWindow, ...]:
    """Say of every window with activity below 0.8 why it is there.

    Args:
        store: Database with hierarchy, samples and targets loaded.
        graph: The recorded graph.
        windows: Leaf nodes as windows.
        activity: Where the samples come from.
        timings: Durations and CPU time by node.
        sm_count: SMs by device, where the trace tells.

    Returns:
        The same windows in the same order, the low ones with a cause.
    """
    ids = {node.path: number for number, node in enumerate(graph.nodes)}
    rows = _profiled(store, activity, sm_count)
    others = _others(store, graph, windows, timings)
    result: list[LowActivityWindow] = []
    for window in windows:
        if window.sm_activity is None or window.sm_activity >= ELIGIBLE_BELOW:
            result.append(window)
            continue
        timing = timings[window.target]
        other, share = others.get(window.target, (None, None))
        evidence = WindowEvidence(
            target=window.target,
            calls=timing.count,
            duration_ns=timing.total_ns,
            sm_activity=window.sm_activity,
            on_cpu=activity.source == "cpu",
            bandwidth=window.bandwidth,
            cores_used=timing.cores_used,
            threads=timing.threads,
            other=other,
            other_share=share,
            **rows.get(ids[window.target], {}),
        )
        cause = find_cause(evidence, _partner(graph, windows, window))
        result.append(replace(window, cause=cause))
    return tuple(result)


def _profiled(
    store: Store, activity: Activity, sm_count: Mapping[str, int]
) -> dict[int, dict[str, Any]]:
    """Numbers from the rows of a profiler, by `path_id`; empty where the trace has none."""
    (found,) = store.run("kernel_rows")
    devices = set(activity.devices) | set(sm_count)
    sms = [(device, sm_count.get(device, SM_COUNT)) for device in sorted(devices)]
    store.fill("sms", "device VARCHAR, sms INTEGER", sms)
    store.run("kernels")
    if not found["found"]:
        return {}
    rows = {row.pop("path_id"): row for row in store.run("evidence")}
    if not found["kernels"]:
        waits = ("sync_calls", "sync_ns", "sync_name")
        return {key: {name: row[name] for name in waits} for key, row in rows.items()}
    return rows


def _others(
    store: Store,
    graph: Graph,
    windows: Sequence[LowActivityWindow],
    timings: Mapping[str, Timing],
) -> dict[NodePath, tuple[NodePath, float]]:
    """For nodes whose process computes little, the node that runs most of the time meanwhile."""
    low = {w.target for w in windows if w.sm_activity is not None}
    stalled = [
        number
        for number, node in enumerate(graph.nodes)
        if node.path in low
        and (cores := timings[node.path].cores_used) is not None
        and cores < BUSY_HOST_FROM
    ]
    if not stalled:
        return {}
    store.fill("stalled", "path_id INTEGER", [(number,) for number in stalled])
    result: dict[NodePath, tuple[NodePath, float]] = {}
    for row in store.run("waiting"):
        path = graph.nodes[int(row["path_id"])].path
        share = row["overlap_ns"] / max(timings[path].total_ns, 1)
        result.setdefault(path, (graph.nodes[int(row["other"])].path, share))
    return result


def _partner(graph: Graph, windows: Sequence[LowActivityWindow], window: LowActivityWindow) -> str:
    """The node that keeps the device busiest, in words; whether it may overlap is the plan's to say."""
    if graph.node(window.target).accesses.opaque:
        return ""  # declares nothing, so it is never moved
    busiest = max(
        (
            other
            for other in windows
            if other.target != window.target
            and other.sm_activity is not None
            and not graph.node(other.target).accesses.opaque
        ),
        key=lambda other: (other.total_ns * (other.sm_activity or 0.0), other.target),
        default=None,
    )
    if busiest is None or not (busiest.sm_activity or 0.0) > (window.sm_activity or 0.0):
        return ""
    return (
        f"'{graph.node(busiest.target).name}' ({busiest.sm_activity:.0%} active, "
        f"{busiest.total_ns / 1e6:.1f} ms an iteration)"
    )
