"""A timeline as a chart: lanes of blocks, with the level of detail that fits the zoom."""

from __future__ import annotations

from importlib import resources
from typing import Any

import bokeh.models
import numpy as np

from rose_opt.report.detail import HEIGHT, TINY_PIXELS, Bands, Blocks, levels
from rose_opt.report.figures import cut, make_figure
from rose_opt.report.palette import Palette
from rose_opt.report.timeline import Timeline

models: Any = bokeh.models  # its annotations are incomplete

ROW_PIXELS = 22  # ours


def timeline_figure(
    timeline: Timeline, title: str, palette: Palette, x_range: Any, span_s: float
) -> tuple[Any, bool]:
    """Draw a timeline.

    Args:
        timeline: Its lanes and blocks.
        title: Heading.
        palette: Colours of the nodes.
        x_range: The time axis.
        span_s: Its length [s].

    Returns:
        The figure, and whether every invocation is in it.
    """
    figure = make_figure(title, x_range, ROW_PIXELS * timeline.rows)
    figure.y_range = models.Range1d(timeline.rows - 0.5, -0.5)
    figure.ygrid.visible = False
    for number, lane in enumerate(timeline.lanes):
        if number % 2:
            top, bottom = lane.first_row - 0.5, lane.first_row + lane.rows - 0.5
            band = models.BoxAnnotation(
                top=bottom, bottom=top, fill_color="#f3f5f7", fill_alpha=1.0, level="image"
            )
            band.line_color = None
            figure.add_layout(band)
    centres = {lane.first_row + (lane.rows - 1) / 2: lane.name for lane in timeline.lanes}
    figure.yaxis.ticker = models.FixedTicker(ticks=list(centres))
    figure.yaxis.major_label_overrides = {at: cut(name) for at, name in centres.items()}
    found = levels(timeline.blocks, span_s)
    colours = _colours(palette)
    drawn = [_bands(figure, bands, colours, palette) for bands in found.bands]
    if found.exact is not None:
        drawn.append(_blocks(figure, found.exact, colours, palette))
    for renderer in drawn[1:]:
        renderer.visible = False
    resolutions = [bands.resolution_s for bands in found.bands]
    if found.exact is not None:
        resolutions.append(0.0)
    _name_blocks(figure, drawn, resolutions, palette, timeline.rows)
    return figure, found.exact is not None


def _colours(palette: Palette) -> list[Any]:
    """Mappers from node numbers to the colours of areas and edges."""
    last = len(palette.fills) - 0.5
    edges = [_darker(fill) for fill in palette.fills]
    return [
        {
            "field": "node",
            "transform": models.LinearColorMapper(palette=list(colours), low=-0.5, high=last),
        }
        for colours in (palette.fills, edges)
    ]


def _bands(figure: Any, bands: Bands, colours: list[Any], palette: Palette) -> Any:
    source = models.ColumnDataSource(
        {
            "left": bands.left_s.astype(np.float32),
            "right": bands.right_s.astype(np.float32),
            "top": bands.top.astype(np.float32),
            "bottom": bands.bottom.astype(np.float32),
            "node": bands.node.astype(np.uint16),
            "count": bands.count.astype(np.uint32),
            "ms": (bands.busy_s * 1e3).astype(np.float32),
        }
    )
    renderer = figure.quad(
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        source=source,
        fill_color=colours[0],
        line_color=colours[1],
        line_width=0.4,
    )
    shown = [("node", "@node{name}"), ("invocations", "@count"), ("together", "@ms{0,0.000} ms")]
    _hover(figure, renderer, shown, palette)
    return renderer


def _blocks(figure: Any, blocks: Blocks, colours: list[Any], palette: Palette) -> Any:
    data: dict[str, Any] = {
        "left": blocks.left_s.astype(np.float32),
        "right": blocks.right_s.astype(np.float32),
        "row": blocks.row.astype(np.uint16),
        "node": blocks.node.astype(np.uint16),
        "ms": ((blocks.right_s - blocks.left_s) * 1e3).astype(np.float32),
        "step": blocks.step.astype(np.int32),
    }
    shown = [
        ("node", "@node{name}"),
        ("duration", "@ms{0,0.000} ms"),
        ("from", "@left{0.000000} s"),
        ("step of its loop", "@step"),
    ]
    if (blocks.group >= 0).any():
        data["group"] = blocks.group.astype(np.int8)
        shown.append(("group", "@group"))
    if not np.isnan(blocks.wait_s).all():
        data["wait"] = (blocks.wait_s * 1e3).astype(np.float32)
        shown.append(("ready before", "@wait{0,0.000} ms"))
    renderer = figure.hbar(
        y="row",
        left="left",
        right="right",
        height=HEIGHT,
        source=models.ColumnDataSource(data),
        fill_color=colours[0],
        line_color=colours[1],
        line_width=0.5,
    )
    _hover(figure, renderer, shown, palette)
    return renderer


def _hover(figure: Any, renderer: Any, shown: list[tuple[str, str]], palette: Palette) -> None:
    name = models.CustomJSHover(args={"paths": list(palette.paths)}, code="return paths[value]")
    figure.add_tools(
        models.HoverTool(
            renderers=[renderer],
            tooltips=[(label, form.replace("{name}", "{custom}")) for label, form in shown],
            formatters={"@node": name},
            visible=False,
        )
    )


def _name_blocks(
    figure: Any, drawn: list[Any], resolutions: list[float], palette: Palette, rows: int
) -> None:
    """Text on the blocks that are wide enough, again after every change of zoom or size."""
    names = models.ColumnDataSource({"x": [], "y": [], "text": [], "ink": []})
    figure.text(
        x="x",
        y="y",
        text="text",
        text_color="ink",
        source=names,
        text_font_size="11px",
        text_baseline="middle",
    )
    zoom = models.CustomJS(
        args={
            "figure": figure,
            "x_range": figure.x_range,
            "levels": drawn,
            "resolutions": resolutions,
            "tiny_pixels": TINY_PIXELS,
            "labels": list(palette.labels),
            "inks": list(palette.inks),
            "names": names,
            "rows": rows,
        },
        code=(resources.files("rose_opt.report") / "zoom.js").read_text("utf-8"),
    )
    figure.x_range.js_on_change("start", zoom)
    figure.x_range.js_on_change("end", zoom)
    figure.js_on_change("inner_width", zoom)


def _darker(colour: str) -> str:
    return "#" + "".join(f"{int(int(colour[n : n + 2], 16) * 0.72):02x}" for n in (1, 3, 5))
