"""The steady state of one split loop: its schedule by the modulo model, priced for all its steps.

Paper: §4.3.1 (Split + Interleave + Merge); docs/schedule.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rose_opt.facts import Facts
from rose_opt.phases import Ways, grouped_ways, native_mode, rows_differ, steps, units
from rose_opt.placement import Workers
from rose_opt.plan import Order, OrderStep, Refusal
from rose_opt.schedule import (
    Capacity,
    LoopProblem,
    Mode,
    ModuloSchedule,
    Phase,
    PhaseId,
    cyclic_orders,
)
from rose_opt.schedule.modulo import solve_modulo
from rose_opt.schedule.solver import SolverSettings
from rose_opt.settings import PlanSettings

GLUE = "glue"
"""Phase of the loop's own code: one group at a time, since the interpreter runs one thread at a time."""

_LIMITS = SolverSettings(deterministic_s=4.0, wall_s=60.0, gap=0.001)
"""Work per loop: counted, not timed, so that the same trace gives the same plan. # ours"""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A split loop in its best steady state.

    Attributes:
        loop: Path of the loop.
        groups: Number of groups.
        steps: Steps of one call.
        problem: What was scheduled.
        schedule: The steady state.
        native_step_ns: One step of the loop as recorded [ns].
        ways: Ways of running each unit, by path.
    """

    loop: str
    groups: int
    steps: int
    problem: LoopProblem
    schedule: ModuloSchedule
    native_step_ns: int
    ways: dict[str, Ways]

    @property
    def duration_ns(self) -> int:
        """One call of the loop, filling and draining included [ns]."""
        return self.schedule.makespan_ns(self.steps)

    @property
    def lower_bound_ns(self) -> int:
        """No schedule of the loop with these workers takes less [ns]."""
        return self.steps * self.schedule.lower_bound_ns

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
        by_engine: dict[str, float] = {}
        for placed in self.schedule.placed:
            used = self.mode(placed.id).cores
            by_engine[placed.engine] = max(by_engine.get(placed.engine, 0.0), used)
        total = sum(by_engine.values())
        return total if limit is None else min(total, limit)

    def mode(self, key: PhaseId) -> Mode:
        """The chosen mode of a phase."""
        return self.problem.phase(key).modes[self.schedule.by_id[key].mode]

    def chosen(self) -> dict[str, Mode]:
        """Chosen mode by unit (all groups run a unit in the same way)."""
        return {
            placed.id.name: self.mode(placed.id)
            for placed in self.schedule.placed
            if placed.id.name != GLUE
        }

    def identical(self) -> bool | None:
        """Whether the rows of all chosen modes were bit-identical; ``None`` where not compared."""
        seen = [
            self.ways[placed.id.name].identical[placed.mode]
            for placed in self.schedule.placed
            if placed.id.name != GLUE
        ]
        return False if False in seen else None if None in seen else True

    @property
    def workers(self) -> frozenset[str]:
        """Workers that the loop uses."""
        return frozenset(p.engine for p in self.schedule.placed if p.engine != GLUE)

    def orders(self) -> tuple[Order, ...]:
        """Cyclic order of every worker."""
        engines = cyclic_orders(self.problem, self.schedule).engines
        return tuple(
            Order(
                worker,
                tuple(OrderStep(key.name, key.group, self.schedule.stage(key)) for key in sequence),
            )
            for worker, sequence in engines.items()
            if worker != GLUE
        )


def solve_kernel(
    facts: Facts, loop: str, groups: int, workers: Workers, cores: float, settings: PlanSettings
) -> Kernel | Refusal:
    """Schedule a loop split into groups.

    Args:
        facts: What is known.
        loop: Path of a loop whose split is legal.
        groups: Number of groups.
        workers: Where its components live.
        cores: Cores of the machine.
        settings: Settings of the search.

    Returns:
        The kernel, or a refusal where no measured way keeps the bits that were asked for.
    """
    body = tuple(units(facts, loop))
    ways: dict[str, Ways] = {}
    for unit in body:
        sharded = unit.component in workers.shards
        found = grouped_ways(facts, unit.path, groups, sharded, cores, settings.bits)
        if not found.modes:
            return rows_differ(unit.path, loop, groups)
        extra = settings.dispatch_ns if workers.remote(unit.component) else 0
        modes = tuple(
            replace(mode, duration_ns=max(round(mode.duration_ns * unit.calls) + extra, 1))
            for mode in found.modes
        )
        ways[unit.path] = replace(found, modes=modes)
    count = max(round(steps(facts, loop)), 1)
    glue_ns = glue_per_step(facts, loop, count)
    chains = tuple(
        tuple(
            Phase(unit.path, workers.worker(unit.component, group), ways[unit.path].modes, group)
            for unit in body
        )
        + ((Phase(GLUE, GLUE, (Mode(glue_ns, label="glue"),), group),) if glue_ns else ())
        for group in range(groups)
    )
    problem = LoopProblem(chains, count, Capacity(cores=cores))
    schedule = solve_modulo(problem, _LIMITS)
    native_step = facts.timings[loop].mean_ns // count
    return Kernel(loop, groups, count, problem, schedule, native_step, ways)


def glue_per_step(facts: Facts, loop: str, count: int) -> int:
    """Own code of the loop and of open composites in one step [ns]; 0 where it does not matter."""
    timing = facts.timings[loop]
    covered = sum(
        native_mode(facts, unit.path, 1.0).duration_ns * unit.calls for unit in units(facts, loop)
    )
    glue = round(timing.mean_ns / count - covered)
    return (
        glue if glue > 0.005 * timing.mean_ns / count else 0
    )  # ours: below, it only slows solving


def native_core_ns(facts: Facts, paths: Sequence[str], cores: float) -> float:
    """Core time of one run of each node as recorded [core nanoseconds]."""
    modes = [native_mode(facts, path, cores) for path in paths]
    return sum(mode.duration_ns * mode.cores for mode in modes)
