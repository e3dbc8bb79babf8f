"""When readers may work on a private copy, and what of it is rechecked at load."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rose_opt.optimize import plan
from rose_opt.plan import (
    Hierarchy,
    Plan,
    PlanComponent,
    PlanNode,
    PlanRefused,
    Preparations,
    Resident,
    Transformation,
    WorkerSpec,
    copy_of,
    copy_path,
    private_state,
    privatise_refusal,
    sharing,
    verify,
)
from rose_opt.settings import PlanSettings
from rose_trace.records import Access, StateAccess
from tests.rose_opt.programs import ppo
from tests.rose_opt.test_optimize import measured, took

ROLLOUT = "it/rollout"
READ, UPDATE, REFRESH = StateAccess.READ, StateAccess.UPDATE, StateAccess.REFRESH
PRIVATE = "privatise{state=policy.weights readers=iteration/rollout}"
REWIRE = "rewire{node=iteration/learn beside=iteration/rollout}"


def node(path: str, *accesses: Access, **options: Any) -> PlanNode:
    name = path.rpartition("/")[2]
    component = name.partition(".")[0] if "." in name else ""
    kind = options.pop("kind", "exec")
    return PlanNode(path, name, name, kind, "", component, accesses=accesses, **options)


def weights(mode: StateAccess, state: str = "policy.weights") -> Access:
    return Access(state, mode)


ACT = node(f"{ROLLOUT}/policy.act", weights(READ))
UPDATE_NODE = node("it/trainer.update", weights(UPDATE))


NAMES = ("policy", "policy#1", "sim", "trainer")
COMPONENTS = tuple(PlanComponent(name, "") for name in NAMES)


def program(*inside: PlanNode) -> Hierarchy:
    nodes = (node("it", kind="iteration"), node(ROLLOUT, kind="loop"), *inside, UPDATE_NODE)
    return Hierarchy(nodes, COMPONENTS)


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        ((node(f"{ROLLOUT}/sim.step"),), "expected readers of 'policy.weights', got none"),
        ((ACT, node(f"{ROLLOUT}/sim.step", opaque=True)), "got it/rollout/sim.step without a decl"),
        (
            (ACT, node(f"{ROLLOUT}/policy.load", weights(REFRESH))),
            "expected only reads of 'policy.weights', got refresh by it/rollout/policy.load",
        ),
        (
            (node(f"{ROLLOUT}/look", weights(READ)),),
            "expected readers that are methods of a component, which can be copied, got it/rollout/look",
        ),
        (
            (ACT, node(f"{ROLLOUT}/policy.note", weights(UPDATE, "policy.calls"))),
            "to read only what nothing below it/rollout writes, got update of 'policy.calls'",
        ),
        (
            (
                node(f"{ROLLOUT}/policy.act", weights(READ), weights(READ, "policy.mean")),
                node(f"{ROLLOUT}/sim.step", weights(UPDATE, "policy.mean")),
            ),
            "got read of 'policy.mean' by it/rollout/policy.act, written by it/rollout/sim.step",
        ),
        (
            (node(f"{ROLLOUT}/policy.act", weights(READ), generators=("torch",)),),
            "got update of 'generator.torch' by it/rollout/policy.act",
        ),
        (
            (
                node(f"{ROLLOUT}/judge", weights(READ, "run.notes"), composite=True),
                node(f"{ROLLOUT}/judge/policy.act", weights(READ)),
            ),
            "expected policy to be called alone",
        ),
    ],
    ids=["none", "opaque", "writes", "function", "counts", "moves", "draws", "inside-a-task"],
)
def test_readers_that_must_not_have_a_copy(inside: tuple[PlanNode, ...], reason: str) -> None:
    found = privatise_refusal(program(*inside), "policy.weights", ROLLOUT)
    assert found is not None
    assert reason in found.reason
    assert found.unlock
    assert found.nodes


def test_only_what_components_hold_is_copied() -> None:
    """A copy of the policy takes neither a global along nor a storage that values are in."""
    reads = [weights(READ, state) for state in ("run.notes", "buffer.sim.step")]
    act = node(f"{ROLLOUT}/policy.act", weights(READ), *reads)
    note = node("it/note", weights(UPDATE, "run.notes"))
    hierarchy = Hierarchy((*program(act).nodes, note), COMPONENTS)
    for state in ("run.notes", "buffer.sim.step"):
        found = privatise_refusal(hierarchy, state, ROLLOUT)
        assert found is not None
        assert f"expected a state that a component holds, got '{state}'" in found.reason
    found = privatise_refusal(hierarchy, "policy.weights", ROLLOUT)
    assert found is not None
    assert "got read of 'run.notes' by it/rollout/policy.act" in found.reason
    constant = program(node(f"{ROLLOUT}/policy.act", weights(READ), reads[0]))
    assert privatise_refusal(constant, "policy.weights", ROLLOUT) is None


def test_the_root_and_a_second_copy_are_refused() -> None:
    root = privatise_refusal(program(ACT), "policy.weights", "it")
    assert root is not None
    assert "got the root" in root.reason
    once = Preparations((("policy.weights", ROLLOUT),))
    again = privatise_refusal(
        once.hierarchy(program(ACT)), "policy.weights", ROLLOUT, once.accesses_of()
    )
    assert again is not None
    assert "got a second one" in again.reason


def test_nested_readers_have_one_copy() -> None:
    """Else the inner copy, made later, would hold what the outer one must not see."""
    inner = f"{ROLLOUT}/interact"
    act = node(f"{inner}/policy.act", weights(READ), weights(READ, "policy.mean"))
    hierarchy = program(node(inner, kind="loop"), act)
    reasons = ("expected nodes of policy to run on one copy", "got it/rollout/policy.weights~")
    for first, second, reason in ((ROLLOUT, inner, reasons[0]), (inner, ROLLOUT, reasons[1])):
        once = Preparations((("policy.weights", first),))
        found = privatise_refusal(
            once.hierarchy(hierarchy), "policy.mean", second, once.accesses_of()
        )
        assert found is not None
        assert reason in found.reason


def test_a_copy_reads_all_that_its_component_holds() -> None:
    value = node("it/policy.value", weights(READ, "policy.mean"), weights(READ, "generator.torch"))
    hierarchy = Hierarchy((*program(ACT).nodes, value), COMPONENTS)
    private = Preparations((("policy.weights", ROLLOUT),))
    prepared = private.hierarchy(hierarchy)
    paths = [item.path for item in prepared.nodes]
    copy = copy_path("policy.weights", ROLLOUT)
    assert paths.index(copy) + 1 == paths.index(ROLLOUT)
    assert [str(a) for a in prepared.node(copy).accesses] == [
        "read policy.weights",
        "read policy.mean",
        "refresh policy.weights~rollout",
    ]
    assert [str(a) for a in private.accesses_of()(ACT).accesses] == ["read policy.weights~rollout"]
    (made,) = private.copies(hierarchy)
    assert (made.component, made.label) == ("policy", "policy~rollout")
    assert copy_of((made,), "policy", ACT.path) is made
    assert copy_of((made,), "policy", value.path) is None
    assert copy_of((made,), "sim", ACT.path) is None


def test_second_instances_have_marks_of_their_own() -> None:
    """``policy#1`` is a component of the program, not a copy of one."""
    act = node(f"{ROLLOUT}/policy#1.act", Access("policy#1.weights", READ))
    hierarchy = program(act)
    assert privatise_refusal(hierarchy, "policy#1.weights", ROLLOUT) is None
    assert private_state("policy#1.weights", ROLLOUT) == "policy#1.weights~rollout"


