"""What the predictions of a plan rest on, in words: probes, sampling, contention.

Paper: §4.3.3 (measurement decides).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rose_opt.contention import TRUSTED, MeasuredContention
from rose_opt.copying import copy_cost
from rose_opt.facts import Facts
from rose_opt.graph import within
from rose_opt.kernel import GLUE
from rose_opt.phases import recorded_ns, tasks_of
from rose_opt.pricing import Priced
from rose_opt.reasons import milliseconds
from rose_opt.settings import PlanSettings
from rose_opt.transforms import CopyOnBind, Rewire
from rose_opt.ways import whole_probe

_UNSTEADY = 1.5  # ours: ratio of two measurements of one node that cannot both be right
_MOST_PAIRS = 4  # ours: pairs told in one note


def notes(
    facts: Facts, chosen: Priced, contention: MeasuredContention, settings: PlanSettings
) -> Iterator[str]:
    """Notes on a plan.

    Args:
        facts: What the trace says.
        chosen: The composition of the plan.
        contention: What was measured.
        settings: Settings of the search.

    Yields:
        Sentences, the most important ones first.
    """
    yield from _unsteady(facts)
    if facts.sampling is not None:
        yield (
            f"Durations, loop kinds and data edges are {facts.sampling}. Record without steps "
            "to see what happens in the others."
        )
    for kernel in chosen.kernels.values():
        if kernel.estimated:
            yield (
                f"No probes of {', '.join(kernel.estimated)}: a part of the rows is taken to cost the "
                f"midpoint between 1/{kernel.groups} and all of the recorded duration, and its "
                "rows were not compared with the whole batch. Run rose_exec.probe for measured "
                "durations."
            )
    yield from _copies(facts, chosen, settings)
    yield from _shared_device(facts, chosen)
    yield from _contention(contention)
    yield from _unknown(facts, chosen, contention)


def _unsteady(facts: Facts) -> Iterator[str]:
    """Nodes that took much longer in the trace than when probed, or the other way round."""
    for node in facts.graph.nodes:
        probed = whole_probe(facts, node.path)
        above = node.parent is not None and whole_probe(facts, node.parent) is not None
        if probed is None or above:
            continue
        recorded = recorded_ns(facts, node.path)
        if not 1 / _UNSTEADY < recorded / probed.duration_ns < _UNSTEADY:
            yield (
                f"{node.path} took {milliseconds(recorded)} in the trace and "
                f"{milliseconds(probed.duration_ns)} when probed: the machine was busy with something "
                "else during one of them. The probe is used; record again on a quiet machine."
            )


def _copies(facts: Facts, chosen: Priced, settings: PlanSettings) -> Iterator[str]:
    """What is copied, so that somebody may write while others read."""
    for copy in chosen.workers.copies:
        cost = copy_cost(facts, settings.memory, settings.dispatch_ns, copy)
        taken = milliseconds(cost.save_ns + cost.load_ns)
        size = f"{cost.total_bytes / 1e6:.1f} MB" if cost.known else "not known how large"
        yield (
            f"{copy.component} is copied each time that {copy.readers} starts, so that {', '.join(copy.states)} may "
            f"be written meanwhile: {size}, taken to need {taken}."
        )
    storages = sorted(t.state for t in chosen.composition if isinstance(t, CopyOnBind))
    if storages:
        yield (
            f"Values in {', '.join(storages)} are handed on as copies, as all results are; their storage may be filled "
            "again before they are used."
        )


def _shared_device(facts: Facts, chosen: Priced) -> Iterator[str]:
    """Nodes that the plan lets two processes give the GPU at once."""
    pairs = [
        (v, w)
        for v, w in dict.fromkeys(_overlapping(facts, chosen))
        if v != w and _on_device(facts, v) and _on_device(facts, w) and _apart(facts, chosen, v, w)
    ]
    if pairs:
        yield (
            f"Two processes use the GPU at once: {_told(pairs)}. Without an MPS daemon they take turns "
            "('rose-exec mps start'), and without a limit one can starve the other: find one with rose_exec.tune, or "
            "train with a guard."
        )


def _on_device(facts: Facts, path: str) -> bool:
    return any(within(other, path) for other in facts.on_device)


def _apart(facts: Facts, chosen: Priced, v: str, w: str) -> bool:
    homes = [(facts.graph.node(path).component or "", path) for path in (v, w)]
    first, second = (
        {chosen.workers.worker(name, group, path) for group in (0, 1)} for name, path in homes
    )
    return first.isdisjoint(second)


def _contention(contention: MeasuredContention) -> Iterator[str]:
    """What was measured, the largest first, and how well it explains what was seen."""
    if not contention.sources:
        return
    worst = sorted(contention.kappa.items(), key=lambda item: (-item[1], item[0]))
    told = [
        f"{_name(v)} loses {value:.0%} of its speed beside {_name(w)}" for (v, w), value in worst
    ]
    more = f", and {len(told) - _MOST_PAIRS} more pairs" if len(told) > _MOST_PAIRS else ""
    yield (
        f"Contention as seen in {', '.join(contention.sources)}: "
        f"{', '.join(told[:_MOST_PAIRS]) or 'none'}{more}."
    )
    suffering = {v for v, _ in contention.kappa}
    loose = [p for p, left in contention.residual.items() if left > TRUSTED and p in suffering]
    if loose:
        yield (
            f"Contention explains the durations of {', '.join(map(_name, loose))} only within "
            f"{max(contention.residual[p] for p in loose):.0%}: observe a run on a quiet machine."
        )


def _unknown(facts: Facts, chosen: Priced, contention: MeasuredContention) -> Iterator[str]:
    """Pairs that the plan runs beside each other and nobody has seen together."""
    pairs = [
        (v, w)
        for v, w in dict.fromkeys(_overlapping(facts, chosen))
        if (v, w) not in contention.kappa and (w, v) not in contention.kappa
    ]
    if pairs:
        yield (
            f"Not known how much these slow each other down, so taken as not at all: {_told(pairs)}. "
            "Record a run of this plan and pass it with --observed."
        )


def _overlapping(facts: Facts, chosen: Priced) -> Iterator[tuple[str, str]]:
    """Nodes that a composition lets run at once, pair by pair, each pair once."""
    for kernel in chosen.kernels.values():
        engines: dict[str, list[str]] = {}
        for phase in kernel.problem.phases:
            if phase.name != GLUE:
                engines.setdefault(phase.name, []).append(phase.engine)
        names = list(engines)
        for position, v in enumerate(names):
            for w in names[position:]:
                if len({*engines[v], *engines[w]}) > 1:
                    yield v, w
    tasks = [node.path for node in tasks_of(facts)]
    for chained in chosen.chains.values():
        inside = [path for path in tasks if within(path, chained.loop)]
        yield from ((v, w) for at, v in enumerate(inside) for w in inside[at:])
    for transform in chosen.composition:
        if isinstance(transform, Rewire):
            yield from _pairs(tasks, transform.beside, transform.node)


def _pairs(tasks: Iterable[str], earlier: str, later: str) -> Iterator[tuple[str, str]]:
    known = list(tasks)
    for v in known:
        for w in known:
            if within(v, earlier) and within(w, later):
                yield v, w


def _told(pairs: Sequence[tuple[str, str]]) -> str:
    told = ", ".join(f"{_name(v)} beside {_name(w)}" for v, w in pairs[:_MOST_PAIRS])
    more = len(pairs) - _MOST_PAIRS
    return f"{told} and {more} more pairs" if more > 0 else told


def _name(path: str) -> str:
    return path.rpartition("/")[2]
