"""Lower bounds on the time per step that no schedule can beat, whatever its shape.

Every bound uses the best mode for itself, so it holds across modes. The co-run bound is the
strongest: it shares out time between the sets of phases that may run together. The others
say in one word what limits the loop, which is what a person wants to read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ortools.linear_solver.python import model_builder

from rose_opt.schedule.capacity import RESOURCES, Limits, Mode, Units, within
from rose_opt.schedule.conflicts import least_units, maximal_cliques
from rose_opt.schedule.model import LEAST_RATE, Kappa, LoopProblem, usable_modes

_COLUMN_LIMIT = 20_000  # ours: co-run sets before the co-run bound is left out
_LP_TOLERANCE = 1e-7  # relative; GLOP's optimum may lie this much above the true one


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds on the time per step.

    Args:
        recurrence_ns: The longest chain: one group's step waits for its last [ns].
        engine_ns: The busiest worker [ns].
        area_ns: The scarcest resource, at its capacity all the time [ns].
        clique_ns: Phases that can never run together [ns].
        corun_ns: Sharing time out between co-run sets, contention included [ns]; 0 where there
            are too many sets.
    """

    recurrence_ns: int
    engine_ns: int
    area_ns: int
    clique_ns: int
    corun_ns: int

    @property
    def best_ns(self) -> int:
        """The largest of the bounds [ns]."""
        return max(self.recurrence_ns, self.engine_ns, self.area_ns, self.clique_ns, self.corun_ns)

    @property
    def limiting(self) -> str:
        """Name of the first bound, in declaration order, that reaches the largest."""
        names = ("recurrence", "engine", "area", "clique", "corun")
        return next(name for name in names if getattr(self, f"{name}_ns") == self.best_ns)


@dataclass(frozen=True, slots=True)
class PhaseClass:
    """Phases that differ only in their group.

    Args:
        name: Name of the phase.
        engine: The worker that runs all of them.
        modes: Usable modes.
        groups: The groups that have one, each of which runs one phase at a time; none where phases
            belong to no group.
    """

    name: str
    engine: str
    modes: tuple[Mode, ...]
    groups: tuple[int, ...]

    @property
    def best_ns(self) -> int:
        """Shortest duration over the modes [ns]."""
        return min(mode.duration_ns for mode in self.modes)

    @property
    def least(self) -> Units:
        """Smallest demand per resource over the modes."""
        return least_units([mode.units() for mode in self.modes])


def phase_classes(problem: LoopProblem) -> list[PhaseClass]:
    """Merge the phases that differ only in their group, in order of first appearance."""
    members: dict[tuple[str, str, tuple[Mode, ...]], list[int]] = {}
    for phase in problem.phases:
        usable = usable_modes(str(phase.id), phase.modes, problem.capacity)
        modes = tuple(phase.modes[index] for index in usable)
        members.setdefault((phase.name, phase.engine, modes), []).append(phase.group)
    return [PhaseClass(*key, tuple(groups)) for key, groups in members.items()]


def bounds(problem: LoopProblem) -> Bounds:
    """Return the lower bounds on the time per step of `problem`."""
    classes = phase_classes(problem)
    limits = problem.capacity.units()
    load: Counter[str] = Counter()
    chain: Counter[int] = Counter()
    for kind in classes:
        load[kind.engine] += kind.best_ns * len(kind.groups)
        chain.update(dict.fromkeys(kind.groups, kind.best_ns))
    cliques = maximal_cliques(
        len(classes), lambda a, b: never_together(classes[a], classes[b], limits)
    )
    return Bounds(
        recurrence_ns=max(chain.values()),
        engine_ns=max(load.values()),
        area_ns=_area_ns(classes, limits),
        clique_ns=max(
            sum(classes[i].best_ns * len(classes[i].groups) for i in clique) for clique in cliques
        ),
        corun_ns=corun_ns(classes, [len(kind.groups) for kind in classes], limits, problem.kappa),
    )


def never_together(a: PhaseClass, b: PhaseClass, limits: Limits) -> bool:
    """Return whether two classes conflict in all of their modes."""
    if a.engine == b.engine or (a.groups == b.groups and len(a.groups) == 1):
        return True
    return not within([a.least, b.least], limits)


