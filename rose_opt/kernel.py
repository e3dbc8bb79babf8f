"""The steady state of one split loop: its schedule by the modulo model, priced for all its steps.

Paper: §4.3.1 (Split + Interleave + Merge); docs/schedule.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rose_opt.dispatch import dispatched_ns
from rose_opt.facts import Facts
from rose_opt.phases import recorded_ns, steps, units
from rose_opt.placement import Workers
from rose_opt.plan import Order, OrderStep, Refusal
from rose_opt.schedule import (
    Capacity,
    LoopProblem,
    Mode,
    Phase,
    PhaseId,
    cyclic_orders,
)
from rose_opt.schedule.bounds import bounds
from rose_opt.schedule.model import Kappa
from rose_opt.schedule.modulo import solve_modulo
from rose_opt.schedule.solver import SolverSettings
from rose_opt.settings import PlanSettings
from rose_opt.simulator.rates import Contention, full_speed
from rose_opt.ways import Ways, grouped_ways, native_mode, not_probed, rows_differ

GLUE = "glue"
"""Phase of the loop's own code: one group at a time, since the interpreter runs one thread at a time."""

_LIMITS = SolverSettings(deterministic_s=4.0, wall_s=60.0, gap=0.001)
"""Work per loop: counted, not timed, so that the same trace gives the same plan. # ours"""

_CONTENDED_LIMITS = SolverSettings(deterministic_s=0.4, wall_s=60.0, gap=0.01)
"""Orders where units slow each other: within about 2 % of the bound for two groups. # ours"""

_ALIKE = 0.02  # ours: durations that chance variations do not tell apart [fraction]
_COMBINATIONS = 256  # ours: of modes tried, fewest threads first


@dataclass(frozen=True, slots=True)
class Kernel:
    """A split loop in its best steady state.

    Attributes:
        loop: Path of the loop.
        groups: Number of groups.
        steps: Steps of one call.
        problem: The loop with every way of running its units.
        chosen: Chosen mode by unit; all groups run a unit in the same way.
        identical: Whether the rows of all chosen modes were bit-identical; ``None`` where not compared.
        estimated: Units without a probe.
        duration_ns: One call of the loop as the executor hands it out, filling and draining
            included [ns].
        step_bound_ns: Nothing that runs each group's units in order takes less per step, whatever the
            modes [ns].
        native_step_ns: One step of the loop as recorded [ns].
    """

    loop: str
    groups: int
    steps: int
    problem: LoopProblem
    chosen: Mapping[str, Mode]
    identical: bool | None
    estimated: tuple[str, ...]
    duration_ns: int
    step_bound_ns: int
    native_step_ns: int

    @property
    def core_ns(self) -> float:
        """Least core time of one step of all groups, whatever the modes [core nanoseconds]."""
        return sum(
            min(mode.duration_ns * mode.cores for mode in phase.modes)
            for phase in self.problem.phases
        )

    @property
    def peak_cores(self) -> float:
        """Most cores that the loop keeps busy at once, capacity permitting."""
        limit = self.problem.capacity.cores
        by_worker: dict[str, float] = {}
        for phase in self.problem.phases:
            if phase.name != GLUE:
                cores = self.chosen[phase.name].cores
                by_worker[phase.engine] = max(by_worker.get(phase.engine, 0.0), cores)
        total = sum(by_worker.values())
        return total if limit is None else min(total, limit)

    def orders(self) -> tuple[Order, ...]:
        """Cyclic order of every worker in the best steady state of the chosen modes.

        Groups are alike, so the one that leads is called the first.
        """
        problem = settled(self.problem, self.chosen)
        schedule = solve_modulo(problem, _CONTENDED_LIMITS if problem.kappa else _LIMITS)
        engines = cyclic_orders(problem, schedule).engines
        worker = {phase.id: phase.engine for phase in self.problem.phases}
        heads = [
            (schedule.by_id[chain[0].id].start_ns, chain[0].group) for chain in self.problem.chains
        ]
        renamed = {group: number for number, (_, group) in enumerate(sorted(heads))}
        cycles: dict[str, tuple[OrderStep, ...]] = {}
        for sequence in engines.values():
            steps = [
                OrderStep(key.name, renamed[key.group], schedule.stage(key))
                for key in sequence
                if key.name != GLUE
            ]
            if steps:
                first = min(steps, key=lambda step: (step.distance, step.group))
                turn = steps.index(first)  # a cycle has no beginning: start with the first group
                home = worker[PhaseId(first.group, first.path)]
                # What moves from the front to the end runs a period later, so an iteration less behind.
                moved = [replace(step, distance=step.distance - 1) for step in steps[:turn]]
                least = min(0, *(step.distance for step in moved)) if moved else 0
                cycles[home] = tuple(
                    replace(step, distance=step.distance - least)
                    for step in (*steps[turn:], *moved)
                )
        return tuple(Order(home, cycles[home]) for home in sorted(cycles))


