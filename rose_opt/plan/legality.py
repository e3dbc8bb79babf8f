"""Rechecking a plan: every overlap it asks for, without a solver, from the code that is about to run."""

from __future__ import annotations

from rose_opt.plan.errors import PlanRefused
from rose_opt.plan.hierarchy import AccessesOf, own_accesses
from rose_opt.plan.record import Plan
from rose_opt.plan.rewire_rules import rewire_refusal
from rose_opt.plan.split_rules import merge_refusal, sharded_components, split_refusal

KNOWN_TRANSFORMS = ("split-spatial", "interleave", "merge", "rewire")


def verify(plan: Plan, accesses_of: AccessesOf | None = None) -> None:
    """Recheck every overlap the plan asks for.

    Args:
        plan: The plan.
        accesses_of: Accesses of a leaf in the code that is about to run; the plan's own by default.

    Raises:
        PlanRefused: If an overlap is illegal, with the conflicting accesses, or a reference is broken.
    """
    of = accesses_of or own_accesses
    for transform in plan.transforms:
        if transform.name not in KNOWN_TRANSFORMS:
            raise PlanRefused(
                f"{transform}: expected one of {', '.join(KNOWN_TRANSFORMS)}, got '{transform.name}'. "
                "Plan again with this version."
            )
    for loop, groups in plan.splits().items():
        _verify_split(plan, loop, groups, of)
    for later, earlier in plan.rewires():
        refusal = rewire_refusal(plan.hierarchy, later, earlier, of)
        if refusal is not None:
            raise PlanRefused(str(refusal))
    _verify_placement(plan)


def _verify_split(plan: Plan, loop: str, groups: int, of: AccessesOf) -> None:
    rows = plan.rows.get(loop)
    for refusal in (
        split_refusal(plan.hierarchy, loop, groups, rows, of),
        merge_refusal(plan.hierarchy, loop, rows),
    ):
        if refusal is not None:
            raise PlanRefused(str(refusal))
    for name in sharded_components(plan.hierarchy, loop):
        component = plan.component(name)
        shards = 0 if component is None else component.shards
        if shards != groups:
            raise PlanRefused(
                f"split-spatial({loop}): expected {groups} shards of {name}, got {shards}. Plan again."
            )


def _verify_placement(plan: Plan) -> None:
    hosted = [resident for worker in plan.workers for resident in worker.residents]
    twice = sorted({str(resident) for resident in hosted if hosted.count(resident) > 1})
    if twice:
        raise PlanRefused(
            f"Plan: expected each component or shard in one worker, got {', '.join(twice)} in two. "
            "Plan again."
        )
    names = [worker.name for worker in plan.workers]
    if len(set(names)) != len(names):
        raise PlanRefused("Plan: expected worker names once each, got one twice. Plan again.")
