"""Places for nested boxes and for the edges at their sides: program order runs from top to bottom.

Edges leave and enter boxes at the side, and run in lanes outside of all boxes: nothing crosses a box.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rose_opt.graph import Graph, GraphNode

CHARACTER = 6.7  # ours: width of a character of the font [pixels]
LINE = 15  # ours: height of a line of text
PADDING = 10  # ours
GAP = 9  # ours: between boxes
LANE = 13  # ours: between edges that run side by side
SLOT = 8  # ours: between edges at one box
LABEL = 14  # ours: between labels


@dataclass(frozen=True, slots=True)
class Box:
    """One node.

    Attributes:
        node: The node.
        lines: Its text, the first line being its name.
        left: Left edge [pixels].
        top: Upper edge [pixels].
        width: Width [pixels].
        height: Height [pixels].
        depth: Boxes around it.
    """

    node: GraphNode
    lines: tuple[str, ...]
    left: float
    top: float
    width: float
    height: float
    depth: int

    @property
    def right(self) -> float:
        """Right edge [pixels]."""
        return self.left + self.width


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge to place.

    Attributes:
        start: Path of the box it leaves.
        end: Path of the box it enters.
        label: Its text; empty for none.
        colour: Its colour.
        carried: Whether a loop carries it.
    """

    start: str
    end: str
    label: str
    colour: str
    carried: bool


@dataclass(frozen=True, slots=True)
class Route:
    """A placed edge.

    Attributes:
        edge: The edge.
        start_y: Where it leaves its box [pixels].
        end_y: Where it enters the other.
        lane: Its lane, from the boxes outwards.
        label_y: Where its label is.
    """

    edge: Edge
    start_y: float
    end_y: float
    lane: int
    label_y: float


def place_boxes(
    graph: Graph, text: Callable[[GraphNode], Iterable[str]], sides: Mapping[str, int]
) -> dict[str, Box]:
    """Place all nodes of a graph.

    Args:
        graph: The graph.
        text: Lines of text of a node.
        sides: Most edges at one side of a node, by path; its box is made high enough for them.

    Returns:
        Boxes by path, outer ones first; the root's upper left corner is at 0, 0.
    """
    lines = {node.path: tuple(text(node)) for node in graph.nodes}
    width: dict[str, float] = {}
    for node in reversed(tuple(graph.subtree(graph.root.path))):
        inner = max((width[child.path] for child in graph.children(node.path)), default=0.0)
        longest = max(map(len, lines[node.path])) * CHARACTER
        width[node.path] = max(inner, longest) + 2 * PADDING
    boxes: dict[str, Box] = {}

    def place(node: GraphNode, left: float, top: float, room: float, depth: int) -> float:
        """Place a node and what is in it; returns its height."""
        text_height = LINE * len(lines[node.path]) + PADDING
        boxes[node.path] = Box(node, lines[node.path], left, top, room, 0, depth)
        height = max(text_height, SLOT * (sides.get(node.path, 0) + 1))
        for child in graph.children(node.path):
            inside = room - 2 * PADDING
            height += place(child, left + PADDING, top + height, inside, depth + 1) + GAP
        boxes[node.path] = Box(node, lines[node.path], left, top, room, height, depth)
        return height

    place(graph.root, 0, 0, width[graph.root.path], 0)
    return boxes


def route(edges: Sequence[Edge], boxes: Mapping[str, Box], graph: Graph) -> list[Route]:
    """Place the edges of one side.

    Args:
        edges: The edges.
        boxes: All boxes.
        graph: The graph, which tells the boxes that hold others.

    Returns:
        One route per edge, the shortest nearest to the boxes.
    """
    slots = _slots(edges, boxes, graph)
    ends = [(slots[number, True], slots[number, False]) for number in range(len(edges))]
    lanes: list[list[tuple[float, float]]] = []
    lane_of: dict[int, int] = {}
    for number in sorted(range(len(edges)), key=lambda n: (abs(ends[n][0] - ends[n][1]), n)):
        low, high = sorted(ends[number])
        lane = 0
        while lane < len(lanes) and any(a < high + 3 and low - 3 < b for a, b in lanes[lane]):
            lane += 1
        lanes += [[] for _ in range(lane + 1 - len(lanes))]
        lanes[lane].append((low, high))
        lane_of[number] = lane
    labels = _label_places([sum(pair) / 2 for pair in ends], [bool(e.label) for e in edges])
    return [
        Route(edge, *ends[number], lane_of[number], labels[number])
        for number, edge in enumerate(edges)
    ]


def _slots(
    edges: Sequence[Edge], boxes: Mapping[str, Box], graph: Graph
) -> dict[tuple[int, bool], float]:
    """Where each edge leaves (True) and enters (False) its boxes, those that go up at the top."""
    at: dict[str, list[tuple[float, int, bool]]] = {}
    for number, edge in enumerate(edges):
        at.setdefault(edge.start, []).append((boxes[edge.end].top, number, True))
        at.setdefault(edge.end, []).append((boxes[edge.start].top, number, False))
    found: dict[tuple[int, bool], float] = {}
    for path, some in at.items():
        box = boxes[path]
        holds = bool(graph.children(path))
        height = LINE * len(box.lines) + PADDING if holds else box.height
        for position, (_, number, leaves) in enumerate(sorted(some), start=1):
            found[number, leaves] = box.top + height * position / (len(some) + 1)
    return found


def _label_places(wanted: Sequence[float], shown: Sequence[bool]) -> list[float]:
    """Heights near the wanted ones at which no two labels touch."""
    places = list(wanted)
    last = -float("inf")
    for number in sorted(range(len(wanted)), key=lambda n: wanted[n]):
        if shown[number]:
            places[number] = last = max(wanted[number], last + LABEL)
    return places
