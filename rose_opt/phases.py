"""Phases of a loop's step: which invocations are handed out as one, and how often each is called.

Paper: §4.2 (execution hierarchy).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rose_opt.facts import Facts
from rose_opt.graph import GraphNode


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task of the executor runs: a leaf, or a composite that stays in one component.

    Attributes:
        path: Node path.
        component: Instance that it is a method of; empty for a function.
        calls: Calls in one run of the loop body.
    """

    path: str
    component: str
    calls: float


def units(facts: Facts, path: str) -> Iterator[Unit]:
    """Units of one run of the body of `path`, in program order.

    Args:
        facts: What is known.
        path: A loop, a composite or the root.

    Yields:
        Units; loops inside are units, too.
    """
    for child in facts.graph.children(path):
        if child.kind == "exec" and child.composite and not runs_whole(facts, child):
            yield from units(facts, child.path)
        else:
            yield Unit(child.path, child.component or "", calls_per_run(facts, child.path, path))


def runs_whole(facts: Facts, node: GraphNode) -> bool:
    """Whether a composite is one task: it has accesses of its own, or calls only its own component."""
    return node.touches or (
        node.component is not None
        and all(inner.component == node.component for inner in facts.graph.subtree(node.path))
    )


def tasks_of(facts: Facts) -> Iterator[GraphNode]:
    """Nodes whose invocations the executor runs as one task: leaves, and composites that stay whole."""
    whole: set[str] = set()
    for node in facts.graph.nodes:
        if node.kind == "exec" and (not node.composite or runs_whole(facts, node)):
            if not any(above.path in whole for above in facts.graph.ancestors(node.path)):
                yield node
            whole.add(node.path)


def calls_per_run(facts: Facts, path: str, ancestor: str) -> float:
    """Calls of `path` in one run of the body of `ancestor`."""
    runs = facts.timings[ancestor].count * steps(facts, ancestor)
    return facts.timings[path].count / max(runs, 1e-9)


def steps(facts: Facts, path: str) -> float:
    """Iterations of one call of a loop, on average; 1 for other nodes and the root."""
    node = facts.graph.node(path)
    if node.kind != "loop":
        return 1.0
    if node.count is not None:
        return float(node.count)
    per_call = [
        facts.timings[child.path].count / (facts.timings[node.path].count * child.calls_per_parent)
        for child in facts.graph.children(path)
        if child.calls_per_parent
    ]
    return max(per_call, default=1.0)


def recorded_ns(facts: Facts, path: str) -> int:
    """Mean duration of a node in the trace [ns]."""
    return facts.timings[path].mean_ns
