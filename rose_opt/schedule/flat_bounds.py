"""Lower bounds on one iteration, and the activities that can never run together."""

from __future__ import annotations

from rose_opt.schedule.activities import Activity, FlatProblem
from rose_opt.schedule.capacity import Mode
from rose_opt.schedule.conflicts import least_units
from rose_opt.schedule.model import usable_modes
from rose_opt.schedule.task_bounds import Demand, TaskBounds, conflict_sets, task_bounds


def flat_bounds(problem: FlatProblem) -> TaskBounds:
    """Return the times before which no schedule of `problem` ends."""
    position = {activity.name: index for index, activity in enumerate(problem.activities)}
    demands = [
        Demand(
            activity.label,
            activity.engines,
            _modes(problem, activity),
            tuple(position[p.name] for p in activity.predecessors),
            tuple(p.lag_ns for p in activity.predecessors),
        )
        for activity in problem.activities
    ]
    return task_bounds(demands, problem.capacity, problem.kappa)


def flat_bound_ns(problem: FlatProblem) -> int:
    """Return the largest of the bounds [ns]."""
    return flat_bounds(problem).best_ns


def flat_conflicts(problem: FlatProblem) -> list[tuple[str, ...]]:
    """Return sets of activities that never run together, because of a worker or of capacity."""
    demands = [
        (activity.engines, least_units([mode.units() for mode in _modes(problem, activity)]))
        for activity in problem.activities
    ]
    return [
        tuple(problem.activities[index].name for index in members)
        for members in conflict_sets(demands, problem.capacity)
    ]


def _modes(problem: FlatProblem, activity: Activity) -> tuple[Mode, ...]:
    usable = usable_modes(activity.name, activity.modes, problem.capacity)
    return tuple(activity.modes[index] for index in usable)
