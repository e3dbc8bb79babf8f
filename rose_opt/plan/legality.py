"""Rechecking a plan: every overlap it asks for, without a solver, from the code that is about to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rose_opt.plan.copy_rules import copy_refusal
from rose_opt.plan.errors import PlanRefused
from rose_opt.plan.hierarchy import AccessesOf, Hierarchy, inside, own_accesses
from rose_opt.plan.lane_rules import lane_refusal
from rose_opt.plan.order_rules import order_refusal
from rose_opt.plan.preparations import Preparations
from rose_opt.plan.private_rules import private_components, privatise_refusal
from rose_opt.plan.record import Plan
from rose_opt.plan.refusal import Refusal
from rose_opt.plan.rewire_rules import rewire_refusal
from rose_opt.plan.sharing import sharing
from rose_opt.plan.split_rules import merge_refusal, sharded_components, split_refusal
from rose_opt.plan.temporal_rules import replicated_components, temporal_refusal
from rose_opt.plan.whole import apart
from rose_opt.plan.workers import WorkerSpec

KNOWN_TRANSFORMS = (
    "privatise",
    "copy-on-bind",
    "split-spatial",
    "split-temporal",
    "interleave",
    "merge",
    "rewire",
)
"""Transforms that the executor performs."""

ADVISED_TRANSFORMS = ("hoist-rng",)
"""Transforms that the optimizer checks and names as what would unlock an overlap, but nobody performs."""


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
                f"{transform}: expected a transform that the executor performs, got '{transform.name}': a trace does "
                "not tell what is drawn. Draw from rose_trace.rng.RowGenerator in the loop, or before it and pass "
                "the values on, then record and plan again."
            )
        if transform.name not in KNOWN_TRANSFORMS:
            raise PlanRefused(
                f"{transform}: expected one of {', '.join(KNOWN_TRANSFORMS)}, got '{transform.name}'. "
                "Plan again with this version."
            )
    given = of
    hierarchy, of = _prepared(plan, given)
    for loop, groups in plan.splits().items():
        _verify_split(plan, hierarchy, loop, groups, of)
    for loop, groups in plan.chains().items():
        _verify_chains(plan, hierarchy, loop, groups, of)
    _verify_one_loop_each(plan, hierarchy, of)
    for later, earlier in plan.rewires():
        _require(rewire_refusal(hierarchy, later, earlier, of))
        split = next((p for p in (later, earlier) if p in plan.chains()), None)
        if split is not None:
            raise PlanRefused(
                f"rewire({later} beside {earlier}): expected a loop that is not split, got {split} in chains. "
                "Drop one of the two."
            )
    if plan.orders:
        _require(order_refusal(plan.hierarchy, {**plan.splits(), **plan.chains()}, plan.orders))
    for lane in plan.lanes:
        _require(lane_refusal(plan.hierarchy, lane, given))
    _verify_placement(plan, given)
    _verify_private(plan, given)


def _require(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise PlanRefused(str(refusal))


def _prepared(plan: Plan, of: AccessesOf) -> tuple[Hierarchy, AccessesOf]:
    """The hierarchy and the accesses with the plan's copies, each of which is checked on what is there."""
    hierarchy, at = plan.hierarchy, of
    done = Preparations()
    for state in Preparations.of(plan.transforms).storages:
        _require(copy_refusal(hierarchy, state, at))
        done = replace(done, storages=done.storages | {state})
    for state, readers in Preparations.of(plan.transforms).private:
        at = done.accesses_of(of)
        _require(privatise_refusal(done.hierarchy(hierarchy, of), state, readers, at))
        done = replace(done, private=(*done.private, (state, readers)))
    return done.hierarchy(hierarchy, of), done.accesses_of(of)


def _verify_split(plan: Plan, hierarchy: Hierarchy, loop: str, groups: int, of: AccessesOf) -> None:
    rows = plan.rows.get(loop)
    _require(split_refusal(hierarchy, loop, groups, rows, of))
    _require(merge_refusal(hierarchy, loop, rows))
    for name in sharded_components(plan.hierarchy, loop):
        component = plan.component(name)
        shards = 0 if component is None else component.shards
        if shards != groups:
            raise PlanRefused(
                f"split-spatial({loop}): expected {groups} shards of {name}, got {shards}. Plan again."
            )


