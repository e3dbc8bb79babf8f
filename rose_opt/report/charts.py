"""All charts of a page as HTML, on one linked time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import bokeh.models
from bokeh.embed import components
from bokeh.resources import Resources

from rose_opt.report.activity_chart import activity_figure
from rose_opt.report.figures import label_time
from rose_opt.report.palette import Palette
from rose_opt.report.samples import Drawn
from rose_opt.report.timeline import Timeline
from rose_opt.report.timeline_chart import timeline_figure

models: Any = bokeh.models  # its annotations are incomplete


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn of one recording.

    Attributes:
        title: Heading of its timeline.
        timeline: Its invocations.
        activity: Its samples; ``None`` without.
        activity_title: What the samples are.
    """

    title: str
    timeline: Timeline
    activity: Drawn | None
    activity_title: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """HTML of all charts.

    Attributes:
        script: Script elements: the library and the documents.
        divisions: Per chart, the elements of its timeline and of its activity, if any.
        complete: Per chart, whether every invocation is in the page.
    """

    script: str
    divisions: tuple[tuple[str, ...], ...]
    complete: tuple[bool, ...]


def embed(charts: Sequence[Chart], palette: Palette, span_s: float) -> Embedded:
    """Draw charts on one linked time axis.

    Args:
        charts: Charts from top to bottom.
        palette: Colours of the nodes.
        span_s: Length of the time axis [s].

    Returns:
        HTML that needs nothing from the network.
    """
    x_range = models.Range1d(0, span_s, bounds=(0, span_s), min_interval=span_s * 1e-7, name="time")
    figures: list[list[Any]] = []
    complete: list[bool] = []
    for number, chart in enumerate(charts):
        figure, exact = timeline_figure(chart.timeline, chart.title, palette, x_range, span_s)
        complete.append(exact)
        figures.append([figure])
        if chart.activity is not None:
            figures[-1].append(activity_figure(chart.activity, chart.activity_title, x_range))
        label_time(figures[-1][-1])
        for renderer in (item for some in figures[-1] for item in some.renderers):
            renderer.data_source.name = f"recording {number}"
    flat = [figure for some in figures for figure in some]
    script, divisions = components(flat)
    library: str = Resources(mode="inline", components=["bokeh"]).render_js()
    remaining = iter(divisions)
    return Embedded(
        f"{library}\n{script}",
        tuple(tuple(next(remaining) for _ in some) for some in figures),
        tuple(complete),
    )
