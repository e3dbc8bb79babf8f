"""Lanes overlap on a device, so only leaves that write nothing may have one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest

from rose_opt.plan import (
    Hierarchy,
    Lane,
    Plan,
    PlanComponent,
    PlanNode,
    PlanRefused,
    lane_refusal,
    opened,
    verify,
)
from rose_trace.records import Access, StateAccess

READ = (Access("policy.weights", StateAccess.READ),)
WRITE = (Access("policy.weights", StateAccess.UPDATE),)


def node(path: str, **fields: object) -> PlanNode:
    name = path.rpartition("/")[2]
    return PlanNode(path, name, f"m:{name}", "exec", "f", "policy", **fields)  # type: ignore[arg-type]


def plan(*lanes: Lane, **act: object) -> Plan:
    nodes = (
        PlanNode("it", "it", "m:it", "iteration", "f"),
        node("it/policy.act", composite=True, **act),
        node("it/policy.act/policy.encode", accesses=READ),
        node("it/policy.act/policy.step", accesses=WRITE),
        node("it/policy.act/policy.draw", generators=("torch",)),
        node("it/policy.act/policy.silent", opaque=True),
    )
    return Plan("0", "g", nodes, (PlanComponent("policy", "m:Policy"),), lanes=lanes)


def test_a_leaf_that_reads_may_have_a_lane_and_opens_the_composites_around_it() -> None:
    lane = Lane("it/policy.act/policy.encode", "a", 104)
    verify(plan(lane))
    assert opened((lane,), "it/policy.act")
    assert not opened((lane,), "it/policy.other")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("step", "update policy.weights"),
        ("draw", "update generator.torch"),
        ("silent", "no declaration"),
    ],
)
def test_a_leaf_that_writes_may_not(name: str, found: str) -> None:
    with pytest.raises(PlanRefused, match=f"only reads states, got {found}"):
        verify(plan(Lane(f"it/policy.act/policy.{name}", "a")))


def test_the_code_that_runs_decides_what_is_written() -> None:
    made = plan(Lane("it/policy.act/policy.encode", "a"))
    changed = dataclasses.replace(made.node("it/policy.act/policy.encode"), accesses=WRITE)

    def running(item: PlanNode) -> object:
        return (changed if item.path == changed.path else item).access_set

    with pytest.raises(PlanRefused, match=r"got update policy\.weights"):
        verify(made, running)  # type: ignore[arg-type]


def test_a_composite_has_no_lane_and_one_with_accesses_of_its_own_is_not_opened() -> None:
    assert lane_refusal(Hierarchy(plan().nodes), Lane("it/policy.act", "a")) is not None
    with pytest.raises(PlanRefused, match="runs as one task"):
        verify(plan(Lane("it/policy.act/policy.encode", "a"), accesses=WRITE))
    with pytest.raises(PlanRefused, match="nowhere"):
        verify(plan(Lane("it/nowhere", "a")))
    with pytest.raises(PlanRefused, match="number of SMs from 0 on"):
        verify(plan(Lane("it/policy.act/policy.encode", "a", -8)))


def test_lanes_are_part_of_the_file() -> None:
    made = plan(Lane("it/policy.act/policy.encode", "a", 104))
    schema = Path(__file__).parents[3] / "schemas" / "plan.schema.json"
    jsonschema.validate(json.loads(made.to_json()), json.loads(schema.read_text()))
    assert Plan.from_json(made.to_json()) == made
