"""Iterations in chains: instances, what is live out, and programs that are not what the plan believes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rose_trace as rose
from rose_exec.chains import Chains
from rose_exec.readiness import OrderViolation, StrandId
from rose_exec.replay import replay
from rose_opt.facts import build_facts
from rose_opt.optimize import plan as make_plan
from rose_opt.plan import Plan, PlanRefused, verify
from rose_opt.settings import Memory, PlanSettings
from rose_opt.verify import verify_traces
from rose_trace.component import program
from rose_trace.component import registry as classes
from rose_trace.legality import AccessSet
from rose_trace.node import registry as nodes
from rose_trace.records import Access, StateAccess
from tests.rose_exec import programs
from tests.rose_exec.chain_programs import build
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.test_replay import assert_identical, native

CHAINS = "split-temporal{loop=root/rollout groups=2}"


def planned(epochs: int, groups: int = 2, **options: Any) -> Plan:
    text = CHAINS.replace("groups=2", f"groups={groups}")
    plan = observed_plan(lambda: build(epochs, **options), text)
    verify(plan)
    return plan


@pytest.mark.parametrize(("epochs", "groups"), [(4, 2), (5, 3)])
def test_what_comes_after_the_loop_finds_the_last_instance(epochs: int, groups: int) -> None:
    # The third iteration of training has one epoch more than planned: it runs in place.
    with program():
        iteration = build(epochs)
        expected = [iteration() for _ in range(3)]
    with replay(planned(epochs, groups), build=lambda: build(epochs), strict=True) as session:
        found = [session.built() for _ in range(3)]
    assert_identical(found, expected)


def test_an_iteration_that_inherits_after_all_is_stopped() -> None:
    with replay(planned(4), build=lambda: build(4, reset_from=4), strict=True) as session:
        session.built()
        with pytest.raises(OrderViolation) as caught:
            session.built()
    assert str(caught.value) == (
        "root/rollout/world.look: expected 'world.episode' to be refreshed first in every iteration of a loop in "
        "chains, got read. Record a new trace that covers this path and plan again."
    )


def test_an_iteration_that_hands_a_value_on_after_all_is_stopped() -> None:
    with replay(planned(4), build=lambda: build(4, carry=True), strict=True) as session:
        session.built()
        with pytest.raises(OrderViolation, match="return the recorded carry without a value"):
            session.built()


def test_a_component_built_before_the_session_has_no_instances() -> None:
    with program():
        iteration = build(4)
        with replay(planned(4), strict=True), pytest.raises(PlanRefused, match="built earlier"):
            iteration()


def test_accesses_come_from_definitions_that_only_the_builder_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan hides what its nodes touch; before `build` there is no code that says so."""
    plan = planned(4)
    silent = tuple(replace(node, accesses=(), opaque=False) for node in plan.nodes)
    late = [(known, key) for known in (nodes, classes) for key in known if ":World" in key]
    loaded = [(known, key, known[key]) for known, key in late]
    for known, key in late:
        monkeypatch.delitem(known, key)

    def load_and_build() -> Callable[[], Any]:
        for known, key, definition in loaded:
            monkeypatch.setitem(known, key, definition)
        return build(4)

    with program():
        iteration = build(4)
        expected = [iteration() for _ in range(2)]
    with replay(replace(plan, nodes=silent), build=load_and_build, strict=True) as session:
        found = [session.built() for _ in range(2)]
    assert_identical(found, expected)


def test_a_session_that_forgets_the_instances_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both chains on one simulator, each believed to have its own."""

    def first(*_: object) -> int:
        return 0

    monkeypatch.setattr(Chains, "instance", first)
    plan = observed_plan(
        programs.build, "split-temporal{loop=iteration/rollout groups=2}", "interleave", "merge"
    )
    wrong = False
    for _ in range(5):
        with replay(plan, build=programs.build, strict=True) as session:
            try:
                assert_identical([session.built() for _ in range(2)], native())
            except AssertionError:
                wrong = True
                break
    assert wrong


def test_states_are_bound_to_instances() -> None:
    plan = planned(5, 3)
    chains = Chains(plan, lambda node: node.access_set)
    access = AccessSet(
        (Access("world.episode", StateAccess.UPDATE), Access("x.y", StateAccess.READ))
    )
    assert [a.state for a in chains.bound(access, 2).accesses] == ["world.episode@2/3", "x.y"]
    assert [a.state for a in chains.bound(access, None).accesses] == ["world.episode@1/3", "x.y"]
    strand = StrandId(7)
    chains.touch(strand, "elsewhere", access)  # a strand that is no chain
    chains.begin(strand)
    with pytest.raises(OrderViolation, match="got update"):
        chains.touch(strand, "root/rollout/world.step", access)
    chains.touch(strand, "a", AccessSet((Access("world.episode", StateAccess.REFRESH),)))
    chains.touch(strand, "b", access)
    chains.end(strand)


def test_two_loops_must_not_need_instances_of_one_component() -> None:
    plan = planned(4)
    other = tuple(
        replace(n, path=n.path.replace("root/rollout", "root/again"))
        for n in plan.nodes
        if n.path.startswith("root/rollout")
    )
    again = replace(plan.transforms[0], arguments=(("loop", "root/again"), ("groups", "2")))
    with pytest.raises(PlanRefused, match="expected instances of world for one loop"):
        verify(replace(plan, nodes=(*plan.nodes, *other), transforms=(*plan.transforms, again)))


def test_a_trace_of_chains_did_the_same_work(tmp_path: Path) -> None:
    with program():
        iteration = build(5)
        with rose.record(tmp_path / "native.parquet"):
            for _ in range(2):
                iteration()
    with (
        replay(planned(5), build=lambda: build(5), strict=True) as session,
        rose.record(tmp_path / "planned.parquet"),
    ):
        for _ in range(2):
            session.built()
    found = verify_traces(tmp_path / "native.parquet", tmp_path / "planned.parquet")
    assert found.equal, found.difference
    assert found.invocations == 2 * (2 + 5 * 4)


def test_from_a_trace_to_a_plan_of_chains_to_the_same_numbers(tmp_path: Path) -> None:
    with program():
        iteration = programs.build()
        with rose.record(tmp_path / "trace.parquet"):
            iteration()
    settings = PlanSettings(
        cores=2.0,
        max_groups=3,
        memory=Memory(max_instances=3),
        transforms="split-temporal{loop=iteration/rollout groups=3},interleave{loop=iteration/rollout}",
    )
    made = make_plan(build_facts(tmp_path / "trace.parquet"), settings)
    made.save(tmp_path / "plan.json")
    with replay(tmp_path / "plan.json", build=programs.build, strict=True) as session:
        found = [session.built() for _ in range(2)]
        assert not session.native
    assert_identical(found, native())
