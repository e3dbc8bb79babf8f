"""What a plan exports of a schedule: orders, not times.

Each worker gets a cyclic order; each pair of phases that capacity keeps apart gets an order
too; and no group may run further ahead of another than in the schedule (lag caps). Replaying
the orders is max-plus: a phase starts when all that it waits for has ended, so with fixed
durations a shorter phase never delays anything.

An edge (before, after, distance) says: `after` of step n waits for `before` of step
n - distance. A distance may be negative; every cycle has a positive total.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rose_opt.schedule.conflicts import entangled_pairs
from rose_opt.schedule.model import LoopProblem, ModuloSchedule, PhaseId, Placed

Reason = Literal["chain", "engine", "capacity", "lag"]


@dataclass(frozen=True, slots=True, order=True)
class OrderEdge:
    """`after` of step n waits for `before` of step n - `distance`.

    Args:
        before: The phase that ends first.
        after: The phase that waits.
        distance: Steps between them; may be negative.
        reason: "chain" for the data of the loop itself, "engine" for the order on one worker,
            "capacity" for phases that do not fit together, "lag" for the lag caps.
    """

    before: PhaseId
    after: PhaseId
    distance: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class CyclicOrders:
    """The exported orders of one loop.

    Args:
        engines: Per worker, its phases in cyclic order.
        edges: Everything that a phase waits for, in sorted order.
        lag_caps: Steps that the first group may be ahead of the second: its step n waits for
            the whole of step n - cap of the second.
    """

    engines: Mapping[str, tuple[PhaseId, ...]]
    edges: tuple[OrderEdge, ...]
    lag_caps: Mapping[tuple[int, int], int]


def cyclic_orders(problem: LoopProblem, schedule: ModuloSchedule) -> CyclicOrders:
    """Return the orders that `schedule` implies.

    Replaying them never exceeds the capacity: two runs that stay unordered overlap in the
    schedule, runs that overlap pairwise have an instant in common, and there the schedule
    fits.
    """
    placed = list(schedule.placed)
    chosen = {key: p.mode for key, p in schedule.by_id.items()}
    demands = [problem.phase(p.id).modes[chosen[p.id]].units() for p in placed]
    edges: set[OrderEdge] = set()
    for chain in problem.chains:
        for number, phase in enumerate(chain):
            after = chain[(number + 1) % len(chain)]
            edges.add(OrderEdge(phase.id, after.id, int(number + 1 == len(chain)), "chain"))

    def ordered_anyway(a: int, b: int) -> bool:
        return placed[a].engine == placed[b].engine or placed[a].id.group == placed[b].id.group

    for a, b in entangled_pairs(demands, problem.capacity.units(), ordered_anyway):
        for before, after in ((placed[a], placed[b]), (placed[b], placed[a])):
            edges.add(_edge(before, after, schedule.period_ns, "capacity"))
    engines = _engine_orders(schedule)
    for order in engines.values():
        # Every pair, not neighbours alone: in the first steps what lies between them does not run yet.
        for before, after in itertools.permutations(order, 2):
            pair = schedule.by_id[before], schedule.by_id[after]
            edges.add(_edge(*pair, schedule.period_ns, "engine"))
    lag_caps: dict[tuple[int, int], int] = {}
    for ahead in problem.chains:
        for behind in problem.chains:
            if ahead is not behind:
                pair = schedule.by_id[behind[-1].id], schedule.by_id[ahead[0].id]
                edge = _edge(*pair, schedule.period_ns, "lag")
                edges.add(edge)
                lag_caps[ahead[0].group, behind[0].group] = edge.distance
    return CyclicOrders(engines, tuple(sorted(edges)), lag_caps)


def _edge(before: Placed, after: Placed, period_ns: int, reason: Reason) -> OrderEdge:
    """Return the tightest order of two phases that the schedule keeps."""
    distance = -((after.start_ns - before.end_ns) // period_ns)
    return OrderEdge(before.id, after.id, distance, reason)


def _engine_orders(schedule: ModuloSchedule) -> dict[str, tuple[PhaseId, ...]]:
    lanes: defaultdict[str, list[Placed]] = defaultdict(list)
    for placed in sorted(schedule.placed, key=lambda p: (p.start_ns % schedule.period_ns, p.id)):
        lanes[placed.engine].append(placed)
    return {engine: tuple(p.id for p in lanes[engine]) for engine in sorted(lanes)}


def live(edges: Iterable[OrderEdge]) -> bool:
    """Return whether every cycle of `edges` has a total distance of at least 1.

    Otherwise a phase waits for itself in the same step, and the replay never starts.
    """
    everything = list(edges)
    return least_period_ns(everything, {e.before: 1 for e in everything}) is not None


def least_period_ns(edges: Sequence[OrderEdge], durations_ns: Mapping[PhaseId, int]) -> int | None:
    """Return the period at which a replay of `edges` settles [ns].

    Args:
        edges: Orders, each phase's own chain included.
        durations_ns: Duration per phase [ns]; they may differ from those planned with.

    Returns:
        The least whole period, or None if some cycle has no positive distance.
    """
    low, high = 0, sum(durations_ns.values()) + 1
    if _settles(edges, durations_ns, high) is False:
        return None
    while low < high:
        middle = (low + high) // 2
        if _settles(edges, durations_ns, middle):
            high = middle
        else:
            low = middle + 1
    return low


def _settles(
    edges: Sequence[OrderEdge], durations_ns: Mapping[PhaseId, int], period_ns: int
) -> bool:
    """Return whether starts exist for a period (Bellman-Ford finds no growing cycle)."""
    nodes = {edge.before for edge in edges} | {edge.after for edge in edges}
    start = dict.fromkeys(nodes, 0)
    for _ in range(len(nodes) + 1):
        changed = False
        for edge in edges:
            ready = start[edge.before] + durations_ns[edge.before] - period_ns * edge.distance
            if ready > start[edge.after]:
                start[edge.after] = ready
                changed = True
        if not changed:
            return True
    return False
