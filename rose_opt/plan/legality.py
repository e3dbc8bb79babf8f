"""Rechecking a plan: every overlap it asks for, without a solver, from the code that is about to run."""

from __future__ import annotations

from rose_opt.plan.errors import PlanRefused
from rose_opt.plan.hierarchy import AccessesOf, inside, own_accesses
from rose_opt.plan.lane_rules import lane_refusal
from rose_opt.plan.order_rules import order_refusal
from rose_opt.plan.record import Plan
from rose_opt.plan.refusal import Refusal
from rose_opt.plan.rewire_rules import rewire_refusal
from rose_opt.plan.split_rules import merge_refusal, sharded_components, split_refusal
from rose_opt.plan.temporal_rules import replicated_components, temporal_refusal
from rose_opt.plan.whole import apart

KNOWN_TRANSFORMS = ("split-spatial", "split-temporal", "interleave", "merge", "rewire")
"""Transforms that the executor performs."""

ADVISED_TRANSFORMS = ("privatise", "hoist-rng", "copy-on-bind")
"""Transforms that the optimizer checks and names as what would unlock an overlap, but nobody performs yet."""


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
        if transform.name in ADVISED_TRANSFORMS:
            raise PlanRefused(
                f"{transform}: expected a transform that the executor performs, got '{transform.name}', which it "
                "cannot yet. Change the program as it says, record again and plan again."
            )
        if transform.name not in KNOWN_TRANSFORMS:
            raise PlanRefused(
                f"{transform}: expected one of {', '.join(KNOWN_TRANSFORMS)}, got '{transform.name}'. "
                "Plan again with this version."
            )
    for loop, groups in plan.splits().items():
        _verify_split(plan, loop, groups, of)
    for loop, groups in plan.chains().items():
        _verify_chains(plan, loop, groups, of)
    _verify_one_loop_each(plan, of)
    for later, earlier in plan.rewires():
        _require(rewire_refusal(plan.hierarchy, later, earlier, of))
        split = next((p for p in (later, earlier) if p in plan.chains()), None)
        if split is not None:
            raise PlanRefused(
                f"rewire({later} beside {earlier}): expected a loop that is not split, got {split} in chains. "
                "Drop one of the two."
            )
    if plan.orders:
        _require(order_refusal(plan.hierarchy, {**plan.splits(), **plan.chains()}, plan.orders))
    for lane in plan.lanes:
        _require(lane_refusal(plan.hierarchy, lane, of))
    _verify_placement(plan, of)


def _require(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise PlanRefused(str(refusal))


def _verify_split(plan: Plan, loop: str, groups: int, of: AccessesOf) -> None:
    rows = plan.rows.get(loop)
    _require(split_refusal(plan.hierarchy, loop, groups, rows, of))
    _require(merge_refusal(plan.hierarchy, loop, rows))
    for name in sharded_components(plan.hierarchy, loop):
        component = plan.component(name)
        shards = 0 if component is None else component.shards
        if shards != groups:
            raise PlanRefused(
                f"split-spatial({loop}): expected {groups} shards of {name}, got {shards}. Plan again."
            )


def _verify_chains(plan: Plan, loop: str, groups: int, of: AccessesOf) -> None:
    _require(temporal_refusal(plan.hierarchy, loop, groups, of))
    others = [p for p in (*plan.splits(), *plan.chains()) if p != loop]
    nested = next((p for p in others if inside(p, loop) or inside(loop, p)), None)
    if nested is not None:
        raise PlanRefused(
            f"split-temporal({loop}): expected no other split inside or around it, got {nested}. Drop one of "
            "the two."
        )
    for name in replicated_components(plan.hierarchy, loop, of):
        component = plan.component(name)
        replicas = 0 if component is None else component.replicas
        if replicas != groups or (component is not None and component.shards > 1):
            raise PlanRefused(
                f"split-temporal({loop}): expected {groups} whole instances of {name}, got {replicas}. Plan again."
            )


def _verify_one_loop_each(plan: Plan, of: AccessesOf) -> None:
    """Which instance is live out would depend on which of two loops ran last.

    Raises:
        PlanRefused: If two loops in chains need instances of one component.
    """
    owner: dict[str, str] = {}
    for loop in plan.chains():
        for name in replicated_components(plan.hierarchy, loop, of):
            other = owner.setdefault(name, loop)
            if other != loop:
                raise PlanRefused(
                    f"split-temporal({loop}): expected instances of {name} for one loop, got those of {other} too. "
                    "Drop one of the two."
                )


def _verify_placement(plan: Plan, of: AccessesOf) -> None:
    hosted = [resident for worker in plan.workers for resident in worker.residents]
    twice = sorted({str(resident) for resident in hosted if hosted.count(resident) > 1})
    if twice:
        raise PlanRefused(
            f"Plan: expected each component or shard in one worker, got {', '.join(twice)} in two. "
            "Plan again."
        )
    for worker in plan.workers:
        if not 0 <= worker.percent <= 100 or (worker.percent and worker.kind != "process"):
            raise PlanRefused(
                f"Worker {worker.name}: expected a percentage in 1..100 of a process, or 0 for no limit, got "
                f"{worker.percent} of kind {worker.kind}. Limit nodes of the program's process by lanes."
            )
        for resident in worker.residents if worker.kind == "process" else ():
            _require(apart("worker", worker.name, plan.hierarchy, resident.component, of))
    for component in plan.components:
        mine = sorted(r.replica for r in hosted if r.component == component.name)
        if component.replicas > 1 and mine != list(range(component.replicas)):
            raise PlanRefused(
                f"Plan: expected {component.replicas} replicas of {component.name} in the workers, got "
                f"{len(mine)}. Plan again."
            )
    names = [worker.name for worker in plan.workers]
    if len(set(names)) != len(names):
        raise PlanRefused("Plan: expected worker names once each, got one twice. Plan again.")
