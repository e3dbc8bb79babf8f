"""The report as one HTML page: charts, numbers and words; needs nothing but a browser.

Does not handle: comparing what both runs computed; `rose_opt.verify` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources

from rose_opt.plan import Plan
from rose_opt.report.activity_chart import HIGH, LOW
from rose_opt.report.charts import Chart, Embedded, embed
from rose_opt.report.palette import CONTAINERS, HUES, OTHER, Palette
from rose_opt.report.recorded import Recorded
from rose_opt.report.samples import DeviceSamples, drawn, read_samples, share_below
from rose_opt.report.sections import (
    activity_text,
    banner,
    plan_html,
    recordings_html,
    refusals_html,
    sampling_note,
    windows_html,
)
from rose_opt.report.timeline import Timeline, node_colours, timeline


def report_html(before: Recorded, after: Recorded | None = None, plan: Plan | None = None) -> str:
    """Show a recording, or two of the same program side by side.

    Args:
        before: The recording, of a native run where there are two.
        after: A recording of the planned run.
        plan: The plan.

    Returns:
        A complete HTML document without references to anything outside of it.
    """
    recordings = [before] if after is None else [before, after]
    palette = node_colours(recordings)
    samples = [_samples(recorded) for recorded in recordings]
    timelines = [timeline(recorded, palette) for recorded in recordings]
    span_s = max(recorded.shown.duration_ns for recorded in recordings) / 1e9
    charts = [
        _chart(*item, _role(number, recordings))
        for number, item in enumerate(zip(recordings, timelines, samples, strict=True))
    ]
    embedded = embed(charts, palette, span_s)
    title = _title(before, after)
    style = (resources.files("rose_opt.report") / "page.css").read_text("utf-8")
    body = "\n".join(_body(title, recordings, samples, timelines, palette, embedded, plan))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>\n{style}</style>\n'
        f"{embedded.script}\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _title(before: Recorded, after: Recorded | None) -> str:
    first = before.facts.iteration.iteration_ns
    if after is None:
        return f"{before.name}: {_seconds(first)} per iteration"
    second = after.facts.iteration.iteration_ns
    return (
        f"{before.name} and {after.name}: {_seconds(first)} and {_seconds(second)} per iteration, "
        f"{first / second:.2f} times as fast"
    )


def _samples(recorded: Recorded) -> tuple[DeviceSamples, ...]:
    activity = recorded.facts.activity
    return () if activity is None else read_samples(recorded.path, activity)


def _role(number: int, recordings: Sequence[Recorded]) -> str:
    return ("Before: ", "After: ")[number] if len(recordings) > 1 else ""


def _chart(
    recorded: Recorded, shown: Timeline, samples: Sequence[DeviceSamples], role: str
) -> Chart:
    item = recorded.shown
    activity = drawn(recorded, samples)
    finer = ""
    if activity is not None and recorded.facts.activity is not None:
        drawn_ns = activity.step_ns
        if drawn_ns > recorded.facts.activity.sample_ns:
            finer = f", drawn as means over {drawn_ns / 1e6:.3g} ms"
    return Chart(
        f"{role}{recorded.name}, iteration {item.index}, {_seconds(item.duration_ns)}",
        shown,
        activity,
        f"{role}{activity_text(recorded.facts)}{finer}",
    )


def _body(
    title: str,
    recordings: Sequence[Recorded],
    samples: Sequence[Sequence[DeviceSamples]],
    timelines: Sequence[Timeline],
    palette: Palette,
    embedded: Embedded,
    plan: Plan | None,
) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    yield (
        '<p class="quiet">Medians of the iterations that count. Timelines show the iteration nearest '
        "to the median, both on one scale. Drag to zoom in, Ctrl and wheel to zoom, reset at the "
        "right of each chart; charts move together. Calls too short to be seen are drawn together: "
        "the height of a band is its share of time, and zooming in takes it apart.</p>"
    )
    yield from filter(None, map(banner, recordings))
    yield from filter(None, map(sampling_note, recordings))
    yield _numbers(recordings, samples, plan)
    yield _legend(palette)
    for recorded, shown, divisions, complete in zip(
        recordings, timelines, embedded.divisions, embedded.complete, strict=True
    ):
        yield from divisions
        if recorded.facts.activity is None:
            yield '<p class="quiet">No activity samples beside this trace.</p>'
        if not complete:
            yield (
                f"<p>{len(shown.blocks):,} invocations are more than a page can hold: neighbours are "
                "drawn together at every zoom.</p>"
            )
        if shown.merged_lanes:
            yield f"<p>The {shown.merged_lanes} least busy threads share the last lane.</p>"
    if plan is not None:
        yield "<h2>Plan</h2>"
        yield plan_html(plan, recordings[0].facts, recordings[1] if len(recordings) > 1 else None)
        yield "<h2>Refused overlap</h2>"
        yield refusals_html(plan)
    yield "<h2>Low-activity windows</h2>"
    for number, recorded in enumerate(recordings):
        yield f"<h3>{escape(_role(number, recordings) + recorded.name)}</h3>"
        yield windows_html(recorded)
    yield "<h2>Recordings and hardware</h2>"
    yield recordings_html(recordings, plan)


def _numbers(
    recordings: Sequence[Recorded],
    samples: Sequence[Sequence[DeviceSamples]],
    plan: Plan | None,
) -> str:
    times = [recorded.facts.iteration.iteration_ns for recorded in recordings]
    names = ("iteration before", "iteration after") if len(times) > 1 else ("iteration",)
    cells = [
        (_seconds(ns), f"{name}, median of {recorded.facts.iteration.used}")
        for ns, name, recorded in zip(times, names, recordings, strict=True)
    ]
    if len(times) > 1:
        cells.append((f"{times[0] / times[1]:.2f}×", "as fast"))
    shares = [
        share_below(some, recorded.used) for some, recorded in zip(samples, recordings, strict=True)
    ]
    when = (" before", " after") if len(times) > 1 else ("",)
    for share, word in zip(shares, when, strict=True):
        cells.append(("-" if share is None else f"{share:.1%}", f"of time below 50 %{word}"))
    if plan is not None:
        cells += [
            (_seconds(plan.predicted.iteration_ns), "predicted by the plan"),
            (_seconds(plan.predicted.lower_bound_ns), "lower bound of the plan"),
            (f"{plan.predicted.gap:.1%}", "gap to the bound"),
        ]
    shown = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in cells)
    return f'<div class="numbers">{shown}</div>'


def _legend(palette: Palette) -> str:
    named = palette.leaves[: len(HUES)]
    items = [(palette.fills[n], palette.labels[n], palette.paths[n]) for n in named]
    if len(palette.leaves) > len(named):
        items.append((OTHER, f"{len(palette.leaves) - len(named)} other nodes", ""))
    items += [
        (CONTAINERS["loop"], "loops and nodes that hold others", ""),
        (HIGH, "activity", ""),
        (LOW, "activity below 50 %", ""),
    ]
    shown = "".join(
        f'<span title="{escape(path)}"><i style="background:{fill}"></i>{escape(label)}</span>'
        for fill, label, path in items
    )
    return f'<div class="legend">{shown}</div>'


def _seconds(nanoseconds: int) -> str:
    """A duration in seconds or, below one, in milliseconds."""
    return f"{nanoseconds / 1e9:.3f} s" if nanoseconds >= 1e9 else f"{nanoseconds / 1e6:.4g} ms"
