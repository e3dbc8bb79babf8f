from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from rose_opt.drawing import DrawnGraph, graph_svg
from rose_opt.drawing.layout import LABEL, Box, Edge, place_boxes, route
from rose_opt.facts import build_facts
from rose_opt.graph import within
from tests.rose_opt.facts.factory import Recording
from tests.rose_opt.facts.programs import ppo


@pytest.fixture
def drawn(tmp_path: Path) -> DrawnGraph:
    return DrawnGraph.recorded(build_facts(ppo(Recording()).write(tmp_path / "trace.parquet")))


def inside(inner: Box, outer: Box) -> bool:
    return (
        inner.left > outer.left
        and inner.right < outer.right
        and inner.top > outer.top
        and inner.top + inner.height < outer.top + outer.height
    )


def test_boxes_nest_like_the_nodes_and_keep_program_order(drawn: DrawnGraph) -> None:
    graph = drawn.graph
    boxes = place_boxes(graph, lambda node: [node.name, "text"], {"iteration/policy.load": 30})
    assert list(boxes) == [node.path for node in graph.subtree("iteration")]
    for (a, first), (b, second) in itertools.combinations(boxes.items(), 2):
        if within(b, a):
            assert inside(second, first)
        else:
            assert first.top + first.height < second.top
    load = boxes["iteration/policy.load"]
    assert load.height > 2 * boxes["iteration/trainer.weights"].height


def test_edges_end_at_their_boxes_and_do_not_share_a_lane(drawn: DrawnGraph) -> None:
    graph = drawn.graph
    boxes = place_boxes(graph, lambda node: [node.name], {})
    edges = [Edge(e.earlier, e.later, e.kind, "#000000", False) for e in drawn.states]
    routes = route(edges, boxes, graph)
    for item in routes:
        for path, y in ((item.edge.start, item.start_y), (item.edge.end, item.end_y)):
            assert boxes[path].top < y < boxes[path].top + boxes[path].height
    for a, b in itertools.combinations(routes, 2):
        if a.lane == b.lane:
            low, high = sorted((sorted((a.start_y, a.end_y)), sorted((b.start_y, b.end_y))))
            assert low[1] < high[0]
    labels = sorted(item.label_y for item in routes)
    assert all(b - a >= LABEL - 1e-9 for a, b in itertools.pairwise(labels))


def test_every_state_edge_is_labelled_with_kind_and_distance(drawn: DrawnGraph) -> None:
    texts = list(ET.fromstring(graph_svg(drawn)).itertext())
    for edge in drawn.states:
        carried = f" distance 1 in {edge.loop.rpartition('/')[2]}" if edge.distance else ""
        assert f"{edge.kind} {edge.state}{carried}" in texts
    assert "rollout x 3  FREE" in texts
    assert "interact x 4  DEPENDENT(1)" in texts


def test_nothing_leaves_the_picture(drawn: DrawnGraph) -> None:
    svg = graph_svg(drawn)
    root = ET.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    shift = re.search(r"translate\(([\d.]+) ([\d.]+)\)", svg)
    assert shift
    group = next(root.iter("{http://www.w3.org/2000/svg}g"))
    for text in group.iter("{http://www.w3.org/2000/svg}text"):
        long = 6.7 * len(text.text or "")
        x = float(text.attrib["x"]) + float(shift[1])
        left = x - long if text.attrib.get("text-anchor") == "end" else x
        assert left >= 0
        assert left + long <= width
        assert 0 <= float(text.attrib["y"]) + float(shift[2]) <= height


def test_names_are_text_not_markup(tmp_path: Path) -> None:
    recording = Recording()
    with recording.iteration():
        recording.node("a<b>&", ns=100, pure=True)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    root = ET.fromstring(graph_svg(DrawnGraph.recorded(facts)))
    assert "a<b>&" in list(root.itertext())
