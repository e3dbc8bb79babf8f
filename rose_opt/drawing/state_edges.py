"""State dependencies of a graph as edges: which access must come before which, and in which loop.

The rules are those of `rose_trace.legality`; edges that follow from others are left out.

Paper: §4.3.1, "State dependencies".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rose_opt.graph import Graph, within
from rose_trace.legality import RowRange, conflicting
from rose_trace.records import Access, NodePath, StateAccess


@dataclass(frozen=True, slots=True)
class StateEdge:
    """Two accesses to one state that keep their order.

    Attributes:
        kind: ``RAW`` (the later one uses what the earlier wrote), ``WAR`` (it replaces what the
            earlier one read) or ``WAW`` (it replaces what the earlier one wrote).
        state: Absolute state name.
        earlier: Node that comes first.
        later: Node that waits.
        loop: Innermost loop that both are in, or that carries the edge.
        distance: Iterations of `loop` between the two: 0 or 1.
    """

    kind: Literal["RAW", "WAR", "WAW"]
    state: str
    earlier: NodePath
    later: NodePath
    loop: NodePath
    distance: int

    def __str__(self) -> str:
        carried = f" distance={self.distance}" if self.distance else ""
        return (
            f"state {self.kind} {self.state} {self.earlier} -> {self.later} in {self.loop}{carried}"
        )


class _Touch(NamedTuple):
    path: NodePath
    access: Access
    rows: RowRange | None


def state_edges(graph: Graph) -> tuple[StateEdge, ...]:
    """State edges of a graph.

    Args:
        graph: The graph; nodes in program order.

    Returns:
        Edges within an iteration, then those that a loop carries, innermost loops first; none for
        opaque nodes, which are ordered with everything.
    """
    by_state: dict[str, list[_Touch]] = {}
    for node in graph.nodes:
        around = (node, *graph.ancestors(node.path))
        rows = next((item.accesses.rows for item in around if item.accesses.rows is not None), None)
        for access in node.accesses.accesses:
            by_state.setdefault(access.state, []).append(_Touch(node.path, access, rows))
    loops = sorted(graph.loops(), key=lambda loop: -len(graph.enclosing_loops(loop.path)))
    result: list[StateEdge] = []
    for touches in by_state.values():
        for a, b in _needed(touches):
            result.append(_edge(a, b, graph.common_loop(a.path, b.path).path, 0))
    for touches in by_state.values():
        seen: set[tuple[NodePath, NodePath]] = set()
        for loop in loops:
            inside = [touch for touch in touches if within(touch.path, loop.path)]
            for a, b in _needed(inside, len(inside)):
                if (a.path, b.path) not in seen:
                    seen.add((a.path, b.path))
                    result.append(_edge(a, b, loop.path, 1))
    return tuple(result)


def _needed(touches: Sequence[_Touch], repeat: int = 0) -> Iterator[tuple[_Touch, _Touch]]:
    """Pairs that conflict and are not ordered by a third one between them.

    With `repeat`, the sequence runs twice and only pairs from the first run to the second count.
    """
    order = [*touches, *touches[:repeat]]
    first = len(touches)
    for later in range(first if repeat else 1, len(order)):
        between: list[_Touch] = []
        found: list[_Touch] = []
        for earlier in range(later - 1, -1, -1):
            a, b = order[earlier], order[later]
            if not _conflict(a, b):
                continue
            implied = any(_conflict(a, c) for c in between)
            between.append(a)
            if not implied and (earlier < first or not repeat):
                found.append(a)
        yield from ((a, order[later]) for a in reversed(found))


def _conflict(a: _Touch, b: _Touch) -> bool:
    return conflicting(a.access, b.access, a.rows, b.rows)


def _edge(a: _Touch, b: _Touch, loop: NodePath, distance: int) -> StateEdge:
    kind: Literal["RAW", "WAR", "WAW"] = "RAW"
    if not a.access.mode.writes:
        kind = "WAR"
    elif b.access.mode is StateAccess.REFRESH:
        kind = "WAW"
    return StateEdge(kind, a.access.state, a.path, b.path, loop, distance)
