"""The models against plain enumeration on small instances: cores, SMs and memory as capacities, modes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from rose_opt.schedule import Capacity, LoopProblem, Mode, Phase
from rose_opt.schedule.activities import Activity, FlatProblem, Predecessor
from rose_opt.schedule.capacity import within
from rose_opt.schedule.flat import solve_flat
from rose_opt.schedule.flat_bounds import flat_bound_ns
from rose_opt.schedule.modulo import solve_modulo
from rose_opt.schedule.solver import SolverSettings
from tests.properties import examples

EXACT = SolverSettings(deterministic_s=2.0, gap=0.0)
CAPACITY = Capacity(cores=2, sms=132, memory_bytes=4 << 20)
MODES = st.builds(
    Mode,
    st.integers(1, 4),
    cores=st.sampled_from([0, 0.5, 1, 2]),
    sms=st.sampled_from([0, 40, 100]),
    memory_bytes=st.integers(0, 3).map(lambda mebibytes: mebibytes << 20),
)


@st.composite
def iterations(draw: st.DrawFn) -> FlatProblem:
    activities: list[Activity] = []
    for index in range(draw(st.integers(1, 4))):
        earlier = [a.name for a in activities]
        waits = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=2)) if earlier else []
        engines = tuple(draw(st.lists(st.sampled_from("xyz"), unique=True, max_size=2)))
        modes = tuple(draw(st.lists(MODES, min_size=1, max_size=2)))
        lags = tuple(Predecessor(name, draw(st.sampled_from([0, 2]))) for name in waits)
        activities.append(Activity(f"a{index}", engines, modes, lags))
    return FlatProblem(tuple(activities), CAPACITY)


def placeable(problem: FlatProblem, order: Sequence[int], modes: Sequence[int]) -> int:
    """Makespan when activities, in an order, start as early as what was placed before allows."""
    limits = problem.capacity.units()
    placed: dict[str, tuple[int, int, Activity, Mode]] = {}
    for index in order:
        activity = problem.activities[index]
        mode = activity.modes[modes[index]]
        start = max([0, *(placed[p.name][1] + p.lag_ns for p in activity.predecessors)])
        while True:
            end = start + mode.duration_ns
            beside = [it for it in placed.values() if it[0] < end and it[1] > start]
            clash = any({*it[2].engines} & {*activity.engines} for it in beside)
            full = any(
                not within(
                    [mode.units(), *(it[3].units() for it in beside if it[0] <= now < it[1])],
                    limits,
                )
                for now in range(start, end)
            )
            if not clash and not full:
                break
            start += 1
        placed[activity.name] = start, end, activity, mode
    return max(it[1] for it in placed.values())


def orders(problem: FlatProblem) -> Iterator[Sequence[int]]:
    position = {activity.name: index for index, activity in enumerate(problem.activities)}
    for order in itertools.permutations(range(len(problem.activities))):
        place = {index: at for at, index in enumerate(order)}
        if all(
            place[position[p.name]] < place[index]
            for index, activity in enumerate(problem.activities)
            for p in activity.predecessors
        ):
            yield order


@examples(60, 40)
@given(iterations())
def test_the_iteration_is_as_short_as_any_order_in_any_modes(problem: FlatProblem) -> None:
    shortest = min(
        placeable(problem, order, modes)
        for order in orders(problem)
        for modes in itertools.product(*(range(len(a.modes)) for a in problem.activities))
    )
    assert flat_bound_ns(problem) <= shortest
    assert solve_flat(problem, EXACT).makespan_ns == shortest


@st.composite
def loops(draw: st.DrawFn) -> LoopProblem:
    phases = draw(st.integers(1, 2))
    modes = [tuple(draw(st.lists(MODES, min_size=1, max_size=2))) for _ in range(phases)]
    own = [draw(st.booleans()) for _ in range(phases)]
    chains = tuple(
        tuple(
            Phase(f"p{k}", f"w{k}#{group}" if own[k] else f"w{k % 2}", modes[k], group)
            for k in range(phases)
        )
        for group in range(2)
    )
    return LoopProblem(chains, 8, CAPACITY)


def repeats(problem: LoopProblem, period: int, starts: Sequence[int], modes: Sequence[int]) -> bool:
    """Whether phases that start at `starts` modulo the period keep every rule."""
    chosen = dict(zip(dict.fromkeys(p.name for p in problem.phases), modes, strict=True))
    mode = {phase.id: phase.modes[chosen[phase.name]] for phase in problem.phases}
    at = dict(zip((phase.id for phase in problem.phases), starts, strict=True))
    for chain in problem.chains:
        now = at[chain[0].id]
        for phase in chain:
            now += (at[phase.id] - now) % period  # its next turn
            now += mode[phase.id].duration_ns
        if now > at[chain[0].id] + period:
            return False
    for moment in range(period):
        running = [
            p for p in problem.phases if (moment - at[p.id]) % period < mode[p.id].duration_ns
        ]
        if len({p.engine for p in running}) < len(running):
            return False
        if not within([mode[p.id].units() for p in running], problem.capacity.units()):
            return False
    return True


@examples(40, 30)
@given(loops())
def test_the_period_is_the_least_at_which_a_loop_can_repeat(problem: LoopProblem) -> None:
    names = list(dict.fromkeys(p.name for p in problem.phases))
    ways = [range(len(next(p for p in problem.phases if p.name == n).modes)) for n in names]
    free = len(problem.phases) - 1

    def possible(period: int) -> bool:
        return any(
            repeats(problem, period, (0, *starts), modes)
            for modes in itertools.product(*ways)
            for starts in itertools.product(range(period), repeat=free)
        )

    found = solve_modulo(problem, EXACT).period_ns
    assert possible(found)
    assert not any(possible(period) for period in range(1, found))
