from __future__ import annotations

from collections.abc import Sequence

import pytest

from rose_opt.dispatch import dispatched_ns
from rose_opt.schedule import Mode, Phase


def chains(*groups: Sequence[str]) -> list[list[Phase]]:
    """Phases ``policy`` and ``step`` on the named workers, per group."""
    placeholder = (Mode(1),)
    return [
        [
            Phase(name, engine, placeholder, number)
            for name, engine in zip(("policy", "step"), engines, strict=True)
        ]
        for number, engines in enumerate(groups)
    ]


TWO_GROUPS = chains(("inline", "sim0"), ("inline", "sim1"))


def test_one_group_runs_in_sequence() -> None:
    modes = {"policy": Mode(3), "step": Mode(4)}
    assert dispatched_ns(chains(("inline", "sim")), modes, 10, 8.0) == 70


def test_groups_alternate_on_the_shared_worker() -> None:
    # Policy 0..3 and 3..6; steps 3..7 and 6..10; the next policies start at 7 and 10.
    modes = {"policy": Mode(3, cores=1.0), "step": Mode(4, cores=1.0)}
    assert dispatched_ns(TWO_GROUPS, modes, 1, 2.0) == 10
    assert dispatched_ns(TWO_GROUPS, modes, 2, 2.0) == 17


def test_full_cores_make_a_phase_wait_for_both() -> None:
    # Both policies on two cores, then both steps side by side: 3 + 3 + 4.
    modes = {"policy": Mode(3, cores=2.0), "step": Mode(4, cores=1.0)}
    assert dispatched_ns(TWO_GROUPS, modes, 5, 2.0) == 50


def test_nothing_later_overtakes_what_waits_for_cores() -> None:
    # The policy of group 1 waits for cores at t=3 and comes before the step of group 0.
    modes = {"policy": Mode(3, cores=1.5), "step": Mode(4, cores=1.0)}
    apart = chains(("inline0", "sim0"), ("inline1", "sim1"))
    assert dispatched_ns(apart, modes, 1, 2.0) == 10


def test_a_phase_larger_than_the_machine_runs_alone() -> None:
    modes = {"policy": Mode(3, cores=4.0), "step": Mode(4, cores=1.0)}
    assert dispatched_ns(TWO_GROUPS, modes, 1, 2.0) == 10


@pytest.mark.parametrize("steps", [65, 512])
def test_long_loops_go_on_at_their_pace(steps: int) -> None:
    modes = {"policy": Mode(3, cores=2.0), "step": Mode(4, cores=1.0)}
    assert dispatched_ns(TWO_GROUPS, modes, steps, 2.0) == 10 * steps
