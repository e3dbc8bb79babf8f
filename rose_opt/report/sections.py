"""The parts of the report in words: windows, the plan, what was refused, the recordings.

Everything that comes from a trace or a plan is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from rose_opt.explain import bits_text
from rose_opt.facts import Facts, LowActivityWindow
from rose_opt.plan import Plan
from rose_opt.report.recorded import Recorded

MOST_ROWS = 200  # ours: of one table
MOST_RUNS = 8  # ours: stretches of low samples listed


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int] = (),
    whole: Sequence[int] = (),
) -> str:
    """A table of plain texts.

    Args:
        heads: Column heads.
        rows: Cells, escaped here.
        numbers: Columns that hold numbers, aligned at the right.
        whole: Columns whose cells stay on one line.

    Returns:
        HTML; rows beyond the first 200 are counted, not shown.
    """
    kept = [*rows]
    classes = {**dict.fromkeys(numbers, "number"), **dict.fromkeys(whole, "whole")}
    lines = ["<table>", _row("th", heads, classes)]
    lines += [_row("td", row, classes) for row in kept[:MOST_ROWS]]
    lines.append("</table>")
    if len(kept) > MOST_ROWS:
        lines.append(f"<p>and {len(kept) - MOST_ROWS} more</p>")
    return "\n".join(lines)


def banner(recorded: Recorded) -> str:
    """A warning over the page where a recording lost rows; empty otherwise."""
    info = recorded.info
    if info.complete:
        return ""
    reasons = "; ".join(info.reasons) or "no reason given"
    return (
        f'<p class="banner"><b>{escape(recorded.name)} is incomplete:</b> {escape(reasons)}. '
        "What was lost is missing below, and times may be wrong.</p>"
    )


def sampling_note(recorded: Recorded) -> str:
    """What a sampled recording leaves out of its timeline; empty where nothing is left out."""
    sampling = recorded.facts.sampling
    if sampling is None:
        return ""
    return (
        f'<p class="banner">{escape(recorded.name)} holds {sampling.recorded:,} of '
        f"{sampling.invocations:,} invocations: the first and last {sampling.steps} iterations of "
        "inner loops. The timeline is empty between them; the tables estimate all.</p>"
    )


def windows_html(recorded: Recorded) -> str:
    """Nodes during which the device is mostly idle, and the longest stretches of low samples."""
    facts = recorded.facts
    activity = facts.activity
    if activity is None:
        return (
            "<p>No activity samples beside this trace. Record with an activity source to see where "
            "the device idles.</p>"
        )
    heads = ["rank", "node", "ms/iteration", "calls", "ms/call", "activity", "idle ms", "verdict"]
    causes = [cause_text(window) for window in facts.windows]
    cells = [_window(window) for window in facts.windows]
    if any(causes):
        heads.append("cause and cure")
        cells = [[*row, cause] for row, cause in zip(cells, causes, strict=True)]
    parts = [table(heads, cells, numbers=(0, 2, 3, 4, 5, 6), whole=(1,))]
    if any(not w.resolved and w.sm_activity is not None for w in facts.windows):
        parts.append(
            "<p>~ calls are shorter than the source resolves: their activity is mixed with that of "
            "their neighbours.</p>"
        )
    if facts.sample_windows:
        parts += ["<h4>Longest stretches of samples below 50 %</h4>", _stretches(recorded)]
    return "\n".join(parts)


def cause_text(window: LowActivityWindow) -> str:
    """Why a window is there and what cures it, as far as the facts say; empty where they do not."""
    cause = window.cause
    return "" if cause is None else f"{cause.kind}: {cause.text.rstrip('.')}; {cause.advice}"


def plan_html(plan: Plan, facts: Facts, after: Recorded | None) -> str:
    """What the plan does, what it promises, and how the measurement compares."""
    predicted = plan.predicted
    native = "the native order, unchanged"
    does = "".join(f"<li><code>{escape(str(item))}</code></li>" for item in plan.transforms)
    lines = [f"<ul>{does}</ul>" if plan.transforms else f"<p>{native}</p>"]
    if plan.graph_fingerprint != facts.graph.fingerprint():
        lines.append(
            '<p class="banner">This plan was made from another recording than the first one here.</p>'
        )
    measured = [] if after is None else [("measured", _ms(after.facts.iteration.iteration_ns))]
    bound = predicted.lower_bound_ns
    rows = [
        ("why", plan.reason),
        ("native, as the plan counts it", _ms(predicted.native_ns)),
        ("predicted", _ms(predicted.iteration_ns)),
        ("lower bound with these workers", _ms(bound)),
        *([("bound by", predicted.bound_by)] if predicted.bound_by else []),
        ("gap of the prediction to the bound", f"{predicted.gap:.1%}"),
        *measured,
    ]
    if after is not None and after.facts.iteration.iteration_ns > 0:
        gap = 1 - bound / after.facts.iteration.iteration_ns
        rows.append(("gap of the measurement to the bound", f"{gap:.1%}"))
    rows.append(("bits", bits_text(plan)))
    rows += [("note", note) for note in plan.notes]
    lines.append(table(("", ""), rows))
    if plan.workers and not plan.kept_native:
        lines.append(f"<h4>Workers on {plan.cores:g} cores</h4>")
        workers = [
            (w.name, w.kind, ", ".join(map(str, w.residents)) or "functions") for w in plan.workers
        ]
        lines.append(table(("worker", "kind", "holds"), workers))
    lines.append("<h4>Alternatives, best first</h4>")
    alternatives = [
        (", ".join(a.transforms) or "native order", _ms(a.predicted_ns), _ms(a.lower_bound_ns))
        for a in plan.alternatives
    ]
    lines.append(table(("transforms", "predicted", "at least"), alternatives, numbers=(1, 2)))
    return "\n".join(lines)


def refusals_html(plan: Plan) -> str:
    """Overlap that was refused, why, and what would unlock it."""
    if not plan.refusals:
        return "<p>Nothing was refused.</p>"
    rows = [
        (
            f"{item.transform}({item.subject})",
            item.reason + (f" ({item.witness})" if item.witness else ""),
            item.unlock or "nothing that could be declared",
        )
        for item in plan.refusals
    ]
    return table(("refused", "because", "to unlock"), rows, whole=(0,))


def recordings_html(recordings: Sequence[Recorded], plan: Plan | None) -> str:
    """Files, what they lost, sources of activity, software and hardware."""
    heads = ("", *(recorded.name for recorded in recordings))
    found = [dict(_recording(recorded)) for recorded in recordings]
    rows = [
        (key, *(item.get(key, "-") for item in found))
        for key in dict.fromkeys(key for item in found for key in item)
    ]
    if plan is not None:
        rows.append(("cores planned for", *(f"{plan.cores:g}" for _ in recordings)))
    return table(heads, rows)


def _recording(recorded: Recorded) -> Iterator[tuple[str, str]]:
    info, facts = recorded.info, recorded.facts
    times = [f"{item.duration_ns / 1e9:.3f}" for item in recorded.iterations]
    first = " (the first is warm-up)" if len(times) > 1 else ""
    more = f" and {len(times) - 20} more" if len(times) > 20 else ""
    yield "iterations [s]", f"{', '.join(times[:20])}{more}{first}"
    yield "iteration drawn", f"number {recorded.shown.index} of {len(times)}, counted from 0"
    yield "invocations", f"{info.rows.get('spans', 0):,} recorded, {len(recorded.spans):,} drawn"
    yield "times", "measured" if facts.sampling is None else str(facts.sampling)
    lost = sum(process.lost for process in info.processes)
    failures = [f"{p.process}: {p.failure}" for p in info.processes if p.failure]
    yield "lost rows", "; ".join([str(lost), *failures])
    yield "processes", ", ".join(f"{p.process} ({p.pid})" for p in info.processes) or "-"
    yield "activity", activity_text(facts)
    rejected: dict[str, str] = info.activity.get("rejected", {})
    if rejected:
        yield "better sources", "; ".join(f"{name}: {why}" for name, why in rejected.items())
    yield from info.producer.items()


def activity_text(facts: Facts) -> str:
    """What the samples are, from where, and how fine."""
    activity = facts.activity
    if activity is None:
        return "not recorded"
    resolution = f"{activity.resolution_ns / 1e6:.3g} ms"
    kind = "estimate" if activity.estimate else "measured"
    return (
        f"{activity.meaning}; source {activity.source} on {', '.join(activity.devices)}, "
        f"resolution {resolution}, {kind}"
    )


def _window(window: LowActivityWindow) -> list[str]:
    known = window.sm_activity is not None
    verdict = window.refused or ("below 50 %" if window.tier == 0 else "below 80 %")
    return [
        "-" if window.rank is None else str(window.rank),
        window.target,
        f"{window.total_ns / 1e6:.1f}",
        f"{window.calls:g}",
        f"{window.mean_ns / 1e6:.3f}",
        f"{'' if window.resolved else '~'}{window.sm_activity:.0%}" if known else "-",
        f"{window.score / 1e6:.1f}" if known else "-",
        verdict,
    ]


def _stretches(recorded: Recorded) -> str:
    found = sorted(recorded.facts.sample_windows, key=lambda w: w.start_ns - w.end_ns)
    rows = [
        (
            window.device,
            _place(recorded, window.start_ns),
            f"{(window.end_ns - window.start_ns) / 1e6:.1f}",
            f"{window.activity:.0%}",
            window.target or "(no recorded node)",
        )
        for window in found[:MOST_RUNS]
    ]
    heads = ("device", "begins", "ms", "activity", "mostly in")
    return table(heads, rows, numbers=(2, 3))


def _place(recorded: Recorded, at_ns: int) -> str:
    """A moment as iteration and seconds since its start."""
    for item in recorded.iterations:
        if item.start_ns <= at_ns < item.end_ns:
            return f"iteration {item.index}, {(at_ns - item.start_ns) / 1e9:.3f} s"
    return "between iterations"


def _row(kind: str, cells: Sequence[str], classes: Mapping[int, str]) -> str:
    shown = "".join(
        f'<{kind} class="{classes[position]}">{escape(cell)}</{kind}>'
        if position in classes
        else f"<{kind}>{escape(cell)}</{kind}>"
        for position, cell in enumerate(cells)
    )
    return f"<tr>{shown}</tr>"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.1f} ms"
