"""Rose, tracing: decorate functions, record what ran, which data and state each call used."""

import os as _os

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

if _os.environ.get("ROSE_PLAN"):  # the executor is found by name: nothing here depends on it
    import importlib as _importlib

    _importlib.import_module("rose_exec.environment").install()
