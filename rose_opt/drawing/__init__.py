"""The execution hierarchy for people: as text and as SVG."""

from rose_opt.drawing.listing import listing
from rose_opt.drawing.program import DrawnGraph
from rose_opt.drawing.state_edges import StateEdge, state_edges
from rose_opt.drawing.svg import graph_svg

__all__ = ["DrawnGraph", "StateEdge", "graph_svg", "listing", "state_edges"]
