"""What the executor makes of a split loop: ready work is handed out at once, earliest in program order first.

A schedule is what would be possible; this is what happens without waiting for anybody: a phase starts as
soon as its group got there, its worker is free and enough cores are, and nothing later in program order
overtakes one that waits for cores.

Paper: §4.2, "Execution".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rose_opt.schedule import Mode, Phase
from rose_opt.schedule.activities import FlatProblem
from rose_opt.simulator.engine import Machine, Task, simulate
from rose_opt.simulator.rates import Rates, full_speed

_SIMULATED = 64  # ours: steps; what follows repeats them


def dispatched_ns(
    chains: Sequence[Sequence[Phase]],
    modes: Mapping[str, Mode],
    steps: int,
    cores: float,
    rates: Rates = full_speed,
) -> int:
    """Duration of a split loop under greedy dispatch.

    Args:
        chains: Per group, the phases of one step in order.
        modes: Mode of every phase, by name.
        steps: Steps of the loop [>= 1].
        cores: Cores of the machine.
        rates: How fast phases that run together progress, by name.

    Returns:
        Time from the first start to the last end [ns]; steps beyond the first ones are taken to go on
        at their mean pace.
    """
    simulated = min(steps, _SIMULATED)
    half = _simulate(chains, modes, max(simulated // 2, 1), cores, rates)
    whole = _simulate(chains, modes, simulated, cores, rates)
    if steps == simulated:
        return whole
    pace = (whole - half) / (simulated - max(simulated // 2, 1))
    return round(whole + (steps - simulated) * pace)


def activities_ns(problem: FlatProblem, rates: Rates) -> int:
    """Duration of activities in their first modes under greedy dispatch.

    Args:
        problem: The activities, in program order.
        rates: How fast activities that run together progress, by kind.

    Returns:
        Time from the first start to the last end [ns].
    """
    position = {activity.name: index for index, activity in enumerate(problem.activities)}
    tasks = [
        Task(
            activity.label,
            activity.engines,
            activity.modes[0].duration_ns,
            tuple(position[p.name] for p in activity.predecessors),
            activity.modes[0].cores,
        )
        for activity in problem.activities
    ]
    return round(simulate(tasks, Machine(problem.capacity.cores), rates).makespan_ns)


def _simulate(
    chains: Sequence[Sequence[Phase]],
    modes: Mapping[str, Mode],
    steps: int,
    cores: float,
    rates: Rates,
) -> int:
    """Makespan of `steps` steps; program order goes step by step, then phase by phase, then by group."""
    tasks: list[Task] = []
    last: dict[int, int] = {}
    for _ in range(steps):
        for index in range(max(map(len, chains))):
            for group, chain in enumerate(chains):
                if index < len(chain):
                    phase = chain[index]
                    mode = modes[phase.name]
                    after = (last[group],) if group in last else ()
                    last[group] = len(tasks)
                    tasks.append(
                        Task(phase.name, (phase.engine,), mode.duration_ns, after, mode.cores)
                    )
    return round(simulate(tasks, Machine(cores), rates).makespan_ns)