def solve_kernel(
    facts: Facts,
    loop: str,
    groups: int,
    workers: Workers,
    cores: float,
    settings: PlanSettings,
    kappa: Kappa | None = None,
) -> Kernel | Refusal:
    """Schedule a loop split into groups.

    Args:
        facts: What is known.
        loop: Path of a loop whose split is legal.
        groups: Number of groups.
        workers: Where its components live.
        cores: Cores of the machine.
        settings: Settings of the search.
        kappa: Contention by node path.

    Returns:
        The kernel, or a refusal where no measured way keeps the bits that were asked for.
    """
    body = tuple(units(facts, loop))
    unknown = not_probed(facts, [unit.path for unit in body], loop, groups)
    if unknown is not None:
        return unknown
    ways: dict[str, Ways] = {}
    for unit in body:
        sharded = unit.component in workers.shards
        found = grouped_ways(facts, unit.path, groups, sharded, cores, settings.bits)
        if not found.modes:
            return rows_differ(unit.path, loop, groups)
        extra = settings.dispatch_ns if workers.remote(unit.component, unit.path) else 0
        modes = tuple(
            replace(mode, duration_ns=max(round(mode.duration_ns * unit.calls) + extra, 1))
            for mode in found.modes
        )
        ways[unit.path] = replace(found, modes=modes)
    count = max(round(steps(facts, loop)), 1)
    glue_ns = glue_per_step(facts, loop, count)
    glue = (Mode(glue_ns, label=GLUE),) if glue_ns else ()
    chains = tuple(
        tuple(
            Phase(
                unit.path,
                workers.worker(unit.component, group, unit.path),
                ways[unit.path].modes,
                group,
            )
            for unit in body
        )
        + ((Phase(GLUE, GLUE, glue, group),) if glue else ())
        for group in range(groups)
    )
    names = {unit.path for unit in body}
    known = {pair: value for pair, value in (kappa or {}).items() if names.issuperset(pair)}
    problem = LoopProblem(chains, count, Capacity(cores=cores), known)
    choice, duration = _choose(problem, ways, cores)
    chosen = {path: ways[path].modes[index] for path, index in choice.items()}
    if glue:
        chosen[GLUE] = glue[0]
    same = [ways[path].identical[index] for path, index in choice.items()]
    bound = min(bounds(problem).best_ns, duration // count)
    return Kernel(
        loop=loop,
        groups=groups,
        steps=count,
        problem=problem,
        chosen=chosen,
        identical=False if False in same else None if None in same else True,
        estimated=tuple(path for path, found in ways.items() if found.estimated),
        duration_ns=duration,
        step_bound_ns=bound,
        native_step_ns=native_mode(facts, loop, cores).duration_ns // count,
    )


def settled(problem: LoopProblem, chosen: Mapping[str, Mode]) -> LoopProblem:
    """The same loop with one mode per phase."""
    chains = tuple(
        tuple(replace(phase, modes=(chosen[phase.name],)) for phase in chain)
        for chain in problem.chains
    )
    return replace(problem, chains=chains)


def _choose(
    problem: LoopProblem, ways: Mapping[str, Ways], cores: float
) -> tuple[dict[str, int], int]:
    """Mode of every unit, and the duration of the loop in them.

    Of combinations that the executor runs about equally fast, the one with the fewest threads: it leaves
    the most to chance variations in time.
    """
    options = itertools.islice(
        itertools.product(*(range(len(found.modes)) for found in ways.values())), _COMBINATIONS
    )
    glue = {phase.name: phase.modes[0] for phase in problem.phases if phase.name == GLUE}
    rates = Contention(problem.kappa) if problem.kappa else full_speed
    tried: list[tuple[int, float, dict[str, int]]] = []
    for option in options:
        choice = dict(zip(ways, option, strict=True))
        modes = {path: ways[path].modes[index] for path, index in choice.items()}
        duration = dispatched_ns(problem.chains, modes | glue, problem.count, cores, rates)
        tried.append((duration, sum(mode.cores for mode in modes.values()), choice))
    fastest = min(duration for duration, _, _ in tried)
    alike = [item for item in tried if item[0] <= fastest * (1 + _ALIKE)]
    duration, _, choice = min(alike, key=lambda item: item[:2][::-1])
    return choice, duration


def glue_per_step(facts: Facts, loop: str, count: int) -> int:
    """Own code of the loop and of open composites in one step [ns]; 0 where it does not matter."""
    timing = facts.timings[loop]
    covered = sum(recorded_ns(facts, unit.path) * unit.calls for unit in units(facts, loop))
    glue = round(timing.mean_ns / count - covered)
    return (
        glue if glue > 0.005 * timing.mean_ns / count else 0
    )  # ours: below, it only slows solving
