"""`build_facts`: everything the optimizer knows about a recorded program.

Paper: §4.3.1 (dependencies), §4.3.2 (windows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rose_opt.facts.activity import Activity, load_activity
from rose_opt.facts.dependencies import data_edges
from rose_opt.facts.evidence import with_causes
from rose_opt.facts.hierarchy import FactsError, build_hierarchy
from rose_opt.facts.loops import LoopFact, loop_facts
from rose_opt.facts.probes import Probe, read_probes
from rose_opt.facts.rows import loop_rows, node_rows
from rose_opt.facts.sampled import Sampled, sampled
from rose_opt.facts.store import opened
from rose_opt.facts.timings import IterationTiming, Timing, iteration_timing, node_timings
from rose_opt.facts.windows import (
    MIN_WINDOW_FRACTION,
    MIN_WINDOW_NS,
    LowActivityWindow,
    SampleWindow,
    sample_windows,
    target_windows,
)
from rose_opt.graph import Graph
from rose_trace.parquet import read_metadata


@dataclass(frozen=True, slots=True)
class FactsSettings:
    """What to take facts from, and when a window counts.

    Attributes:
        root: Path of the root; by default the one that most of the recorded time was spent in.
        source: Activity source; by default the best one recorded.
        min_window_ns: Shortest eligible window, tau_a [ns].
        min_window_fraction: Shortest eligible window as part of the iteration, tau_r [fraction];
            a window that passes either threshold is eligible.
        allow_incomplete: Take facts from a trace that lost rows.
        memory_limit: Memory of the database above which it spills to disk.
    """

    root: str | None = None
    source: str | None = None
    min_window_ns: int = MIN_WINDOW_NS
    min_window_fraction: float = MIN_WINDOW_FRACTION
    allow_incomplete: bool = False
    memory_limit: str = "3GB"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a recorded program.

    Attributes:
        graph: Execution hierarchy with accesses and data edges; no durations.
        loops: Kind of every loop with its evidence, the root included.
        iteration: Duration of an iteration, how many count, and glue.
        timings: Durations by node.
        rows: Rows of results by node, and batch size by loop, where there is one.
        activity: Where activity comes from; ``None`` where the trace has no samples.
        windows: Leaf nodes as windows, by rank, then the refused ones; empty without samples.
        sample_windows: Longest stretches of low activity in the raw samples.
        probes: Measured variants of nodes.
        settings: What was asked for.
        sampling: How much was recorded in full; ``None`` for everything.
        on_device: Nodes that gave a device work.
        memory: What the machine has and the program took at most, as far as the trace tells [bytes].
    """

    graph: Graph
    loops: Mapping[str, LoopFact]
    iteration: IterationTiming
    timings: Mapping[str, Timing]
    rows: Mapping[str, int]
    activity: Activity | None = None
    windows: tuple[LowActivityWindow, ...] = ()
    sample_windows: tuple[SampleWindow, ...] = ()
    probes: tuple[Probe, ...] = ()
    settings: FactsSettings = field(default_factory=FactsSettings)
    sampling: Sampled | None = None
    on_device: frozenset[str] = frozenset()
    memory: Mapping[str, int] = field(default_factory=dict[str, int])

    def window(self, path: str) -> LowActivityWindow | None:
        """The window of a leaf node, eligible or not; ``None`` without samples."""
        return next((window for window in self.windows if window.target == path), None)

    def probes_of(self, path: str) -> tuple[Probe, ...]:
        """Measured variants of one node."""
        return tuple(probe for probe in self.probes if probe.path == path)


def build_facts(trace: str | Path, settings: FactsSettings | None = None) -> Facts:
    """Take the facts from a trace.

    Args:
        trace: Path of ``trace.parquet``; activity and probes are read from the files beside it.
        settings: What to take and when a window counts.

    Returns:
        The same facts for the same files, always.

    Raises:
        FactsError: If the trace lost rows and that is not allowed, or has no finished iteration.
    """
    settings = settings or FactsSettings()
    path = Path(trace)
    info = read_metadata(path)
    if not info.complete and not settings.allow_incomplete:
        raise FactsError(
            f"{path}: expected a complete trace, got one that lost rows ({'; '.join(info.reasons)}). "
            "Record again, or allow an incomplete trace."
        )
    with opened(path, settings.memory_limit) as store:
        # Where nothing that ended was lost, a missing caller is one that had not ended.
        cut_off = settings.allow_incomplete or bool(info.unfinished)
        nodes, structures = build_hierarchy(store, settings.root, cut_off)
        edges = data_edges(store, nodes)
        graph = Graph(nodes, tuple(item.edge for item in edges))
        graph.verify()
        iteration = iteration_timing(store)
        timings = node_timings(store, nodes)
        rows = node_rows(nodes, structures)
        windows: tuple[LowActivityWindow, ...] = ()
        longest: tuple[SampleWindow, ...] = ()
        activity = load_activity(store, settings.source)
        if activity is not None:
            windows = target_windows(
                store,
                graph,
                iteration,
                activity,
                settings.min_window_ns,
                settings.min_window_fraction,
            )
            sm_count: dict[str, int] = info.activity.get("sm_count") or {}
            windows = with_causes(store, graph, windows, activity, timings, sm_count)
            longest = sample_windows(store, nodes, activity)
        return Facts(
            graph=graph,
            loops=loop_facts(store, graph, edges),
            iteration=iteration,
            timings=timings,
            rows={**rows, **loop_rows(graph, rows)},
            activity=activity,
            windows=windows,
            sample_windows=longest,
            probes=read_probes(store),
            settings=settings,
            sampling=sampled(info.steps, timings.values()),
            memory=info.memory,
            on_device=frozenset(
                nodes[int(row["path_id"])].path for row in store.run("device_nodes")
            ),
        )
