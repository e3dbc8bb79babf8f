from __future__ import annotations

import dataclasses
import re

import pytest

from rose_opt.schedule import ModuloSchedule, PhaseId, ScheduleError, check_schedule
from rose_opt.schedule.modulo import solve_modulo
from tests.rose_opt.schedule.problems import MS, VLA_KAPPA, two_core_loop, vla_loop

PROBLEM = vla_loop(2)
SCHEDULE = solve_modulo(PROBLEM)


def moved(schedule: ModuloSchedule, key: PhaseId, **changes: int) -> ModuloSchedule:
    placed = tuple(dataclasses.replace(p, **changes) if p.id == key else p for p in schedule.placed)
    return dataclasses.replace(schedule, placed=placed)


def test_a_phase_before_its_input_is_found() -> None:
    broken = moved(SCHEDULE, PhaseId(0, "denoise"), start_ns=0)
    with pytest.raises(ScheduleError, match=r"^denoise#0 of step 0: expected a start at or after"):
        check_schedule(PROBLEM, broken)


def test_a_period_that_is_too_short_is_found() -> None:
    broken = dataclasses.replace(SCHEDULE, period_ns=SCHEDULE.period_ns - MS, lower_bound_ns=0)
    with pytest.raises(ScheduleError):
        check_schedule(PROBLEM, broken)


def test_too_many_sms_are_found() -> None:
    smaller = dataclasses.replace(PROBLEM, capacity=dataclasses.replace(PROBLEM.capacity, sms=110))
    with pytest.raises(ScheduleError, match=r"^capacity: expected at most 110 sms, got 132 at"):
        check_schedule(smaller, SCHEDULE)


def test_two_phases_on_one_worker_are_found() -> None:
    chains = tuple(
        tuple(
            dataclasses.replace(phase, engine="one")
            if phase.name in ("backbone", "simulate")
            else phase
            for phase in chain
        )
        for chain in PROBLEM.chains
    )
    placed = tuple(
        dataclasses.replace(p, engine="one") if p.id.name in ("backbone", "simulate") else p
        for p in SCHEDULE.placed
    )
    broken = dataclasses.replace(SCHEDULE, placed=placed)
    with pytest.raises(ScheduleError, match=r"^worker one: expected one phase at a time, got"):
        check_schedule(dataclasses.replace(PROBLEM, chains=chains), broken)


def test_unpaid_contention_is_found() -> None:
    contended = dataclasses.replace(PROBLEM, kappa=VLA_KAPPA)
    with pytest.raises(ScheduleError, match=re.escape(" ns with its overlaps, got ")):
        check_schedule(contended, SCHEDULE)


def test_groups_in_different_modes_are_found() -> None:
    problem = two_core_loop((55, 27), 70, groups=2)
    schedule = solve_modulo(problem)
    with pytest.raises(ScheduleError, match="expected mode 0 as in the first group, got 1"):
        check_schedule(problem, moved(schedule, PhaseId(1, "policy"), mode=1))


def test_a_bound_above_the_period_is_found() -> None:
    broken = dataclasses.replace(SCHEDULE, lower_bound_ns=SCHEDULE.period_ns + 1)
    with pytest.raises(ScheduleError, match="expected a period of at least"):
        check_schedule(PROBLEM, broken)


def test_a_missing_phase_is_found() -> None:
    broken = dataclasses.replace(SCHEDULE, placed=SCHEDULE.placed[1:])
    with pytest.raises(ScheduleError, match="expected every phase placed once"):
        check_schedule(PROBLEM, broken)
