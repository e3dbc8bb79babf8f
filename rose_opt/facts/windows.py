"""Low-activity windows: leaf nodes during which the device is mostly idle, ranked.

Activity is device-wide, so a window that other work already fills ranks low by itself.

Paper: §4.3.2, "Ranking low-activity nodes"; Fig. 3 (windows in the raw samples).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rose_opt.facts.activity import Activity
from rose_opt.facts.causes import Cause
from rose_opt.facts.corun import separate_activity
from rose_opt.facts.levels import NodeLevel, node_levels
from rose_opt.facts.store import Store
from rose_opt.facts.timings import IterationTiming
from rose_opt.graph import Graph, GraphNode
from rose_trace.records import NodePath

ELIGIBLE_BELOW = 0.8  # §4.3.2: above this, a node leaves nothing to fill
FIRST_TIER_BELOW = 0.5  # §4.3.2
MIN_COVERAGE = 0.5  # ours: share of a node's time that samples must cover
MIN_WINDOW_NS = 1_000_000_000  # τ_a, ours
MIN_WINDOW_FRACTION = 0.01  # τ_r, ours
MOST_SAMPLE_WINDOWS = 20  # ours


@dataclass(frozen=True, slots=True)
class LowActivityWindow:
    """A leaf node as a place to fill with other work.

    Attributes:
        target: The node, v.
        total_ns: Its summed duration in one iteration and rank, D_v [ns].
        mean_ns: Mean duration of one invocation [ns].
        calls: Invocations in one iteration and rank.
        sm_activity: Time-weighted mean activity during it, a_v [fraction]; ``None`` where samples
            cover less than half of its time.
        coverage: Share of its time that samples cover [fraction].
        resolved: Whether an invocation lasts at least as long as one sample; otherwise the activity
            is spread over its neighbours and is read as an estimate.
        score: S(v) = D_v * (1 - a_v) [ns]; 0 without activity.
        tier: 0 if activity is below 0.5, else 1; ``None`` if it is not eligible.
        rank: Position pi among eligible nodes, from 1; ``None`` if it is not eligible.
        refused: Why it is not eligible; empty if it is.
        bandwidth: Mean share of the memory's bandwidth in use during it [fraction]; ``None`` where it
            was not sampled.
        separated: Whether `sm_activity` is separated from its neighbours' by regression
            (`rose_opt.facts.corun`), because the source is coarse.
        cause: Why the device is not busy; ``None`` where it is, or where nothing is known.
        estimated: Whether part of its invocations were not recorded in full: their duration is known
            as a sum, their activity is taken to be that of the others.
    """

    target: NodePath
    total_ns: int
    mean_ns: int
    calls: float
    sm_activity: float | None
    coverage: float
    resolved: bool
    score: float
    tier: int | None = None
    rank: int | None = None
    refused: str = ""
    bandwidth: float | None = None
    separated: bool = False
    cause: Cause | None = None
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class SampleWindow:
    """A maximal run of adjacent samples below the threshold.

    Attributes:
        device: Device of the samples.
        start_ns: Start of the first sample [Unix ns].
        end_ns: End of the last sample [Unix ns].
        activity: Mean activity in it [fraction].
        target: Leaf node that runs longest during it, ``None`` if none does.
        overlap_ns: How long that node runs during it [ns].
        call: CUDA call in which the host waits longest during it; empty where none is recorded.
        call_ns: How long it waits in such calls during it [ns].
    """

    device: str
    start_ns: int
    end_ns: int
    activity: float
    target: NodePath | None
    overlap_ns: int
    call: str = ""
    call_ns: int = 0


def window_score(total_ns: int, sm_activity: float) -> float:
    """Rank weight of a target's low-activity window.

    Args:
        total_ns: Summed invocation duration in one iteration, D_v [ns].
        sm_activity: Time-weighted mean SM activity [fraction, 0..1].

    Returns:
        S(v) = D_v * (1 - a_v) [ns].

    Raises:
        ValueError: If `sm_activity` is outside 0..1.

    Paper: §4.3.2, "Ranking low-activity nodes".

    >>> window_score(2_000, 0.25)
    1500.0
    """
    if not 0.0 <= sm_activity <= 1.0:
        raise ValueError(
            f"window_score: expected an activity in 0..1, got {sm_activity}. Divide percent by 100."
        )
    return total_ns * (1.0 - sm_activity)


def target_windows(
    store: Store,
    graph: Graph,
    iteration: IterationTiming,
    activity: Activity,
    min_window_ns: int = MIN_WINDOW_NS,
    min_window_fraction: float = MIN_WINDOW_FRACTION,
) -> tuple[LowActivityWindow, ...]:
    """All leaf nodes as windows, eligible ones first and by rank.

    Args:
        store: Database with hierarchy and samples loaded; gets the table ``target``.
        graph: The recorded graph.
        iteration: Duration of an iteration and how many count.
        activity: Where the samples come from.
        min_window_ns: Shortest eligible D_v, if it is below the next threshold [ns].
        min_window_fraction: Shortest eligible D_v as part of the iteration [fraction].

    Returns:
        Windows by rank, then the refused ones in program order.
    """
    shortest_ns = min(min_window_ns, int(min_window_fraction * iteration.iteration_ns))
    levels = node_levels(store, graph)
    summed = {row["path_id"]: (row["count"], row["total_ns"]) for row in store.run("summed")}
    # What runs in iterations that were left out is unknown: nothing to separate samples by.
    separated = {} if summed else separate_activity(store, activity, levels["activity"])
    windows: list[LowActivityWindow] = []
    for path_id, level in sorted(levels["activity"].items()):
        node = graph.nodes[path_id]
        extra = summed.get(path_id, (0, 0))
        window = _window(node, level, extra, separated.get(path_id), iteration, activity)
        memory = levels["dram"].get(path_id)
        window = replace(window, bandwidth=None if memory is None else memory.activity)
        windows.append(_judge(node, window, shortest_ns))
    eligible = sorted(
        (window for window in windows if not window.refused),
        key=lambda window: (window.tier or 0, -window.score, window.target),
    )
    ranked = (replace(window, rank=rank) for rank, window in enumerate(eligible, start=1))
    return (*ranked, *(window for window in windows if window.refused))


def sample_windows(
    store: Store, nodes: Sequence[GraphNode], activity: Activity, min_ns: int = 0
) -> tuple[SampleWindow, ...]:
    """The longest stretches of low activity in the raw samples, whatever runs.

    Args:
        store: Database with hierarchy, samples, targets and host calls loaded.
        nodes: Nodes of the hierarchy, by `path_id`.
        activity: Where the samples come from.
        min_ns: Shortest stretch to report, at least one sample [ns].

    Returns:
        At most 20 windows, longest first.
    """
    rows = store.run(
        "low_samples",
        low_level=round(FIRST_TIER_BELOW * 1e4),
        sample_ns=activity.sample_ns,
        min_ns=max(min_ns, activity.resolution_ns),
        most=MOST_SAMPLE_WINDOWS,
    )
    result: list[SampleWindow] = []
    for row in rows:
        path_id = row.pop("path_id")
        for name, missing in (("overlap_ns", 0), ("call", ""), ("call_ns", 0)):
            row[name] = row[name] or missing
        target = None if path_id is None else nodes[int(path_id)].path
        result.append(SampleWindow(**row, target=target))
    return tuple(result)


def _window(
    node: GraphNode,
    level: NodeLevel,
    summed: tuple[int, int],
    separated: float | None,
    iteration: IterationTiming,
    activity: Activity,
) -> LowActivityWindow:
    count, duration_ns = level.count + summed[0], level.duration_ns + summed[1]
    total_ns, mean_ns = duration_ns // iteration.used, duration_ns // count
    coverage = level.covered_ns / max(level.duration_ns, 1)
    value = None
    if coverage >= MIN_COVERAGE:
        value = level.activity if separated is None else separated
    return LowActivityWindow(
        target=node.path,
        total_ns=total_ns,
        mean_ns=mean_ns,
        calls=count / iteration.used,
        sm_activity=value,
        coverage=coverage,
        resolved=mean_ns >= activity.resolution_ns,
        score=0.0 if value is None else window_score(total_ns, value),
        separated=value is not None and separated is not None,
        estimated=summed[0] > 0,
    )


def _judge(node: GraphNode, window: LowActivityWindow, shortest_ns: int) -> LowActivityWindow:
    reason = ""
    if node.accesses.opaque:
        reason = "declares nothing, so it is never moved"
    elif window.sm_activity is None:
        reason = f"samples cover {window.coverage:.0%} of its time, below {MIN_COVERAGE:.0%}"
    elif window.sm_activity >= ELIGIBLE_BELOW:
        reason = f"activity {window.sm_activity:.2f} is not below {ELIGIBLE_BELOW}"
    elif window.total_ns < shortest_ns:
        reason = f"{window.total_ns / 1e6:.3f} ms an iteration, below {shortest_ns / 1e6:.3f} ms"
    if reason or window.sm_activity is None:
        return replace(window, refused=reason)
    return replace(window, tier=0 if window.sm_activity < FIRST_TIER_BELOW else 1)
