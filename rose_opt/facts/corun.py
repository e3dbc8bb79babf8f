"""Activity of nodes from samples that are coarse: regression on the sets of nodes that run together.

A sample that lasts as long as several invocations is their mixture, and the plain mean over a node's
time blurs it with its neighbours. But every sample is the sum, over the sets of leaf nodes that ran
together during it, of the share of its time that each set ran times the activity of that set, and the
shares are known exactly. Least squares within 0..1 gives the activity of every set, and a node's is the
mean over the sets it was in. It counts only where its standard error is small; where invocations come in
the same proportions in every sample nothing can be separated, and the plain mean stays.

Does not handle: sources whose value describes an unknown stretch of time (NVML utilisation, counters read
faster than they refresh), and estimates from kernels, whose times are exact anyway.

Paper: §4.3.2 ("SM activity"); the regression is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from rose_opt.facts.activity import Activity
from rose_opt.facts.levels import NodeLevel
from rose_opt.facts.store import Store

np: Any = numpy  # its type stubs leave results of mixed arrays unknown

SEPARABLE = frozenset({"pm-sampling", "gpm", "cpu"})
"""Sources whose samples are means over exactly their own time."""

COARSE_BELOW = (
    10.0  # ours: samples in an invocation below which its edges blur the mean by over 5 %
)
MAX_ERROR = 0.02  # ours: largest standard error of an activity that replaces the mean [fraction]
MOST_SAMPLES = 100_000  # ours: more of them change no digit that is shown
MOST_SETS = 256  # ours: rarer sets are left out with the samples that hold them
RIDGE = 1e-9  # ours: keeps sets that never vary at their plain mean instead of anywhere
MIN_NOISE = 0.005  # ours: no sample is taken to be more exact, however well the sets explain it
SWEEPS = 2_000  # ours


def separate_activity(
    store: Store, activity: Activity, levels: Mapping[int, NodeLevel]
) -> dict[int, float]:
    """Activity of the nodes whose invocations are short beside a sample.

    Args:
        store: Database with hierarchy, samples and targets loaded.
        activity: Where the samples come from.
        levels: Plain means by `path_id`.

    Returns:
        Activity by `path_id` [fraction, to ten-thousandths], of nodes for which it is known better than
        by the mean; empty where the source is fine enough, or none that can be separated.
    """
    short = {
        path_id
        for path_id, level in levels.items()
        if level.duration_ns < COARSE_BELOW * activity.resolution_ns * level.count
    }
    if not short or activity.source not in SEPARABLE or activity.sample_ns < activity.resolution_ns:
        return {}
    spent: dict[int, list[tuple[float, float, float]]] = {path_id: [] for path_id in short}
    for device in activity.devices:
        problem = _occupancy(store, device)
        if problem is not None:
            _add_nodes(problem, spent)
    result: dict[int, float] = {}
    for path_id, parts in spent.items():
        time = sum(part[0] for part in parts)
        if parts and sum(part[0] * part[2] for part in parts) <= MAX_ERROR * time:
            result[path_id] = round(sum(part[0] * part[1] for part in parts) / time, 4)
    return result


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Which sets of nodes ran during each sample of one device.

    Attributes:
        shares: Share of each sample's time that each set ran. Shape: one row per sample, one column
            per set.
        values: Activity of each sample [fraction]. Shape: one entry per sample.
        sets: By set, the nodes in it by `path_id`; the empty set is time outside leaf nodes.
    """

    shares: Any
    values: Any
    sets: tuple[tuple[int, ...], ...]


def solve_sets(problem: Occupancy) -> tuple[Any, Any]:
    """Activity of every set by least squares within 0..1.

    Args:
        problem: Samples and what ran during them.

    Returns:
        Activity of each set [fraction] and the covariance of the estimates. Shape: one entry per set;
        one row and column per set.
    """
    shares, values = problem.shares, problem.values
    count = shares.shape[1]
    gram, right = shares.T @ shares, shares.T @ values
    plain = right / np.maximum(shares.sum(axis=0), 1e-12)
    ridge = RIDGE * max(float(np.trace(gram)) / count, 1e-12)
    gram, right = gram + ridge * np.eye(count), right + ridge * plain
    inverse = np.linalg.inv(gram)
    found = inverse @ right
    if found.min() < 0.0 or found.max() > 1.0:
        found = _bounded(gram, right, np.clip(found, 0.0, 1.0))
    residual = values - shares @ found
    variance = float(residual @ residual) / max(len(values) - count, 1)
    return found, inverse * max(variance, MIN_NOISE**2)


