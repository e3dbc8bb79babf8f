"""Opening a composite: its device phases in lanes of their own, so that those of two groups overlap.

The paper's Rewire inside a component. No model says whether it pays, since two phases of one component
share the weights, the thread that issues them and the device: it is an offer that is measured.

Paper: §4.3.2; docs/lanes.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rose_opt.facts import Facts
from rose_opt.plan import Hierarchy, Lane, Plan, PlanNode, inside, lane_refusal, runs_whole


def opened_plan(plan: Plan, facts: Facts) -> Plan | None:
    """The plan with composites opened whose phases could overlap on a device.

    Args:
        plan: A plan with groups.
        facts: What the trace says; nodes that gave a device work are in `Facts.on_device`.

    Returns:
        The plan with lanes, the busiest phase first: that is the one a quota limits. ``None`` where no
        loop is split, or no composite has two phases on a device that only read.
    """
    loops = (*plan.splits(), *plan.chains())
    lanes: list[Lane] = []
    changed: set[str] = set()
    for node in plan.nodes:
        if not any(inside(node.path, loop) for loop in loops):
            continue
        found = sorted(
            _phases(plan.hierarchy, node, facts), key=lambda path: _activity(facts, path)
        )
        if len(found) > 1:
            changed.add(node.path)
            lanes += [Lane(path, path.rpartition("/")[2]) for path in reversed(found)]
    if plan.kept_native or not lanes:
        return None
    orders = tuple(
        order
        for order in plan.orders
        if not any(step.path in changed for step in order.cycle)  # the phases have no place in it
    )
    threads = tuple(
        replace(item, path=lane.path)
        for item in plan.threads
        if item.path in changed
        for lane in lanes
        if inside(lane.path, item.path)
    )
    note = (
        f"Opened: {', '.join(sorted(changed))}; predicted times are those of the closed composites."
    )
    return replace(
        plan,
        lanes=tuple(lanes),
        orders=orders,
        threads=(*plan.threads, *threads),
        notes=(*plan.notes, note),
    )


def _phases(hierarchy: Hierarchy, node: PlanNode, facts: Facts) -> Iterator[str]:
    """Leaves of a composite of one component that may have lanes."""
    if not node.composite or not node.component or not runs_whole(hierarchy, node):
        return
    for child in hierarchy.subtree(node.path):
        leaf = child.is_leaf and child.parent == node.path and child.path in facts.on_device
        if leaf and lane_refusal(hierarchy, Lane(child.path, child.name)) is None:
            yield child.path


def _activity(facts: Facts, path: str) -> tuple[float, float]:
    """How busy a phase keeps the device, else how long it lasts."""
    window = facts.window(path)
    timing = facts.timings.get(path)
    busy = (window.sm_activity or 0.0) if window is not None else 0.0
    return busy, timing.mean_ns if timing is not None else 0.0
