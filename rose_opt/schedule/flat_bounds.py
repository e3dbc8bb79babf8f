"""Lower bounds on one iteration, and the activities that can never run together."""

from __future__ import annotations

from collections import Counter, defaultdict

from rose_opt.schedule.activities import Activity, FlatProblem
from rose_opt.schedule.capacity import RESOURCES, Mode, Units, within
from rose_opt.schedule.conflicts import least_units, maximal_cliques
from rose_opt.schedule.model import usable_modes


def flat_bound_ns(problem: FlatProblem) -> int:
    """Return a time before which no schedule of `problem` ends [ns].

    It is the largest of the critical path, the busiest worker, the scarcest resource and the
    heaviest set that never runs together; each takes the best modes for itself.
    """
    best = {
        a.name: min(mode.duration_ns for mode in _modes(problem, a)) for a in problem.activities
    }
    ends: dict[str, int] = {}
    load: Counter[str] = Counter()
    for activity in problem.activities:
        ready = [ends[p.name] + p.lag_ns for p in activity.predecessors]
        ends[activity.name] = max(ready, default=0) + best[activity.name]
        load.update(dict.fromkeys(activity.engines, best[activity.name]))
    cliques = [sum(best[name] for name in clique) for clique in flat_conflicts(problem)]
    return max([*ends.values(), *load.values(), *cliques, _area_ns(problem)])


def flat_conflicts(problem: FlatProblem) -> list[tuple[str, ...]]:
    """Return sets of activities that never run together, because of a worker or of capacity.

    Activities with the same workers and least demands are alike, so the maximal sets are found
    over kinds of them, which keeps the search small.
    """
    limits = problem.capacity.units()
    alike: defaultdict[tuple[tuple[str, ...], Units], list[str]] = defaultdict(list)
    for activity in problem.activities:
        units = least_units([mode.units() for mode in _modes(problem, activity)])
        alike[tuple(sorted(activity.engines)), units].append(activity.name)

    def conflict(a: tuple[tuple[str, ...], Units], b: tuple[tuple[str, ...], Units]) -> bool:
        return bool({*a[0]} & {*b[0]}) or not within([a[1], b[1]], limits)

    kinds = [kind for kind in alike if conflict(kind, kind)]
    cliques = maximal_cliques(len(kinds), lambda a, b: conflict(kinds[a], kinds[b]))
    sets = [tuple(name for kind in clique for name in alike[kinds[kind]]) for clique in cliques]
    sets += [
        (lone, other)
        for kind, names in alike.items()
        if not conflict(kind, kind)
        for lone in names
        for against, others in alike.items()
        if conflict(kind, against)
        for other in others
    ]
    return [names for names in sets if len(names) > 1]


def _modes(problem: FlatProblem, activity: Activity) -> list[Mode]:
    usable = usable_modes(activity.name, activity.modes, problem.capacity)
    return [activity.modes[index] for index in usable]


def _area_ns(problem: FlatProblem) -> int:
    limits = problem.capacity.units()
    worst = 0
    for axis in range(len(RESOURCES)):
        limit = limits[axis]
        if limit:
            work = sum(
                min(mode.duration_ns * mode.units()[axis] for mode in _modes(problem, activity))
                for activity in problem.activities
            )
            worst = max(worst, -(-work // limit))
    return worst
