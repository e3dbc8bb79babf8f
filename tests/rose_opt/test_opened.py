"""Opening composites: which phases get lanes, and what stays closed."""

from __future__ import annotations

from dataclasses import replace

from rose_opt.alternatives import PlanSearch
from rose_opt.explain import explain
from rose_opt.facts import Facts
from rose_opt.lanes import opened_plan
from rose_opt.optimize import plan as make_plan
from rose_opt.plan import Lane, Plan, verify
from rose_opt.settings import PlanSettings
from tests.rose_opt.programs import ACT, INTERACT, STEP, UPDATE, Took, measured, ppo

SPLIT = f"split-spatial{{loop={INTERACT} groups=2}},interleave{{loop={INTERACT}}},merge{{loop={INTERACT}}}"
ENCODE, DENOISE = f"{ACT}/policy.encode", f"{ACT}/policy.denoise"


def facts(*on_device: str, encode_ms: float = 10.0) -> Facts:
    took = {ENCODE: Took(encode_ms, 2.0), DENOISE: Took(9.0, 2.0), STEP: Took(1.0)}
    return replace(measured(ppo(epochs=3, steps=6), took), on_device=frozenset(on_device))


def split(known: Facts) -> Plan:
    search = PlanSearch(known, PlanSettings(cores=8.0, max_groups=2))
    return next(
        item.plan
        for item in search.alternatives(search.native(), STEP)
        if ",".join(map(str, item.plan.transforms)) == SPLIT
    )


def test_phases_on_a_device_get_lanes_the_longest_first() -> None:
    known = facts(ENCODE, DENOISE)
    opened = opened_plan(split(known), known)
    assert opened is not None
    verify(opened)
    assert opened.lanes == (Lane(ENCODE, "policy.encode"), Lane(DENOISE, "policy.denoise"))
    assert "lanes(policy.encode all SMs | policy.denoise all SMs)" in opened.label
    told = explain(replace(opened, lanes=(replace(opened.lanes[0], sms=104), opened.lanes[1])))
    assert f"  lane policy.encode: {ENCODE}, at most 104 SMs where groups overlap\n" in told
    assert f"  lane policy.denoise: {DENOISE}, all SMs\n" in told
    known = facts(ENCODE, DENOISE, encode_ms=5.0)
    opened = opened_plan(split(known), known)
    assert opened is not None
    assert opened.lanes[0].path == DENOISE


def test_one_phase_on_a_device_stays_closed() -> None:
    for known in (facts(), facts(ENCODE), facts(ENCODE, STEP)):
        assert opened_plan(split(known), known) is None


def test_nothing_is_opened_where_no_loop_is_split() -> None:
    known = facts(ENCODE, DENOISE)
    assert opened_plan(PlanSearch(known).native(), known) is None


def test_a_search_splits_in_order_to_open() -> None:
    known = facts(ENCODE, DENOISE)
    search = PlanSearch(known, PlanSettings(cores=8.0, max_groups=2))
    opened = search.opened(search.native())
    assert opened is not None
    assert opened.splits() == {INTERACT: 2}
    assert opened.lanes


def test_a_plan_says_when_two_processes_share_the_device() -> None:
    rewired = PlanSettings(
        cores=8.0, transforms="rewire{node=iteration/learn beside=iteration/rollout}"
    )
    for known, shared in ((facts(ENCODE, DENOISE, UPDATE), True), (facts(ENCODE, DENOISE), False)):
        told = [note for note in make_plan(known, rewired).notes if "use the GPU at once" in note]
        assert len(told) == shared
        if shared:
            assert "policy.act beside trainer.update" in told[0]
            assert "rose-exec mps start" in told[0]
