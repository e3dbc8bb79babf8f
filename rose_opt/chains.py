"""A loop in chains: what one call takes when its iterations run turn and turn about, and the least it can take.

The body of the loop is unrolled, inner loops included, down to what the executor hands out as one task;
the engine of `rose_opt.simulator` runs the chains by the executor's rule. Batches stay whole, so every
duration is one that was recorded or probed: nothing is estimated.

Does not handle: loops without a fixed number of iterations.

Paper: §4.3.1 (temporal split), §4.3.3 (predicted here, measured later).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rose_opt.facts import Facts
from rose_opt.kernel import GLUE, glue_per_step
from rose_opt.phases import steps, units
from rose_opt.placement import Workers
from rose_opt.schedule.model import Kappa
from rose_opt.settings import PlanSettings
from rose_opt.simulator.engine import Machine, Task, simulate
from rose_opt.simulator.rates import Contention, full_speed
from rose_opt.ways import native_mode

_MOST_TASKS = 20_000  # ours: beyond, inner loops are simulated in blocks of steps


@dataclass(frozen=True, slots=True)
class ChainSchedule:
    """A loop in chains.

    Attributes:
        loop: Path of the loop.
        groups: Number of chains.
        duration_ns: One call of the loop as the executor hands it out [ns].
        lower_bound_ns: No schedule of one call with these workers takes less [ns].
        core_ns: Core time of one call [core nanoseconds].
        peak_cores: Most cores that the chains keep busy at once, capacity permitting.
    """

    loop: str
    groups: int
    duration_ns: int
    lower_bound_ns: int
    core_ns: float
    peak_cores: float


@dataclass(frozen=True, slots=True)
class _Piece:
    """A task, or a block of equal ones: node, component, time and cores."""

    path: str
    component: str
    duration_ns: int
    cores: float
    calls: float


def schedule_chains(
    facts: Facts,
    loop: str,
    groups: int,
    workers: Workers,
    cores: float,
    settings: PlanSettings,
    kappa: Kappa | None = None,
) -> ChainSchedule:
    """Schedule a free loop in chains.

    Args:
        facts: What is known.
        loop: Path of a loop whose temporal split is legal.
        groups: Number of chains.
        workers: Where components live.
        cores: Cores of the machine.
        settings: Settings of the search.
        kappa: Contention by node path.

    Returns:
        What one call of the loop takes.
    """
    count = max(round(steps(facts, loop)), 1)
    body = tuple(_pieces(facts, loop, cores, 1, _block(facts, loop, count)))
    tasks: list[Task] = []
    last: dict[int, int] = {}
    load: dict[str, int] = {}
    for index in range(count):  # program order: iteration by iteration
        group = index % groups
        for piece in body:
            glue = piece.path == GLUE
            worker = GLUE if glue else workers.worker(piece.component, group, piece.path)
            remote = not glue and workers.remote(piece.component, piece.path)
            handed = round(settings.dispatch_ns * piece.calls) if remote else 0
            after = (last[group],) if group in last else ()
            last[group] = len(tasks)
            tasks.append(
                Task(piece.path, (worker,), piece.duration_ns + handed, after, piece.cores)
            )
            load[worker] = load.get(worker, 0) + piece.duration_ns
    rates = Contention(kappa) if kappa else full_speed
    duration = round(simulate(tasks, Machine(cores), rates).makespan_ns)
    one = sum(piece.duration_ns for piece in body)
    core_ns = count * sum(piece.duration_ns * piece.cores for piece in body)
    longest = -(-count // groups) * one
    bound = max(longest, *load.values(), round(core_ns / cores))
    peak = sum(
        max(p.cores for p in body if workers.worker(p.component, group, p.path) == worker)
        for worker, group in _lanes(body, workers, groups)
    )
    return ChainSchedule(loop, groups, duration, min(bound, duration), core_ns, min(peak, cores))


def _lanes(body: tuple[_Piece, ...], workers: Workers, groups: int) -> Iterator[tuple[str, int]]:
    seen: set[str] = set()
    for group in range(groups):
        for piece in body:
            worker = workers.worker(piece.component, group, piece.path)
            if worker not in seen and piece.path != GLUE:
                seen.add(worker)
                yield worker, group


def _block(facts: Facts, loop: str, count: int) -> int:
    """Steps of inner loops that one task stands for, so that there are not too many."""
    tasks = count * sum(1 for _ in _pieces(facts, loop, 1.0, 1, 1))
    return -(-tasks // _MOST_TASKS)


def _pieces(facts: Facts, path: str, cores: float, times: int, block: int) -> Iterator[_Piece]:
    """Tasks of one run of the body of `path`, in program order; `times` runs at once."""
    body = tuple(units(facts, path))
    glue_ns = glue_per_step(facts, path, max(round(steps(facts, path)), 1))
    for unit in body:
        node = facts.graph.node(unit.path)
        if node.kind == "loop" and facts.graph.children(unit.path):
            inner = max(round(steps(facts, unit.path)), 1) * max(round(unit.calls), 1)
            for start in range(0, inner, block):
                size = min(block, inner - start)
                yield from _pieces(facts, unit.path, cores, times * size, block)
            continue
        mode = native_mode(facts, unit.path, cores)
        calls = unit.calls * times
        yield _Piece(
            unit.path, unit.component, max(round(mode.duration_ns * calls), 1), mode.cores, calls
        )
    if glue_ns:
        yield _Piece(GLUE, "", glue_ns * times, 1.0, 0.0)
