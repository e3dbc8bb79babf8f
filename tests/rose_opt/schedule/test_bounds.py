from __future__ import annotations

from rose_opt.schedule import Capacity, LoopProblem, Mode, Phase
from rose_opt.schedule.bounds import bounds
from tests.rose_opt.schedule.problems import MS, VLA_KAPPA, two_core_loop, vla_loop


def test_each_bound_of_a_split_policy() -> None:
    found = bounds(vla_loop(2))
    assert found.recurrence_ns == (8 + 178 + 182 + 159) * MS
    assert found.engine_ns == 2 * 182 * MS
    assert found.clique_ns == 2 * (178 + 182) * MS
    assert found.area_ns == -(-2 * (178 * 106 + 182 * 46 + 159 * 26) * MS // 132)
    assert found.best_ns == 720 * MS
    assert found.limiting == "clique"


def test_contention_raises_the_corun_bound_above_all_others() -> None:
    found = bounds(vla_loop(2, kappa=VLA_KAPPA))
    assert found.limiting == "corun"
    assert found.recurrence_ns < found.corun_ns < 735 * MS


def test_a_group_runs_one_phase_at_a_time_in_the_corun_bound() -> None:
    phases = tuple(Phase(name, name, (Mode(10),), 0) for name in "abc")
    assert bounds(LoopProblem((phases,))).corun_ns == 30


def test_cores_limit_what_two_phases_may_do_together() -> None:
    found = bounds(two_core_loop((72, 37), 25, groups=2))
    # At best the simulator runs beside the policy on one thread; the rest is on two.
    assert abs(found.corun_ns - (25 + (1 - 25 / 72) * 37) * MS) < 100


def test_too_many_corun_sets_leave_the_other_bounds() -> None:
    chains = tuple(
        tuple(Phase(f"p{k}", f"w{k}#{g}", (Mode(10),), g) for k in range(4)) for g in range(8)
    )
    found = bounds(LoopProblem(chains, capacity=Capacity(cores=8)))
    assert (found.corun_ns, found.best_ns) == (0, 40)
