"""Lower bounds on tasks with precedence, each run once: no schedule that keeps the rules is done earlier.

Heads and tails (the longest chains before and after a task) turn every worker, every set of tasks that
never runs together, and every resource into a one-machine problem, whose bound knows that work comes
ready late and that more follows it. Every bound takes the best mode for itself, so it holds across modes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rose_opt.schedule.bounds import PhaseClass, corun_ns
from rose_opt.schedule.capacity import RESOURCES, Capacity, Mode, Units, within
from rose_opt.schedule.conflicts import least_units, maximal_cliques
from rose_opt.schedule.model import Kappa
from rose_opt.schedule.one_machine import Job, one_machine_bound


@dataclass(frozen=True, slots=True)
class Demand:
    """A task as bounds see it.

    Attributes:
        name: What kappa knows it by.
        engines: The workers that it occupies; a worker runs one task at a time.
        modes: Ways of running it, each within the capacity.
        after: Positions of the tasks that it waits for, all smaller than its own.
        lag_ns: Time between the end of each of them and its start [ns]. Shape: as `after`; none for 0.
    """

    name: str
    engines: tuple[str, ...]
    modes: tuple[Mode, ...]
    after: tuple[int, ...] = ()
    lag_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskBounds:
    """Lower bounds on the time until all tasks are done.

    Attributes:
        path_ns: The longest chain of tasks that wait for each other [ns].
        engine_ns: The busiest worker, with what must come before and after its work [ns].
        clique_ns: Tasks that never run together, likewise [ns].
        area_ns: The scarcest resource, at its capacity all the time, likewise [ns].
        corun_ns: Sharing time out between sets of tasks that may run together, contention included
            [ns]; 0 where there are too many sets.
        engine: The worker that `engine_ns` is about; empty without tasks.
        resource: The resource that `area_ns` is about; empty where none is limited.
    """

    path_ns: int
    engine_ns: int
    clique_ns: int
    area_ns: int
    corun_ns: int
    engine: str = ""
    resource: str = ""

    @property
    def best_ns(self) -> int:
        """The largest of the bounds [ns]."""
        return max(self.path_ns, self.engine_ns, self.clique_ns, self.area_ns, self.corun_ns)

    @property
    def limiting(self) -> str:
        """Name of the first bound, in declaration order, that reaches the largest."""
        names = ("path", "engine", "clique", "area", "corun")
        return next(name for name in names if getattr(self, f"{name}_ns") == self.best_ns)

    @property
    def told(self) -> str:
        """The bound that limits, in a few words.

        >>> TaskBounds(3, 5, 0, 5, 0, "simulator", "cores").told
        'engine simulator'
        """
        return {
            "path": "path (nodes that wait for each other)",
            "engine": f"engine {self.engine}",
            "clique": "clique (nodes that never run together)",
            "area": f"area ({self.resource})",
            "corun": "corun (what may run together, and how it slows down)",
        }[self.limiting]


@dataclass(frozen=True, slots=True)
class _Least:
    """Least demands over the modes of a task: time [ns], units, and time times units."""

    time_ns: int
    units: Units
    work: Units


@dataclass(slots=True)
class _Leasts:
    """Least demands by modes; equal tasks share theirs."""

    known: dict[tuple[Mode, ...], _Least] = field(default_factory=dict[tuple[Mode, ...], _Least])

    def of(self, modes: tuple[Mode, ...]) -> _Least:
        if modes not in self.known:
            each = [(mode.duration_ns, mode.units()) for mode in modes]
            self.known[modes] = _Least(
                min(time for time, _ in each),
                least_units([units for _, units in each]),
                least_units([(t * u[0], t * u[1], t * u[2]) for t, u in each]),
            )
        return self.known[modes]


def task_bounds(
    tasks: Sequence[Demand], capacity: Capacity, kappa: Kappa | None = None
) -> TaskBounds:
    """Lower bounds on the time until all of `tasks` are done.

    Args:
        tasks: The tasks; each waits only for earlier ones.
        capacity: What the machine has.
        kappa: Contention by the tasks' names.

    Returns:
        The bounds.
    """
    leasts = _Leasts()
    least = [leasts.of(task.modes) for task in tasks]
    heads, tails = heads_and_tails(tasks, [item.time_ns for item in least])
    limits = capacity.units()

    def bound(members: Iterable[int], lengths: Mapping[int, float] | None = None) -> int:
        jobs = (
            Job(heads[i], least[i].time_ns if lengths is None else lengths[i], tails[i])
            for i in members
        )
        return int(one_machine_bound(jobs) + 1e-6)

    engines: defaultdict[str, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        for engine in task.engines:
            engines[engine].append(index)
    areas: dict[str, int] = {}
    for axis, resource in enumerate(RESOURCES):
        limit = limits[axis]
        if limit:
            shares = {i: item.work[axis] / limit for i, item in enumerate(least) if item.work[axis]}
            areas[resource] = bound(shares, shares)
    conflicts = conflict_sets(
        [(task.engines, item.units) for task, item in zip(tasks, least, strict=True)], capacity
    )
    busiest = {engine: bound(members) for engine, members in engines.items()}
    return TaskBounds(
        path_ns=max(
            (h + i.time_ns + t for h, i, t in zip(heads, least, tails, strict=True)), default=0
        ),
        engine_ns=max(busiest.values(), default=0),
        clique_ns=max((bound(members) for members in conflicts), default=0),
        area_ns=max(areas.values(), default=0),
        corun_ns=_corun_ns(tasks, capacity, kappa or {}),
        engine=max(busiest, key=lambda engine: busiest[engine], default=""),
        resource=max(areas, key=lambda name: areas[name], default=""),
    )


def heads_and_tails(
    tasks: Sequence[Demand], lengths_ns: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Least time before each task starts, and after each task ends, along chains of waiting [ns].

    Args:
        tasks: The tasks.
        lengths_ns: Least duration of each [ns].

    Returns:
        Heads and tails. Shape: one per task.
    """
    heads, tails = [0] * len(tasks), [0] * len(tasks)
    for index, task in enumerate(tasks):
        for earlier, lag in _waits(task):
            heads[index] = max(heads[index], heads[earlier] + lengths_ns[earlier] + lag)
    for index in range(len(tasks) - 1, -1, -1):
        behind = lengths_ns[index] + tails[index]
        for earlier, lag in _waits(tasks[index]):
            tails[earlier] = max(tails[earlier], behind + lag)
    return heads, tails