def _area_ns(classes: Sequence[PhaseClass], limits: Limits) -> int:
    worst = 0
    for axis in range(len(RESOURCES)):
        limit = limits[axis]
        if limit:
            work = sum(
                len(kind.groups) * min(mode.duration_ns * mode.units()[axis] for mode in kind.modes)
                for kind in classes
            )
            worst = max(worst, -(-work // limit))
    return worst


Column = tuple[tuple[int, int], ...]
"""Phases that run together: (class, mode) pairs."""


def corun_sets(classes: Sequence[PhaseClass], limits: Limits) -> Iterator[Column]:
    """Yield every set of (class, mode) that fits the workers, the groups and the machine."""

    def extend(chosen: Column, first: int) -> Iterator[Column]:
        for index in range(first, len(classes)):
            kinds = [classes[i] for i, _ in chosen] + [classes[index]]
            if len({kind.engine for kind in kinds}) < len(kinds) or not _distinct_groups(kinds):
                continue
            for number, mode in enumerate(classes[index].modes):
                demands = [classes[i].modes[m].units() for i, m in chosen] + [mode.units()]
                if within(demands, limits):
                    grown = (*chosen, (index, number))
                    yield grown
                    yield from extend(grown, index + 1)

    yield from extend((), 0)


def _distinct_groups(kinds: Sequence[PhaseClass]) -> bool:
    """Return whether each class can be of another group (a group runs one phase at a time)."""
    owner: dict[int, int] = {}

    def place(kind: int, seen: set[int]) -> bool:
        for group in kinds[kind].groups:
            if group not in seen:
                seen.add(group)
                if group not in owner or place(owner[group], seen):
                    owner[group] = kind
                    return True
        return False

    return all(place(kind, set()) for kind in range(len(kinds)) if kinds[kind].groups)


def corun_ns(
    classes: Sequence[PhaseClass], counts: Sequence[float], limits: Limits, kappa: Kappa
) -> int:
    """Least time in which every class does its work, shared out between the co-run sets.

    It solves min sum(y), s.t. every class makes its progress over the sets: phase v in mode m
    progresses by (1 - sum of kappa beside it) / duration per unit of time, and never stands still.

    Args:
        classes: What runs.
        counts: How often. Shape: as `classes`.
        limits: Capacity in units.
        kappa: Contention by the classes' names.

    Returns:
        The bound [ns]; 0 where there are too many sets.

    Raises:
        RuntimeError: If GLOP finds no optimum; one always exists.
    """
    columns: list[Column] = []
    for column in corun_sets(classes, limits):
        columns.append(column)
        if len(columns) > _COLUMN_LIMIT:
            return 0
    scale = max((kind.best_ns for kind in classes), default=1)
    model = model_builder.Model()
    times = [model.new_num_var(0.0, math.inf, "") for _ in columns]
    progress: list[list[tuple[model_builder.Variable, float]]] = [[] for _ in classes]
    for time, column in zip(times, columns, strict=True):
        for index, number in column:
            lost = sum(
                kappa.get((classes[index].name, classes[other].name), 0.0)
                for other, _ in column
                if other != index
            )
            duration = classes[index].modes[number].duration_ns / scale
            progress[index].append((time, max(1.0 - lost, LEAST_RATE) / duration))
    for count, terms in zip(counts, progress, strict=True):
        rates = model_builder.LinearExpr.weighted_sum(  # pyright: ignore[reportUnknownMemberType]
            [time for time, _ in terms], [rate for _, rate in terms]
        )
        model.add(rates >= count)
    model.minimize(model_builder.LinearExpr.sum(times))  # pyright: ignore[reportUnknownMemberType]
    solver = model_builder.Solver("glop")
    status = solver.solve(model)
    if status != model_builder.SolveStatus.OPTIMAL:
        raise RuntimeError(
            f"co-run bound: expected an optimum, got GLOP status {status}. "
            "Report the problem; its durations may be out of range."
        )
    return math.ceil(solver.objective_value * scale * (1.0 - _LP_TOLERANCE))
