"""Nodes whose device work is captured into CUDA graphs: `rose.node(graph=True)`."""

from rose_trace.graphs.entry import captured

__all__ = ["captured"]