def _verify_chains(
    plan: Plan, hierarchy: Hierarchy, loop: str, groups: int, of: AccessesOf
) -> None:
    _require(temporal_refusal(hierarchy, loop, groups, of))
    others = [p for p in (*plan.splits(), *plan.chains()) if p != loop]
    nested = next((p for p in others if inside(p, loop) or inside(loop, p)), None)
    if nested is not None:
        raise PlanRefused(
            f"split-temporal({loop}): expected no other split inside or around it, got {nested}. Drop one of "
            "the two."
        )
    for name in replicated_components(hierarchy, loop, of):
        component = plan.component(name)
        replicas = 0 if component is None else component.replicas
        if replicas != groups or (component is not None and component.shards > 1):
            raise PlanRefused(
                f"split-temporal({loop}): expected {groups} whole instances of {name}, got {replicas}. Plan again."
            )


def _verify_one_loop_each(plan: Plan, hierarchy: Hierarchy, of: AccessesOf) -> None:
    """Which instance is live out would depend on which of two loops ran last.

    Raises:
        PlanRefused: If two loops in chains need instances of one component.
    """
    owner: dict[str, str] = {}
    for loop in plan.chains():
        for name in replicated_components(hierarchy, loop, of):
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
    shared = sharing(plan.hierarchy, of)
    for worker in plan.workers:
        if not 0 <= worker.percent <= 100 or (worker.percent and worker.kind != "process"):
            raise PlanRefused(
                f"Worker {worker.name}: expected a percentage in 1..100 of a process, or 0 for no limit, got "
                f"{worker.percent} of kind {worker.kind}. Limit nodes of the program's process by lanes."
            )
        _verify_sharing(plan, worker, shared)
        for resident in worker.residents if worker.kind == "process" else ():
            if resident.private:
                continue
            _require(apart("worker", worker.name, plan.hierarchy, resident.component, of))
    for component in plan.components:
        mine = sorted(r.replica for r in hosted if r.component == component.name and not r.private)
        if component.replicas > 1 and mine != list(range(component.replicas)):
            raise PlanRefused(
                f"Plan: expected {component.replicas} replicas of {component.name} in the workers, got "
                f"{len(mine)}. Plan again."
            )
    names = [worker.name for worker in plan.workers]
    if len(set(names)) != len(names):
        raise PlanRefused("Plan: expected worker names once each, got one twice. Plan again.")


def _verify_sharing(
    plan: Plan, worker: WorkerSpec, shared: Mapping[str, tuple[str, frozenset[str]]]
) -> None:
    """Who shares a state with others lives with them.

    Raises:
        PlanRefused: If a component would hold a state of its own in another process.
    """
    here = {resident.component for resident in worker.residents if not resident.private}
    for resident in worker.residents if worker.kind == "process" else ():
        whole = not resident.private and resident.shards == 1 and resident.replicas == 1
        if not whole or resident.component not in shared:
            continue
        state, names = shared[resident.component]
        others = sorted(name for name in names if name not in here)
        if others:
            who = others[0] or "functions"
            raise PlanRefused(
                f"worker({worker.name}): expected {resident.component} in one process with {who}, which touches "
                f"'{state}' too, got it apart. Leave it in the program's process, or give it a state of its own."
            )


def _verify_private(plan: Plan, of: AccessesOf) -> None:
    """Every private copy lives in a process of its own, and is one of a component in one piece.

    Raises:
        PlanRefused: If one does not, or lives there for nobody.
    """
    wanted: dict[tuple[str, str], str] = {}
    for state, readers in Preparations.of(plan.transforms).private:
        for name in private_components(plan.hierarchy, state, readers, of):
            wanted[name, readers] = state
    hosts = {
        (resident.component, resident.private): worker.kind
        for worker in plan.workers
        for resident in worker.residents
        if resident.private
    }
    for (name, readers), state in wanted.items():
        component = plan.component(name)
        if hosts.get((name, readers)) != "process":
            raise PlanRefused(
                f"privatise({state} for {readers}): expected a worker process with a copy of {name}, got none. "
                "Plan again."
            )
        if component is not None and (component.shards > 1 or component.replicas > 1):
            raise PlanRefused(
                f"privatise({state} for {readers}): expected {name} in one piece, got {component.shards} shards "
                f"and {component.replicas} instances. Drop the split or the copy."
            )
    unused = next((pair for pair in hosts if pair not in wanted), None)
    if unused is not None:
        raise PlanRefused(
            f"Plan: expected a transform for the copy of {unused[0]} for {unused[1]}, got none. Plan again."
        )
