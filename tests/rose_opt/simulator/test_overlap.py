from __future__ import annotations

import pytest

from rose_opt.measure import OverlapPair, most_promising
from rose_opt.simulator import Contention, Task, simulate
from rose_opt.simulator.overlap import mean_activity, overlap_pairs, share_below, stretches


def test_activity_adds_up_where_tasks_overlap() -> None:
    tasks = [Task("P", ("p",), 2.0), Task("S", ("s",), 4.0), Task("T", ("p",), 4.0, (0, 1))]
    timeline = simulate(tasks)
    alone = {"P": 0.7, "S": 0.2, "T": 0.4}
    assert mean_activity(tasks, timeline, alone) == pytest.approx(
        {"P": 0.9, "S": (0.9 + 0.2) / 2, "T": 0.4}
    )
    assert share_below(tasks, timeline, alone) == pytest.approx(6 / 8)
    assert mean_activity(tasks, timeline, {"P": 0.7, "S": 0.6})["P"] == 1.0


def test_stretches_tell_who_runs_together() -> None:
    tasks = [Task("P", ("p",), 2.0), Task("S", ("s",), 4.0), Task("T", ("p",), 1.0, (1,))]
    assert list(stretches(simulate(tasks))) == [(2.0, {0, 1}), (2.0, {1}), (1.0, {2})]


def test_the_branch_that_is_done_first_has_slack_and_costs_the_other() -> None:
    kappa = {("S", "P"): 0.5, ("P", "S"): 0.1, ("T", "P"): 0.2}
    tasks = [Task("P", ("p",), 900.0), Task("S", ("s",), 2000.0), Task("T", ("t",), 100.0)]
    pairs = overlap_pairs(tasks, timeline := simulate(tasks, rates=Contention(kappa)), kappa)
    policy, simulator, small = timeline.end_ns
    assert policy == pytest.approx(1000)
    assert simulator == pytest.approx(2500)
    assert pairs == (
        OverlapPair("p", "s", 1500, 500),
        OverlapPair("t", "p", round(policy - small), 0),
        OverlapPair("t", "s", round(simulator - small), 0),
    )
    assert most_promising(pairs) is pairs[0]