def test_who_shares_a_written_state_is_told() -> None:
    draws = node("it/noise.draw", generators=("torch",))
    found = sharing(
        Hierarchy((*program(ACT).nodes, draws, node("it/sim.step", weights(UPDATE, "sim.x"))))
    )
    assert found == {
        "policy": ("policy.weights", frozenset({"policy", "trainer"})),
        "trainer": ("policy.weights", frozenset({"policy", "trainer"})),
        "noise": ("generator.torch", frozenset({"noise", ""})),
    }


# Plans ------------------------------------------------------------------------------------------


def planned() -> Plan:
    facts = measured(ppo(shared_module=True), took(27.0, 70.0))
    return plan(facts, PlanSettings(cores=4.0, max_groups=2, transforms=f"{PRIVATE},{REWIRE}"))


def test_a_plan_with_a_copy_reads_back_and_follows_the_schema() -> None:
    made = planned()
    schema = Path(__file__).parents[3] / "schemas" / "plan.schema.json"
    jsonschema.validate(json.loads(made.to_json()), json.loads(schema.read_text()))
    assert Plan.from_json(made.to_json()) == made
    verify(made)
    (copy,) = [r for w in made.workers for r in w.residents if r.private]
    assert copy == Resident("policy", private="iteration/rollout")
    assert str(copy) == "policy~rollout"


def test_what_somebody_edits_is_rechecked() -> None:
    made = planned()
    without = tuple(w for w in made.workers if w.name != "policy~rollout")
    with pytest.raises(
        PlanRefused, match="expected a worker process with a copy of policy, got none"
    ):
        verify(replace(made, workers=without))
    inline = tuple(replace(w, kind="inline") for w in made.workers)
    with pytest.raises(PlanRefused, match="expected a worker process with a copy of policy"):
        verify(replace(made, workers=inline))
    rewire = tuple(t for t in made.transforms if t.name == "rewire")
    with pytest.raises(PlanRefused, match="against update of 'policy"):
        verify(replace(made, transforms=rewire))
    with pytest.raises(PlanRefused, match="expected a transform for the copy of policy for it"):
        verify(replace(made, transforms=()))
    twice = (
        *made.workers,
        WorkerSpec("more", "process", (Resident("policy", private="iteration/rollout"),)),
    )
    with pytest.raises(PlanRefused, match="in two"):
        verify(replace(made, workers=twice))
    at_home = tuple(r for r in made.workers[0].residents if r.component != "trainer")
    others = (replace(made.workers[0], residents=at_home), *made.workers[1:])
    apart = (*others, WorkerSpec("trainer", "process", (Resident("trainer"),)))
    with pytest.raises(PlanRefused, match="expected trainer in one process with policy"):
        verify(replace(made, workers=apart))


def test_a_copy_inside_a_split_loop_is_refused() -> None:
    """Each group would make one, of a state that the others may have left long since."""
    made = planned()
    inside = Transformation.parse(
        "privatise{state=policy.weights readers=iteration/rollout/interact}"
    )
    split = Transformation.parse("split-temporal{loop=iteration/rollout groups=2}")
    with pytest.raises(PlanRefused, match=r"policy\.weights~rollout_interact"):
        verify(replace(made, transforms=(inside, split)))
