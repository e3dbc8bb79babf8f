"""Whether the code that is about to run is the code that the plan was made for."""

from __future__ import annotations

from typing import TypeVar

from rose_opt.plan import Plan, PlanNode, PlanRefused
from rose_trace.component import ComponentClass
from rose_trace.component import registry as classes
from rose_trace.legality import AccessSet
from rose_trace.node import ExecutionNode
from rose_trace.node import registry as nodes
from rose_trace.records import SEEN

T = TypeVar("T")


def definition(key: str) -> ExecutionNode | None:
    """The running definition for a recorded ``module:qualname``.

    A program recorded as a script is found under its module name too, if the name is unique.
    """
    return _find(nodes, key)


def component_class(key: str) -> ComponentClass | None:
    """The running component class for a recorded ``module:qualname``."""
    return _find(classes, key)


def check(plan: Plan, *, complete: bool) -> None:
    """Compare the plan's fingerprints with the running code.

    Args:
        plan: The plan.
        complete: Whether a definition that is not there yet counts as a difference.

    Raises:
        PlanRefused: If something differs, with the first difference in program order.
    """
    for planned in plan.nodes:
        found = definition(planned.key) if planned.key else None
        if found is None:
            if complete and planned.key:
                raise PlanRefused(
                    f"Plan: expected node {planned.name} ({planned.key}), got no such definition. The code changed "
                    "since the trace: record and plan again."
                )
            continue
        if found.fingerprint != planned.fingerprint:
            raise PlanRefused(
                f"Plan: expected {planned.name} ({planned.key}) with fingerprint {planned.fingerprint}, got "
                f"{found.fingerprint}. Its code or declaration changed since the trace: record and plan again."
            )
    for planned_component in plan.components:
        found_class = component_class(planned_component.key)
        if found_class is None:
            continue
        same = (found_class.batch_states, found_class.shardable) == (
            planned_component.batch_states,
            planned_component.shardable,
        )
        if not same:
            raise PlanRefused(
                f"Plan: expected component {planned_component.name} with batch states "
                f"{list(planned_component.batch_states)}, got {list(found_class.batch_states)} or another shard "
                "method. Record and plan again."
            )


def accesses(plan: Plan, planned: PlanNode) -> AccessSet:
    """Accesses of a node's own code: from the running code where it is loaded, plus what the trace saw.

    A composite that declares nothing is glue, and what it was seen to draw, its children may have drawn.
    """
    found = definition(planned.key)
    if found is None:
        return planned.access_set
    if found.declaration.silent:
        return AccessSet(opaque=planned.opaque or not planned.composite)
    owner = plan.component(planned.component)
    cls = component_class(owner.key) if owner is not None else None
    states = (
        cls.batch_states if cls is not None else owner.batch_states if owner is not None else ()
    )
    declared = found.declaration.accesses(planned.component or None, states)
    seen = tuple(a for a in planned.access_set.accesses if a.state.startswith(SEEN))
    return AccessSet(declared + seen, planned.opaque)


def _find(known: dict[str, T], key: str) -> T | None:
    if key in known:
        return known[key]
    name = key.partition(":")[2]
    same = [value for other, value in known.items() if other.partition(":")[2] == name]
    return same[0] if len(same) == 1 else None
