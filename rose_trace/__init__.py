"""Rose, tracing: decorate functions, record what ran, which data and state each call used."""

from rose_trace.component import component, program
from rose_trace.frames import current_rows
from rose_trace.loop import iteration, iterations, loop
from rose_trace.node import node
from rose_trace.record import record
from rose_trace.records import StateAccess

__all__ = [
    "StateAccess",
    "component",
    "current_rows",
    "iteration",
    "iterations",
    "loop",
    "node",
    "program",
    "record",
]
