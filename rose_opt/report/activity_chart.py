"""Activity as a chart: samples of all devices, one above the other."""

from __future__ import annotations

from typing import Any

import bokeh.models
import numpy as np

from rose_opt.facts.windows import FIRST_TIER_BELOW
from rose_opt.report.figures import cut, make_figure
from rose_opt.report.samples import Drawn

models: Any = bokeh.models  # its annotations are incomplete

DEVICE_PIXELS = 64  # ours
LOW, HIGH = "#b2182b", "#9fb3c8"  # none of the nodes' colours


def activity_figure(activity: Drawn, title: str, x_range: Any) -> Any:
    """Draw the samples of an iteration; what is below 50 % stands out.

    Args:
        activity: The samples.
        title: What they are.
        x_range: The time axis.

    Returns:
        The figure.
    """
    devices = activity.devices
    figure = make_figure(title, x_range, DEVICE_PIXELS * len(devices))
    figure.y_range = models.Range1d(0, len(devices))
    ticks: dict[float, str] = {}
    for number, device in enumerate(reversed(devices)):
        ticks |= {number: "0 %", number + 0.5: f"{cut(device.device)}  50 %"}
        half = models.Span(location=number + FIRST_TIER_BELOW, dimension="width")
        half.update(line_color="#555555", line_dash="dashed", line_width=1)
        figure.add_layout(half)
        _samples(figure, activity, number)
    ticks[len(devices)] = "100 %"
    figure.yaxis.ticker = models.FixedTicker(ticks=list(ticks))
    figure.yaxis.major_label_overrides = ticks
    return figure


def _samples(figure: Any, activity: Drawn, number: int) -> None:
    device = activity.devices[-1 - number]
    source = models.ColumnDataSource(
        {
            "left": ((device.start_ns - activity.start_ns) / 1e9).astype(np.float32),
            "right": ((device.end_ns - activity.start_ns) / 1e9).astype(np.float32),
            "bottom": np.full(len(device.start_ns), number, dtype=np.float32),
            "top": (number + device.activity).astype(np.float32),
            "percent": (device.activity * 100).astype(np.float32),
            "low": (device.activity < FIRST_TIER_BELOW).astype(np.uint8),
        }
    )
    mapper = models.LinearColorMapper(palette=[HIGH, LOW], low=-0.5, high=1.5)
    renderer = figure.quad(
        left="left",
        right="right",
        bottom="bottom",
        top="top",
        source=source,
        fill_color={"field": "low", "transform": mapper},
        line_color={"field": "low", "transform": mapper},
        name=f"activity {device.device}",
    )
    figure.add_tools(
        models.HoverTool(
            renderers=[renderer],
            tooltips=[
                (device.device.replace("@", ""), "@percent{0.0} %"),
                ("from", "@left{0.000} s"),
            ],
            visible=False,
        )
    )
