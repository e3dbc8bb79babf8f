"""Calls of nodes with `graph=True`: captured into CUDA graphs, and eager where that would differ."""

from rose_exec.graphs.calls import Calls

__all__ = ["Calls"]
