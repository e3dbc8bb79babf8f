"""Recordings that are native from the second call of a node on, with their rows at hand."""

from __future__ import annotations

import array
import contextlib
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import rose_trace as rose
from rose_trace import buffers, hooks, recorder
from rose_trace.dataref import Refs, packed
from rose_trace.invocation import Invocation
from rose_trace.native.load import VARIABLE
from rose_trace.recorder import Recorder


def numbers_of(refs: Refs) -> tuple[int, ...]:
    """The numbers of a row."""
    return tuple(array.array("Q", packed(refs)))


@dataclass(slots=True)
class NativeRecording:
    """One recording.

    Attributes:
        recorder: Its recorder.
        rows: Finished invocations of the thread that opened it, oldest first.
        in_python: Nodes whose invocations were opened in Python, in order.
    """

    recorder: Any
    rows: list[Invocation]
    in_python: list[str] = field(default_factory=list[str])


@contextlib.contextmanager
def native_recording(
    path: Path, *, complete: bool = True, **options: Any
) -> Generator[NativeRecording]:
    """Record a block natively.

    Args:
        path: The trace.
        complete: Whether the trace must be complete.
        options: Further options of `rose.record`.

    Yields:
        The recording.
    """
    opened = Recorder.opened
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        patch.setattr(recorder, "WATCHED_CALLS", 0)
        patch.setattr(buffers, "FLUSH_SECONDS", 3600.0)
        with rose.record(path, activity="none", **options) as recording:
            active: Any = hooks.active
            assert "NativeRecorder" in [kind.__name__ for kind in type(active).__mro__]
            found = NativeRecording(active, active.buffers.mine().rows)

            def counting(self: Recorder, node: Any, *args: Any, **kwargs: Any) -> Invocation:
                found.in_python.append(node.name)
                return opened(self, node, *args, **kwargs)

            patch.setattr(Recorder, "opened", counting)
            yield found
    assert recording.info is not None
    assert recording.info.complete is complete, recording.info.reasons
