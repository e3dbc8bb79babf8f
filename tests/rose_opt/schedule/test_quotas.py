"""Levels of SMs: the best ones, what bounds leave out, and levels as modes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_opt.schedule import Capacity, LoopProblem, Mode, Phase, check_schedule
from rose_opt.schedule.modulo import solve_modulo
from rose_opt.schedule.quotas import Levels, at_level, level_modes, solve_levels
from rose_opt.schedule.solver import SolverSettings
from tests.properties import examples

QUICK = SolverSettings(deterministic_s=0.2, gap=0.0)


def two_groups(policy: int, simulator: int, kappa: dict[tuple[str, str], float]) -> LoopProblem:
    chains = tuple(
        (
            Phase("policy", "policy", (Mode(policy),), group),
            Phase("simulator", "simulator", (Mode(simulator),), group),
        )
        for group in range(2)
    )
    return LoopProblem(chains, 64, Capacity(), kappa)


def simulated(levels: Levels) -> LoopProblem:
    """A policy that floods the simulator unless it is limited, and gets slow where it is."""
    sms = levels["policy"]
    duration = round(at_level({30: 400, 60: 220, 120: 120, 132: 115}, sms))
    lost = at_level({30: 0.0, 60: 0.05, 120: 0.13, 132: 0.83}, sms)
    return two_groups(duration, 150, {("simulator", "policy"): lost})


def test_the_level_between_flooding_and_starving_wins() -> None:
    found = solve_levels({"policy": (30, 60, 90, 120, 132)}, simulated, QUICK)
    assert found.levels == {"policy": 120}
    check_schedule(simulated(found.levels), found.schedule)
    assert found.lower_bound_ns <= found.schedule.period_ns
    unlimited = next(t for t in found.trials if t.levels == {"policy": 132})
    assert unlimited.period_ns is None or unlimited.period_ns > found.schedule.period_ns


@examples(25, 12)
@given(st.data())
def test_leaving_levels_out_by_their_bound_loses_nothing(data: st.DataObject) -> None:
    offered = {"policy": (1, 2, 3), "simulator": (1, 2)}
    durations = {
        (worker, level): data.draw(st.integers(1, 9))
        for worker, levels in offered.items()
        for level in levels
    }
    lost = {level: data.draw(st.sampled_from([0.0, 0.5, 0.9])) for level in offered["policy"]}

    def problem_at(levels: Levels) -> LoopProblem:
        return two_groups(
            durations["policy", levels["policy"]],
            durations["simulator", levels["simulator"]],
            {("simulator", "policy"): lost[levels["policy"]]},
        )

    found = solve_levels(offered, problem_at, QUICK)
    every = [
        dict(zip(offered, levels, strict=True)) for levels in itertools.product(*offered.values())
    ]
    assert found.schedule.period_ns == min(
        solve_modulo(problem_at(levels), QUICK).period_ns for levels in every
    )
    assert found.schedule == solve_modulo(problem_at(found.levels), QUICK)
    assert len(found.trials) == len(every)


def test_equal_periods_take_the_least_limit() -> None:
    found = solve_levels({"policy": (10, 20, 30)}, lambda _: two_groups(5, 5, {}), QUICK)
    assert found.levels == {"policy": 30}
    assert [trial.period_ns for trial in found.trials] == [10, None, None]


def test_nothing_offered_is_the_loop_itself() -> None:
    assert solve_levels({}, lambda _: two_groups(5, 5, {}), QUICK).levels == {}
    with pytest.raises(ValueError, match="policy: expected at least one level, got none"):
        solve_levels({"policy": ()}, lambda _: two_groups(5, 5, {}), QUICK)


def test_a_partition_may_change_from_phase_to_phase() -> None:
    """The policy gives SMs up only where that lets the simulator of the other group run beside it."""
    policy = level_modes({132: 100, 100: 110}, Mode(1))
    simulator = level_modes({132: 100, 32: 105}, Mode(1))
    chains = tuple(
        (
            Phase("policy", "policy", policy, group),
            Phase("simulator", "simulator", simulator, group),
        )
        for group in range(2)
    )
    problem = LoopProblem(chains, 64, Capacity(sms=132))
    found = solve_modulo(problem, QUICK)
    check_schedule(problem, found)
    assert found.period_ns == 220
    used = {(p.id.name, problem.phase(p.id).modes[p.mode].sms) for p in found.placed}
    assert used == {("policy", 100), ("simulator", 32)}


def test_curves_are_not_extrapolated() -> None:
    with pytest.raises(ValueError, match="expected one within the measured 60 to 120 SMs"):
        at_level({60: 1.0, 120: 0.4}, 132)
