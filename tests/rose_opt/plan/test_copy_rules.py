"""When what is handed out of a storage may be copied."""

from __future__ import annotations

import pytest

from rose_opt.plan import Hierarchy, PlanEdge, PlanNode, copy_refusal
from rose_trace.records import Access, StateAccess

STATE = "buffer.sim.step"
FILL = Access(STATE, StateAccess.UPDATE)
TAKE = Access(STATE, StateAccess.READ)
STEP, ACT, VALUE, RESET = (
    "it/rollout/interact/sim.step",
    "it/rollout/interact/policy.act",
    "it/rollout/policy.value",
    "it/rollout/sim.reset",
)


def program(*edges: PlanEdge, late: bool = False) -> Hierarchy:
    """Reset, then steps; the last observation is valued, before or after the next reset."""

    def leaf(path: str, access: Access) -> PlanNode:
        name = path.rpartition("/")[2]
        return PlanNode(path, name, name, "exec", "", name.partition(".")[0], accesses=(access,))

    loops = [PlanNode(path, path, "", "loop", "") for path in ("it/rollout", "it/rollout/interact")]
    value, reset = leaf(VALUE, TAKE), leaf(RESET, FILL)
    body = [loops[1], leaf(ACT, TAKE), leaf(STEP, FILL)]
    inside = [*body, reset, value] if late else [reset, *body, value]
    return Hierarchy((PlanNode("it", "it", "", "iteration", ""), loops[0], *inside), (), edges)


CARRIED = PlanEdge(STEP, ACT, "it/rollout/interact", distance=1)
FIRST = PlanEdge(RESET, ACT, "it/rollout")
LAST = PlanEdge(STEP, VALUE, "it/rollout")


def test_a_rollout_that_uses_every_observation_before_the_next_may_copy() -> None:
    assert copy_refusal(program(FIRST, CARRIED, LAST), STATE) is None


@pytest.mark.parametrize(
    ("hierarchy", "reason"),
    [
        (
            program(LAST, late=True),
            f"got {VALUE}, which reads what {STEP} handed out after {RESET}",
        ),
        (program(FIRST), f"got {ACT}, which reads what {RESET} handed out after {STEP} filled it"),
        (
            program(PlanEdge(STEP, ACT, "it/rollout/interact", distance=2)),
            f"got {ACT}, which reads what {STEP} handed out after {STEP} filled it",
        ),
        (
            program(PlanEdge(STEP, VALUE, "it/rollout", all_iterations=True)),
            f"got {VALUE}, which reads what {STEP} handed out after {STEP} filled it",
        ),
        (
            program(PlanEdge(STEP, VALUE, "it")),
            f"got {VALUE}, which reads what {STEP} handed out after {STEP} filled it",
        ),
        (
            program(
                PlanEdge(RESET, STEP, "it/rollout"), PlanEdge(STEP, STEP, "it/rollout/interact", 1)
            ),
            f"got {STEP}, which takes what {RESET} handed out and may write into it",
        ),
    ],
    ids=["filled-between", "first-of-a-loop", "two-back", "list", "of-inner-loops", "in-place"],
)
def test_values_that_a_copy_would_change_are_refused(hierarchy: Hierarchy, reason: str) -> None:
    found = copy_refusal(hierarchy, STATE)
    assert found is not None
    assert reason in found.reason
    assert found.unlock


def test_only_storages_are_copied() -> None:
    for state in ("sim.episode", "buffer.nobody"):
        found = copy_refusal(program(), state)
        assert found is not None
        assert "expected a storage that is handed out again and again" in found.reason


def test_an_undeclared_node_may_take_any_value() -> None:
    hierarchy = program(PlanEdge(STEP, VALUE, "it/rollout", all_iterations=True))
    nodes = tuple(
        PlanNode(n.path, n.name, n.key, n.kind, "", n.component, opaque=True)
        if n.path == VALUE
        else n
        for n in hierarchy.nodes
    )
    assert copy_refusal(Hierarchy(nodes, (), hierarchy.edges), STATE) is not None