def _bounded(gram: Any, right: Any, start: Any) -> Any:
    """Minimum of the quadratic within 0..1, one coordinate after another."""
    found = start.copy()
    for _ in range(SWEEPS):
        moved = 0.0
        for k in range(len(found)):
            value = found[k] + (right[k] - gram[k] @ found) / gram[k, k]
            value = min(max(float(value), 0.0), 1.0)
            moved = max(moved, abs(value - float(found[k])))
            found[k] = value
        if moved < 1e-9:
            break
    return found


def _occupancy(store: Store, device: str) -> Occupancy | None:
    """Samples of one device and the sets that ran; ``None`` where there is too little of either."""
    store.run("corun", device=device, most=MOST_SAMPLES)
    sample = store.arrays("FROM chosen_sample ORDER BY start_ns")
    change = store.arrays("FROM running_set ORDER BY start_ns")
    if len(sample["start_ns"]) < 2 or not len(change["start_ns"]):
        return None
    starts, ends = sample["start_ns"], sample["end_ns"]
    # Elementary stretches: between neighbouring edges of samples and of sets nothing changes.
    edges = np.unique(np.concatenate([starts, ends, change["start_ns"]]))
    edges = edges[(edges >= starts[0]) & (edges <= ends[-1])]
    begin, length = edges[:-1], np.diff(edges)
    of_sample = np.searchsorted(starts, begin, side="right") - 1
    of_set = np.searchsorted(change["start_ns"], begin, side="right") - 1
    names, which = np.unique(change["running"], return_inverse=True)
    idle = int(np.flatnonzero(names == 0)[0]) if (names == 0).any() else len(names)
    column = np.where(of_set >= 0, which[np.maximum(of_set, 0)], idle)
    inside = (of_sample >= 0) & (begin < ends[np.maximum(of_sample, 0)])
    rows, width = len(starts), max(len(names), idle + 1)
    kept = np.argsort(-np.bincount(column[inside], length[inside], width), kind="stable")
    kept = kept[:MOST_SETS]
    place = np.full(width, len(kept))
    place[kept] = np.arange(len(kept))
    cell = of_sample[inside] * (len(kept) + 1) + place[column[inside]]
    shares = np.bincount(cell, length[inside], rows * (len(kept) + 1))
    shares = shares.reshape(rows, len(kept) + 1) / (ends - starts)[:, None]
    whole = shares[:, -1] == 0.0
    members = _members(store, names)
    sets = tuple(members.get(int(n), ()) for n in kept)
    return Occupancy(shares[whole, :-1], sample["level"][whole] / 1e4, sets)


def _members(store: Store, names: Any) -> dict[int, tuple[int, ...]]:
    """By position of a set's key, the nodes in it."""
    rows = store.execute("FROM member ORDER BY running")
    by_key = {int(row["running"]): tuple(row["paths"]) for row in rows}
    return {place: by_key.get(int(key), ()) for place, key in enumerate(names)}


def _add_nodes(problem: Occupancy, spent: dict[int, list[tuple[float, float, float]]]) -> None:
    """Add time, activity and its standard error on this device to every wanted node."""
    found, covariance = solve_sets(problem)
    time = problem.shares.sum(axis=0)
    for path_id, parts in spent.items():
        inside = np.array([path_id in members for members in problem.sets])
        weight = np.where(inside, time, 0.0)
        total = float(weight.sum())
        if total > 0.0:
            weight = weight / total
            error = float(np.sqrt(max(float(weight @ covariance @ weight), 0.0)))
            parts.append((total, float(weight @ found), error))
