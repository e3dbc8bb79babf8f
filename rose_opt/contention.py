"""How much nodes slow each other down on this machine: measured where they ran beside each other.

Nothing is assumed: a pair that was never seen together has no contention, and the plan says so. What an
invocation takes alone comes from a serial reference, the one that predictions start from: the probes,
else the recorded trace, else invocations of the observed run that nothing ran beside. What no fit of
overlaps explains (the machine was busy with something else) is left out.

Paper: §4.4; `rose_opt.schedule.contention` fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rose_opt.facts import Facts
from rose_opt.facts.overlaps import OverlappedInvocation, overlapped_invocations
from rose_opt.graph import within
from rose_opt.phases import tasks_of
from rose_opt.schedule.contention import ContentionFit, Observation, anchors, fit_contention
from rose_opt.schedule.model import Kappa
from rose_opt.ways import measured_ns

ALONE_SHARE = 0.02  # ours: an invocation overlapped by less ran alone [fraction of its duration]
LEAST_ALONE = 3  # ours: fewer that ran alone are chance
DISTURBED = 3.0  # ours: residual above which an invocation is left out [robust standard deviations]
LEAST_SHARE = 0.05  # ours: of a phase's time, below which an overlap tells nothing [fraction]
_ROUNDS = 5  # ours
_SOLO = 1_000_000  # a solo duration, in the units of the fit
TRUSTED = 0.25  # ours: residual above which the plan warns [fraction of the solo time]


@dataclass(frozen=True, slots=True)
class MeasuredContention:
    """Contention between nodes, and where it comes from.

    Attributes:
        kappa: Progress that v loses per second beside w, by (v, w) [fraction]; 0 where a pair was seen
            and showed none, absent where it was never seen.
        sources: Names of the traces that showed overlap.
        anchored: Where solo durations come from, by node: ``alone``, ``probes`` or ``recorded``.
        residual: Root mean square of what the fit leaves unexplained, by node [fraction of solo].
    """

    kappa: Kappa = field(default_factory=dict[tuple[str, str], float])
    sources: tuple[str, ...] = ()
    anchored: Mapping[str, str] = field(default_factory=dict[str, str])
    residual: Mapping[str, float] = field(default_factory=dict[str, float])

    def to_data(self) -> dict[str, Any]:
        """Plain data for the plan."""
        return {
            "sources": list(self.sources),
            "kappa": [[v, w, value] for (v, w), value in sorted(self.kappa.items())],
            "anchored": dict(sorted(self.anchored.items())),
            "residual": dict(sorted(self.residual.items())),
        }


def measured_contention(facts: Facts, traces: Iterable[str | Path]) -> MeasuredContention:
    """Fit contention from traces.

    Args:
        facts: What the trace that is planned says.
        traces: Traces of the same program, of planned runs or native ones; those in which nothing
            overlapped add nothing.

    Returns:
        The contention; empty where nothing ran beside anything.
    """
    paths = [node.path for node in tasks_of(facts)]
    sources: list[str] = []
    observed: list[tuple[OverlappedInvocation, float, str]] = []
    for trace in traces:
        seen = overlapped_invocations(trace, facts.graph.root.path, paths)
        if any(item.beside_ns for item in seen):
            sources.append(Path(trace).name)
            observed += _anchored(facts, seen)
    return _fitted(observed, tuple(sources))


def contention_between(facts: Facts, kappa: Kappa, paths: Iterable[str]) -> Kappa:
    """Contention between subtrees: that of what runs in them, by the time that it takes there.

    Args:
        facts: What the trace says.
        kappa: Contention between the nodes that run as tasks.
        paths: Loops, composites or tasks.

    Returns:
        Contention by pairs of `paths`, where there is any.
    """
    shares: dict[str, dict[str, float]] = {}
    for path in paths:
        spent = {
            node.path: float(facts.timings[node.path].total_ns)
            for node in tasks_of(facts)
            if within(node.path, path) or within(path, node.path)
        }
        total = sum(spent.values()) or 1.0
        shares[path] = {task: time / total for task, time in spent.items()}
    found = {
        (v, w): sum(
            mine * theirs * kappa.get((task, other), 0.0)
            for task, mine in shares[v].items()
            for other, theirs in shares[w].items()
        )
        for v in shares
        for w in shares
    }
    return {pair: value for pair, value in found.items() if value > 0}


def _fitted(
    observed: Sequence[tuple[OverlappedInvocation, float, str]], sources: tuple[str, ...]
) -> MeasuredContention:
    """Fit all invocations of a node in units of its solo duration, so that ways of running it mix."""
    spent: defaultdict[str, float] = defaultdict(float)
    beside: defaultdict[tuple[str, str], float] = defaultdict(float)
    for item, _, _ in observed:
        spent[item.path] += item.duration_ns
        for other, shared in item.beside_ns.items():
            beside[item.path, other] += shared
    told = {pair for pair, shared in beside.items() if shared >= LEAST_SHARE * spent[pair[0]]}
    relative = [
        Observation(
            item.path,
            round(_SOLO * item.duration_ns / solo_ns),
            {
                other: round(_SOLO * shared / solo_ns)
                for other, shared in item.beside_ns.items()
                if (item.path, other) in told
            },
        )
        for item, solo_ns, _ in observed
    ]
    fit = _without_disturbed(relative)
    return MeasuredContention(
        {pair: round(value, 4) for pair, value in sorted(fit.kappa.items())},
        sources,
        {item.path: source for item, _, source in observed},
        {path: round(value, 4) for path, value in fit.residual_fraction.items()},
    )


def _without_disturbed(observations: Sequence[Observation]) -> ContentionFit:
    """Fit, leave out what is far above the fit, and fit again; some rounds, so that it settles."""
    solo = dict.fromkeys((item.phase for item in observations), float(_SOLO))
    kept = list(observations)
    fit = fit_contention(kept, solo)
    for _ in range(_ROUNDS):
        by_phase: defaultdict[str, list[float]] = defaultdict(list)
        for item, left in zip(kept, fit.residual_ns, strict=True):
            by_phase[item.phase].append(left)
        limit = {
            phase: (middle := median(values))
            + DISTURBED * 1.4826 * median(abs(value - middle) for value in values)
            for phase, values in by_phase.items()
        }
        near = [
            item
            for item, left in zip(kept, fit.residual_ns, strict=True)
            if left <= limit[item.phase] + 1e-3
        ]
        if len(near) == len(kept):
            break
        kept = near
        fit = fit_contention(kept, solo)
    return fit


def _anchored(
    facts: Facts, seen: Sequence[OverlappedInvocation]
) -> list[tuple[OverlappedInvocation, float, str]]:
    """Invocations with their solo duration [ns] and its source; those without one are left out."""

    def way(item: OverlappedInvocation) -> str:
        return f"{item.path} {item.groups} {item.threads} {item.sharded}"

    alone = [
        (way(item), item.duration_ns)
        for item in seen
        if sum(item.beside_ns.values()) <= ALONE_SHARE * item.duration_ns
    ]
    ways = [name for name, _ in alone]
    own = anchors(entry for entry in alone if ways.count(entry[0]) >= LEAST_ALONE)
    result: list[tuple[OverlappedInvocation, float, str]] = []
    known: dict[str, tuple[float, str] | None] = {}
    for item in seen:
        name = way(item)
        if name not in known:
            known[name] = _reference(facts, item) or ((own[name], "alone") if name in own else None)
        found = known[name]
        if found is not None:
            result.append((item, *found))
    return result


def _reference(facts: Facts, item: OverlappedInvocation) -> tuple[float, str] | None:
    """Solo duration of an invocation from probes or the recorded trace."""
    variant = "whole" if item.groups == 1 else "shard" if item.sharded else "part"
    probed = measured_ns(facts, item.path, item.groups, variant, item.threads)
    if probed is not None:
        return float(probed), "probes"
    timing = facts.timings.get(item.path)
    if item.groups == 1 and timing is not None and timing.threads == item.threads:
        return float(max(timing.median_ns, 1)), "recorded"
    return None
