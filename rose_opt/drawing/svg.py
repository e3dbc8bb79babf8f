"""A graph as SVG: nested boxes in program order, data edges on the left, state edges on the right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from rose_opt.drawing.layout import (
    CHARACTER,
    LANE,
    LINE,
    PADDING,
    Box,
    Edge,
    Route,
    place_boxes,
    route,
)
from rose_opt.drawing.program import DrawnGraph
from rose_opt.graph import DataEdge, GraphNode

_MARGIN = 16
_HEAD = 22  # height of the line of headings
_DATA = "#444444"
_STATE_HUES = (  # ours: as in the report, darkened so that text in them reads well on white
    "#0068a3",
    "#a35f00",
    "#00735a",
    "#a0407a",
    "#b84a00",
    "#332288",
    "#66661f",
    "#882255",
)
_FILLS = {"FREE": "#dcecf8", "DEPENDENT": "#fbead2", "leaf": "#ffffff", "": "#f1f1f1"}


def graph_svg(drawn: DrawnGraph) -> str:
    """Draw a graph.

    Args:
        drawn: What to draw.

    Returns:
        An SVG document without references to anything outside of it.
    """
    graph = drawn.graph
    data = [_data_edge(edge) for edge in drawn.data]
    states = _state_edges(drawn)
    counts = [Counter(path for e in side for path in (e.start, e.end)) for side in (data, states)]
    boxes = place_boxes(graph, lambda node: _text(drawn, node), counts[0] | counts[1])
    left, right = route(data, boxes, graph), route(states, boxes, graph)
    root = boxes[graph.root.path]
    widths = [_side_width(side) for side in (left, right)]
    head = _HEAD + LINE * len(drawn.transforms)
    width = widths[0] + root.width + widths[1] + 2 * _MARGIN
    lowest = max((item.label_y for item in (*left, *right)), default=0.0)
    height = max(root.height, lowest + LINE) + head + 2 * _MARGIN
    body = [
        *_headings(drawn, width, widths, root),
        f'<g transform="translate({_MARGIN + widths[0]:.1f} {_MARGIN + head})">',
        *(line for box in boxes.values() for line in _box(drawn, box)),
        *(line for item in left for line in _route(item, boxes, root, left, -1)),
        *(line for item in right for line in _route(item, boxes, root, right, 1)),
        "</g>",
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="11">\n'
        '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _text(drawn: DrawnGraph, node: GraphNode) -> Iterator[str]:
    """Lines of a box: name with kind and count, accesses, time."""
    words = [node.name]
    if node.kind == "loop":
        words.append(f"x {'varies' if node.count is None else node.count}")
    elif node.calls_per_parent != 1 and not node.is_loop:
        words.append(f"x {'varies' if node.calls_per_parent is None else node.calls_per_parent}")
    kind = drawn.kind(node)
    if kind:
        words.append(f" {kind}" if node.rewritable else f" {kind} fixed")
    if node.accesses.rows is not None and node.is_loop:
        words.append(f" rows {node.accesses.rows.start}..{node.accesses.rows.stop}")
    yield " ".join(words)
    declared = [str(access) for access in node.accesses.accesses]
    if node.declaration.pure:
        declared.append("pure")
    if node.accesses.opaque:
        declared.append("declares nothing: a fence")
    if node.beside:
        declared.append(f"beside {', '.join(map(_name, node.beside))}")
    yield from declared
    time = drawn.time(node)
    if time:
        yield time


def _data_edge(edge: DataEdge) -> Edge:
    words: list[str] = []
    if edge.distance:
        words.append(f"distance {edge.distance} in {_name(edge.loop)}")
    if edge.all_iterations:
        words.append("all iterations")
    elif edge.alignment is not None:
        shift = f"{edge.alignment:+d}" if edge.alignment else ""
        words.append(f"iteration j uses j{shift}")
    return Edge(edge.producer, edge.consumer, ", ".join(words), _DATA, bool(edge.distance))


def _state_edges(drawn: DrawnGraph) -> list[Edge]:
    edges = drawn.states
    names = list(dict.fromkeys(edge.state for edge in edges))
    hue = {name: _STATE_HUES[n % len(_STATE_HUES)] for n, name in enumerate(names)}
    return [
        Edge(
            edge.earlier,
            edge.later,
            f"{edge.kind} {edge.state}"
            + (f" distance {edge.distance} in {_name(edge.loop)}" if edge.distance else ""),
            hue[edge.state],
            bool(edge.distance),
        )
        for edge in edges
    ]


def _side_width(routes: Sequence[Route]) -> float:
    """Room beside the boxes for lanes and labels."""
    longest = max((len(item.edge.label) for item in routes), default=0)
    return _label_x(routes) + longest * CHARACTER + PADDING if routes else 0.0


def _label_x(routes: Sequence[Route]) -> float:
    """Distance of the labels from the boxes."""
    return LANE * (max(item.lane for item in routes) + 2) + PADDING


def _headings(drawn: DrawnGraph, width: float, widths: Sequence[float], root: Box) -> Iterator[str]:
    for number, transform in enumerate(drawn.transforms):
        y = _MARGIN + LINE * (number + 0.7)
        yield f'<text x="{_MARGIN}" y="{y:.1f}">{escape(transform)}</text>'
    y = _MARGIN + LINE * (len(drawn.transforms) + 0.7)
    places = (
        (_MARGIN, "start", "values"),
        (_MARGIN + widths[0], "start", "program order downwards; dashed: into later iterations"),
        (width - _MARGIN, "end", "states"),
    )
    for (x, anchor, text), shown in zip(places, (widths[0], root.width, widths[1]), strict=True):
        if shown:
            yield f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#555555">{text}</text>'


def _box(drawn: DrawnGraph, box: Box) -> Iterator[str]:
    leaf = not box.node.is_loop and not box.node.composite
    fill = _FILLS["leaf" if leaf else drawn.kind(box.node).partition("(")[0]]
    dashes = ' stroke-dasharray="4 3"' if box.node.accesses.opaque else ""
    yield (
        f'<rect x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{7 if leaf else 2}" fill="{fill}" stroke="#777777"{dashes}>'
        f"<title>{escape(box.node.path)}</title></rect>"
    )
    for number, line in enumerate(box.lines):
        y = box.top + PADDING / 2 + LINE * (number + 0.75)
        style = ' font-weight="bold"' if number == 0 else ' fill="#333333"'
        yield f'<text x="{box.left + PADDING:.1f}" y="{y:.1f}"{style}>{escape(line)}</text>'


def _route(
    item: Route, boxes: dict[str, Box], root: Box, side: Sequence[Route], sign: int
) -> Iterator[str]:
    """An edge at the left (`sign` -1) or right (1) of all boxes, with its arrow and label."""
    edge, (start, end) = item.edge, (boxes[item.edge.start], boxes[item.edge.end])
    from_x, to_x = (start.left, end.left) if sign < 0 else (start.right, end.right)
    border = root.left if sign < 0 else root.right
    lane_x = border + sign * LANE * (item.lane + 1)
    dashes = ' stroke-dasharray="5 3"' if edge.carried else ""
    yield (
        f'<path d="M{from_x:.1f} {item.start_y:.1f}H{lane_x:.1f}V{item.end_y:.1f}H{to_x + sign * 6:.1f}" '
        f'fill="none" stroke="{edge.colour}" stroke-width="1.3"{dashes}/>'
    )
    tip = f"{to_x:.1f} {item.end_y:.1f}L{to_x + sign * 7:.1f} {item.end_y - 3.5:.1f}v7z"
    yield f'<path d="M{tip}" fill="{edge.colour}"/>'
    if edge.label:
        low, high = sorted((item.start_y, item.end_y))
        at = min(max(item.label_y, low), high)
        label_x = border + sign * _label_x(side)
        yield (
            f'<path d="M{lane_x:.1f} {at:.1f}L{label_x - sign * 3:.1f} {item.label_y:.1f}" fill="none" '
            f'stroke="{edge.colour}" stroke-width="0.7" stroke-dasharray="1 2"/>'
        )
        anchor = "end" if sign < 0 else "start"
        yield (
            f'<text x="{label_x:.1f}" y="{item.label_y + 3.5:.1f}" text-anchor="{anchor}" '
            f'fill="{edge.colour}">{escape(edge.label)}</text>'
        )


def _name(path: str) -> str:
    return path.rpartition("/")[2]
