"""A plan in words: what it does, what else was considered, and what was refused and why.

Paper: §4.3.2 (alternatives), §4.3.3 (evaluation).
"""

from __future__ import annotations

from collections.abc import Iterator

from rose_opt.plan import Plan, Refusal


def explain(plan: Plan) -> str:
    """Explain a plan to a person.

    Args:
        plan: The plan.

    Returns:
        Lines without a final newline; the same plan gives the same text.
    """
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    predicted = plan.predicted
    yield "plan: native order" if plan.kept_native else "plan: " + _joined(plan)
    yield f"  why        {plan.reason}"
    yield (
        f"  predicted  {_ms(predicted.iteration_ns)} per iteration, natively {_ms(predicted.native_ns)}, "
        f"at least {_ms(predicted.lower_bound_ns)} with these workers (gap {predicted.gap:.1%})"
    )
    if predicted.bound_by:
        yield f"  bound by   {predicted.bound_by}"
    yield f"  bits       {bits_text(plan)}"
    for note in plan.notes:
        yield f"  note       {note}"
    if not plan.kept_native:
        yield ""
        yield f"workers on {plan.cores:g} cores"
        for worker in plan.workers:
            residents = ", ".join(map(str, worker.residents)) or "functions"
            limit = f", at {worker.percent} % of the SMs by MPS" if worker.percent else ""
            yield f"  {worker.name} ({worker.kind}): {residents}{limit}"
        yield from _ways(plan)
        for lane in plan.lanes:
            limit = f"at most {lane.sms} SMs where groups overlap" if lane.sms else "all SMs"
            yield f"  lane {lane.name}: {lane.path}, {limit}"
        for order in plan.orders:
            steps = ", ".join(
                f"{step.path.rpartition('/')[2]} of group {step.group}"
                + (f" ({step.distance} steps behind)" if step.distance else "")
                for step in order.cycle
            )
            yield f"  order on {order.worker}: {steps}"
    yield ""
    yield "alternatives, best first"
    for number, item in enumerate(plan.alternatives, 1):
        name = ", ".join(item.transforms) or "native order"
        note = f"; {item.note}" if item.transforms and item.note else ""
        yield (
            f"  {number}  {_ms(item.predicted_ns)} (at least {_ms(item.lower_bound_ns)})  {name}{note}"
        )
    if plan.refusals:
        yield ""
        yield "refused"
        for refusal in plan.refusals:
            yield from _refused(refusal)


def _joined(plan: Plan) -> str:
    return ", ".join(map(str, plan.transforms))


def bits_text(plan: Plan) -> str:
    """How exact the results of a plan are, in words."""
    words = {
        "exact": "exact: the same numbers, bit for bit",
        "reassociated": "reassociated: equal up to floating-point reassociation",
        "unverified": "unverified: rows of the groups were never compared with the whole batch",
    }
    return words.get(plan.equivalence, plan.equivalence)


def _ways(plan: Plan) -> Iterator[str]:
    threads = {item.path: item.threads for item in plan.threads if item.grouped}
    for loop, groups in plan.splits().items():
        for node in plan.subtree(loop):
            if node.path in threads:
                count, cores = threads[node.path], plan.core_demand.get(node.path, 1.0)
                yield (
                    f"  {node.path}: {groups} groups, each {count} thread{'s' if count > 1 else ''} on "
                    f"{cores:g} core{'s' if cores > 1 else ''}"
                )


def _refused(refusal: Refusal) -> Iterator[str]:
    yield f"  {refusal.transform}({refusal.subject})"
    shown = f" ({refusal.witness})" if refusal.witness else ""
    yield f"    {refusal.reason}{shown}"
    if refusal.unlock:
        yield f"    to unlock: {refusal.unlock}"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.1f} ms"
