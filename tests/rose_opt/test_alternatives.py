"""Algorithm 1 with real candidates and plans, on the simulated machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from rose_opt.alternatives import PlanSearch
from rose_opt.combine import CombineLimits
from rose_opt.facts import Facts
from rose_opt.measure import (
    AlternativeTrial,
    GraphSearchSettings,
    IterationMeasurement,
    plan_key,
    search_graph,
)
from rose_opt.plan import Plan, verify
from rose_opt.settings import PlanSettings
from rose_opt.simulator import Contention
from rose_opt.simulator.execution import SimulatedExecution
from tests.rose_opt.programs import ACT, INTERACT, STEP, UPDATE, Took, measured, ppo

ROLLOUT = "iteration/rollout"
SETTINGS = PlanSettings(cores=8.0, max_groups=2, dispatch_ns=1000)
SPLIT = f"split-spatial{{loop={INTERACT} groups=2}},interleave{{loop={INTERACT}}},merge{{loop={INTERACT}}}"
REWIRE = "rewire{node=iteration/learn beside=iteration/rollout}"


def facts(learn_ms: float = 90.0, **program: object) -> Facts:
    took = {
        f"{ACT}/policy.encode": Took(10.0, 2.0),
        f"{ACT}/policy.denoise": Took(10.0, 2.0),
        STEP: Took(20.0),
        UPDATE: Took(learn_ms, 2.0),
    }
    return measured(ppo(epochs=3, steps=6, **program), took)  # pyright: ignore


def search(known: Facts | None = None, **more: object) -> PlanSearch:
    return PlanSearch(known or facts(), SETTINGS, **more)  # pyright: ignore[reportArgumentType]


def texts(plan: Plan) -> str:
    return ",".join(map(str, plan.transforms))


def test_alternatives_are_real_plans_around_the_target() -> None:
    offers = search()
    native = offers.native()
    assert native.kept_native
    around = offers.alternatives(native, STEP)
    assert [a.text for a in around] == [SPLIT, REWIRE]
    assert [texts(a.plan) for a in around] == [SPLIT, REWIRE]
    for alternative in around:
        verify(alternative.plan)
        assert alternative.target == STEP
    assert [a.text for a in offers.alternatives(native, UPDATE)] == [REWIRE]
    assert offers.alternatives(native, "iteration/policy.load") == ()
    assert [a.text for a in search(max_alternatives=1).alternatives(native, STEP)] == [SPLIT]


def test_alternatives_add_to_what_the_plan_has() -> None:
    offers = search()
    split = offers.alternatives(offers.native(), STEP)[0].plan
    (more,) = offers.alternatives(split, STEP)
    assert more.text == REWIRE
    assert texts(more.plan) == f"{SPLIT},{REWIRE}"
    assert offers.alternatives(more.plan, STEP) == ()


def test_illegal_alternatives_are_no_alternatives() -> None:
    offers = search(facts(learn_from="all", shardable=()))
    assert offers.alternatives(offers.native(), STEP) == ()


def test_the_comparison_graph_holds_everything_that_changes() -> None:
    offers = search()
    native = offers.native()
    split, rewire = offers.alternatives(native, STEP)
    assert offers.comparison_graph(native, [split]) == ROLLOUT
    assert offers.comparison_graph(native, [rewire]) == "iteration"
    assert offers.comparison_graph(native, [split, rewire]) == "iteration"
    assert offers.runs_per_iteration(ROLLOUT) == 3
    assert offers.runs_per_iteration("iteration") == 1
    assert offers.runs_per_iteration(INTERACT) == 18


def test_combining_serves_each_target_once_and_gives_one_plan() -> None:
    offers = search()
    native = offers.native()
    split, rewire = offers.alternatives(native, STEP)
    (learn,) = offers.alternatives(native, UPDATE)
    trials = [AlternativeTrial(a, 1, gain) for a, gain in ((split, 9), (rewire, 5), (learn, 5))]
    composed = offers.combine(native, trials)
    assert composed[0].by == "greedy"
    assert composed[0].alternatives == (SPLIT, REWIRE)
    assert composed[0].estimated_ns == 14
    assert texts(composed[0].plan) == f"{SPLIT},{REWIRE}"
    alone = offers.combine(native, trials[:2])  # one target: one of the two
    assert [c.alternatives for c in alone] == [(SPLIT,), (REWIRE,)]


def test_memory_is_kept_when_combining() -> None:
    offers = search(limits=CombineLimits(memory_bytes=3 << 20))
    native = offers.native()
    split, _ = offers.alternatives(native, STEP)
    (learn,) = offers.alternatives(native, UPDATE)
    heavy = [replace(a, memory_bytes=2 << 20) for a in (split, learn)]
    trials = [AlternativeTrial(a, 1, gain) for a, gain in zip(heavy, (9, 5), strict=True)]
    assert offers.combine(native, trials)[0].alternatives == (SPLIT,)


def test_targets_follow_the_activity_of_the_reference() -> None:
    offers = search()
    native = offers.native()
    assert list(offers.targets(native, IterationMeasurement(1), 2)) == [STEP, UPDATE]
    seen = {STEP: 0.6, UPDATE: 0.3, f"{ACT}/policy.encode": 0.95}
    # Below one half first, then by score; at 0.8 and above there is no window.
    assert offers.targets(native, IterationMeasurement(1, seen), 3) == [UPDATE, STEP]


@dataclass
class Log:
    """The simulated machine, and what was asked of it."""

    machine: SimulatedExecution
    asked: list[str] = field(default_factory=list[str])

    def iteration(self, plan: Plan) -> IterationMeasurement:
        self.asked.append(plan_key(plan))
        return self.machine.iteration(plan)

    def local_ns(self, plan: Plan, comparison_graph: str) -> int:
        self.asked.append(f"{plan_key(plan)} {comparison_graph}")
        return self.machine.local_ns(plan, comparison_graph)


def test_the_search_finds_the_plan_that_the_simulated_machine_runs_fastest() -> None:
    offers = search()
    machine = Log(SimulatedExecution(offers.facts))
    found = search_graph(offers.native(), offers, machine)
    best = min(
        machine.machine.iteration(offers.alternatives(offers.native(), STEP)[i].plan).duration_ns
        for i in (0, 1)
    )
    assert found.iteration_ns < best
    assert texts(found.plan) == f"{SPLIT},{REWIRE}"
    assert len(machine.asked) == len(set(machine.asked)) == found.iterations + found.local_trials
    assert sum(found.gain_shares) == pytest.approx(1.0)
    verify(Plan.from_json(found.plan.to_json()))


def test_one_target_per_round_takes_two_rounds() -> None:
    offers = search()
    machine = SimulatedExecution(offers.facts)
    settings = GraphSearchSettings(max_targets=1, max_rounds=2)
    found = search_graph(offers.native(), offers, machine, settings)
    assert [r.accepted for r in found.rounds] == [0, 0]
    assert len(found.gain_shares) == 2
    assert set(texts(found.plan).split(",")) == {*SPLIT.split(","), REWIRE}
    assert found.rounds[1].reused


CONTENDED: Mapping[tuple[str, str], float] = {(STEP, ACT): 0.95, (ACT, STEP): 0.95}


def test_where_overlap_only_costs_the_native_order_is_kept() -> None:
    offers = search(facts(learn_ms=0.1))
    machine = SimulatedExecution(offers.facts, Contention(CONTENDED))
    found = search_graph(offers.native(), offers, machine)
    assert found.plan.kept_native
    assert found.iteration_ns == found.native_ns
    assert found.rounds[-1].accepted is None
