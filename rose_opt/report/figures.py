"""The figure that all charts of the report share: one time axis, one width, one set of tools."""

from __future__ import annotations

from typing import Any

import bokeh.models
import bokeh.plotting

models: Any = bokeh.models  # its annotations are incomplete
plotting: Any = bokeh.plotting

LEFT_PIXELS = 165  # ours: room for lane names, the same everywhere so that the axes line up
FRAME_PIXELS = 54  # ours: title and ticks
LABEL_LENGTH = 24  # ours
_TIME_PIXELS = 18  # ours: the name of the time axis


def make_figure(title: str, x_range: Any, height: int) -> Any:
    """An empty figure.

    Args:
        title: Heading.
        x_range: The time axis that all figures share.
        height: Height of what is drawn, without title and axis [pixels].

    Returns:
        The figure.
    """
    zoom = models.BoxZoomTool(dimensions="width")
    figure = plotting.figure(
        title=title,
        x_range=x_range,
        height=height + FRAME_PIXELS,
        sizing_mode="stretch_width",
        min_border_left=LEFT_PIXELS,
        min_border_right=20,
        toolbar_location="above",
        tools=[
            zoom,
            models.PanTool(dimensions="width"),
            models.WheelZoomTool(dimensions="width", modifiers={"ctrl": True}),
            models.ResetTool(),
        ],
        lod_threshold=None,
    )
    figure.toolbar.logo = None
    figure.toolbar.active_drag = zoom
    figure.title.text_font_size = "13px"
    figure.axis.major_label_text_font_size = "11px"
    figure.axis.major_label_text_color = "#222222"
    figure.axis.axis_line_color = figure.axis.major_tick_line_color = "#888888"
    figure.axis.minor_tick_line_color = None
    figure.yaxis.major_tick_line_color = None
    figure.outline_line_color = "#bbbbbb"
    figure.xgrid.grid_line_color = "#e6e6e6"
    return figure


def label_time(figure: Any) -> None:
    """Name the time axis, once per recording."""
    figure.height += _TIME_PIXELS
    figure.xaxis.axis_label = "seconds since the iteration began"
    figure.xaxis.axis_label_text_font_size = "11px"
    figure.xaxis.axis_label_text_font_style = "normal"


def cut(name: str) -> str:
    """A name that fits beside its lane."""
    return name if len(name) <= LABEL_LENGTH else f"{name[: LABEL_LENGTH - 1]}…"