def _waits(task: Demand) -> Iterable[tuple[int, int]]:
    return zip(task.after, task.lag_ns or (0,) * len(task.after), strict=True)


def conflict_sets(
    demands: Sequence[tuple[tuple[str, ...], Units]], capacity: Capacity
) -> list[list[int]]:
    """Sets of at least two tasks that never run together, because of a worker or of capacity.

    Tasks with the same workers and least demands are alike, so the maximal sets are found over kinds
    of them, which keeps the search small.

    Args:
        demands: Workers and least units of each task.
        capacity: What the machine has.

    Returns:
        Positions.
    """
    limits = capacity.units()
    alike: defaultdict[tuple[tuple[str, ...], Units], list[int]] = defaultdict(list)
    for index, (engines, units) in enumerate(demands):
        alike[tuple(sorted(engines)), units].append(index)

    def conflict(a: tuple[tuple[str, ...], Units], b: tuple[tuple[str, ...], Units]) -> bool:
        return bool({*a[0]} & {*b[0]}) or not within([a[1], b[1]], limits)

    kinds = [kind for kind in alike if conflict(kind, kind)]
    cliques = maximal_cliques(len(kinds), lambda a, b: conflict(kinds[a], kinds[b]))
    sets = [[index for kind in clique for index in alike[kinds[kind]]] for clique in cliques]
    sets += [
        [lone, other]
        for kind, members in alike.items()
        if not conflict(kind, kind)
        for lone in members
        for against, others in alike.items()
        if conflict(kind, against)
        for other in others
    ]
    return [members for members in sets if len(members) > 1]


def _corun_ns(tasks: Sequence[Demand], capacity: Capacity, kappa: Kappa) -> int:
    """The co-run bound; left out where a task has several workers, or none."""
    if any(len(task.engines) != 1 for task in tasks):
        return 0
    counts = Counter((task.name, task.engines[0], task.modes) for task in tasks)
    classes = [PhaseClass(name, engine, modes, ()) for name, engine, modes in counts]
    return corun_ns(classes, list(counts.values()), capacity.units(), kappa)
