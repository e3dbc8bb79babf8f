"""A plan is rechecked from its own declarations, or from those of the code that is about to run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rose_opt.optimize import plan
from rose_opt.plan import (
    Plan,
    PlanNode,
    PlanRefused,
    Resident,
    Transformation,
    WorkerSpec,
    verify,
)
from rose_opt.settings import PlanSettings
from rose_trace.legality import AccessSet
from rose_trace.records import Access, StateAccess
from tests.rose_opt.programs import ACT, INTERACT, UPDATE, measured, ppo
from tests.rose_opt.test_optimize import REWIRE, balanced, took

SETTINGS = PlanSettings(cores=2.0, max_groups=2)


def planned() -> Plan:
    return plan(balanced(), SETTINGS)


def asking(made: Plan, *transforms: str) -> Plan:
    """The plan edited by hand to ask for these transforms."""
    return replace(made, transforms=tuple(map(Transformation.parse, transforms)))


def test_a_plan_made_here_is_legal() -> None:
    verify(planned())
    verify(asking(planned(), REWIRE))


def test_an_edited_plan_that_asks_for_an_illegal_overlap_names_the_accesses() -> None:
    made = plan(measured(ppo(shared_module=True), took(27.0, 70.0)), SETTINGS)
    with pytest.raises(PlanRefused) as caught:
        verify(asking(made, REWIRE))
    assert str(caught.value) == (
        "rewire(iteration/learn beside iteration/rollout): expected no conflicting access, got read of "
        f"'policy.weights' against update of 'policy.weights' ({ACT}/policy.encode before {UPDATE}). Keep "
        "the native order, or let trainer.update work on a state of its own that a later node copies over."
    )


def test_an_edited_plan_that_overlaps_what_needs_all_epochs_is_refused() -> None:
    made = plan(measured(ppo(learn_from="all"), took(27.0, 70.0)), SETTINGS)
    with pytest.raises(PlanRefused, match="of which one iteration needs"):
        verify(asking(made, REWIRE))


def test_the_running_code_counts_not_the_plan() -> None:
    def declares_more(node: PlanNode) -> AccessSet:
        extra = (Access("trainer.weights", StateAccess.READ),) if node.path.startswith(ACT) else ()
        return AccessSet(node.accesses + extra, node.opaque)

    made = asking(planned(), REWIRE)
    with pytest.raises(PlanRefused, match=r"read of 'trainer\.weights' against update"):
        verify(made, declares_more)


def test_a_split_needs_as_many_shards_as_groups() -> None:
    made = planned()
    components = tuple(replace(c, shards=1) for c in made.components)
    with pytest.raises(PlanRefused) as caught:
        verify(replace(made, components=components))
    assert str(caught.value) == (
        f"split-spatial({INTERACT}): expected 2 shards of sim, got 1. Plan again."
    )


def test_a_component_lives_in_one_worker() -> None:
    made = planned()
    twice = (*made.workers, WorkerSpec("other", "process", (Resident("policy"),)))
    with pytest.raises(PlanRefused, match="got policy in two"):
        verify(replace(made, workers=twice))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            "unroll{loop=iteration}",
            "expected one of privatise, copy-on-bind, split-spatial, split-temporal, interleave, merge, rewire",
        ),
        ("split-spatial{loop=iteration/gone groups=2}", "expected a node at 'iteration/gone'"),
        (f"split-spatial{{loop={INTERACT} groups=65}}", "expected 2 to 64 groups"),
        ("rewire{node=iteration/rollout beside=iteration/learn}", "expected two children"),
    ],
)
def test_broken_requests_are_refused(transform: str, message: str) -> None:
    with pytest.raises(PlanRefused, match=message):
        verify(asking(planned(), transform))
