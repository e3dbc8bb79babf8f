"""`record`: write a trace of what runs inside a block, or of a whole program with ``ROSE_TRACE``.

Nothing heavy is imported before a recording starts.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rose_trace import hooks

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from rose_trace.recording import Recording

log = logging.getLogger("rose_trace")

PATH_VARIABLE = "ROSE_TRACE"
JOIN_VARIABLE = "ROSE_TRACE_JOIN"
EXPORT_VARIABLE = "ROSE_TRACE_EXPORT"
STEPS_VARIABLE = "ROSE_TRACE_STEPS"
PARENT_VARIABLE = "TRACEPARENT"  # OpenTelemetry's name for a W3C traceparent in the environment


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """What a worker process needs to record into the same trace; picklable.

    Attributes:
        directory: Parts directory of the recording.
        run: Id of the run.
        traceparent: W3C traceparent that the worker's roots continue; empty for none.
        owner: Process id of the recording process.
        nvtx: Whether invocations are NVTX ranges too.
        export: Whether invocations are exported through the OpenTelemetry provider of the process.
        steps: Iterations at each end of inner loops that are recorded in full; 0 for all.
    """

    directory: str
    run: str
    traceparent: str
    owner: int
    nvtx: bool = False
    export: bool = False
    steps: int = 0


_open: Recording | None = None


@contextlib.contextmanager
def record(
    path: str | os.PathLike[str],
    *,
    activity: str = "auto",
    nvtx: bool = False,
    steps: int | None = None,
    export: bool = False,
    provider: TracerProvider | None = None,
) -> Generator[Recording]:
    """Record every invocation inside the block into one Parquet file.

    Inside a program that ``ROSE_TRACE`` already records, the block is part of that trace.

    Args:
        path: The file to write; activity samples go to ``<stem>.activity.parquet`` beside it.
        activity: Source of activity: ``auto``, ``none``, or a name from `rose_trace.activity`.
        nvtx: Make every invocation an NVTX range too, with the span id as payload.
        steps: Record only so many iterations at the start and at the end of every loop inside an RL
            iteration in full, at least 2, and sums of those between; by default all.
        export: Hand every finished invocation to the OpenTelemetry provider too (docs/opentelemetry.md).
        provider: The provider to export through, whose spans are recorded as well; by default the
            global one.

    Yields:
        The recording; after the block its `info` says what was written.

    Raises:
        TraceError: If a recording is open already, or the file cannot be written.
        ValueError: If `steps` is below 2, or `activity` is none of those.
    """
    from rose_trace.parquet import TraceError

    if _open is not None:
        if not _open.whole_program:
            raise TraceError(
                f"record({path}): expected no open recording, got {_open.path}. Close that one first."
            )
        log.warning(
            "record(%s): %s=%s already records the whole program.", path, PATH_VARIABLE, _open.path
        )
        yield _open
        return
    recording = _start(Path(path), activity, nvtx, export, steps, provider)
    try:
        yield recording
    except BaseException:
        try:
            _close()
        except TraceError:
            log.exception(
                "record(%s): expected to write the trace beside the program's own error.", path
            )
        raise
    _close()


def join(settings: ChildSettings, *, process: str) -> None:
    """Record this worker process into the trace of another one.

    Args:
        settings: `Recording.child_settings` of the recording process.
        process: Role of this process, e.g. ``worker:simulator[0/2]``.

    Raises:
        TraceError: If the recording is over.
    """
    from rose_trace.recording import Joined

    leave()
    Joined.start(settings, process)


def leave() -> None:
    """Write what this worker process has recorded and stop; nothing happens where it records nothing."""
    from rose_trace.recording import Joined

    Joined.stop()


def _start(
    path: Path,
    activity: str,
    nvtx: bool,
    export: bool,
    steps: int | None,
    provider: TracerProvider | None = None,
    whole_program: bool = False,
) -> Recording:
    global _open
    from rose_trace.recording import Recording

    leave()
    recording = Recording(
        path,
        activity=activity,
        nvtx=nvtx,
        export=export,
        steps=steps,
        provider=provider,
        whole_program=whole_program,
    )
    os.environ[JOIN_VARIABLE] = json.dumps(asdict(recording.child_settings()))
    _open = recording
    return recording


def _close() -> None:
    global _open
    if _open is not None:
        recording, _open = _open, None
        os.environ.pop(JOIN_VARIABLE, None)
        recording.close()


def close_first() -> None:
    """End a whole program's recording before what was made just now: exit handlers run newest first."""
    if _open is not None and _open.whole_program:
        atexit.unregister(_close)
        atexit.register(_close)


def start_from_environment() -> None:
    """Start recording where the environment asks for it: a whole program, or a child of a recorded one."""
    settings, path = os.environ.get(JOIN_VARIABLE), os.environ.get(PATH_VARIABLE)
    if hooks.recorder() is not None:
        return
    if settings:
        child = ChildSettings(**json.loads(settings))
        child = replace(child, traceparent=os.environ.get(PARENT_VARIABLE) or child.traceparent)
        if child.owner != os.getpid() and Path(child.directory).is_dir():
            join(child, process=f"child-{os.getpid()}")
    elif path:
        rank = int(os.environ.get("RANK", "0"))
        where = Path(path)
        if rank:  # every rank of a distributed launch records its own file
            where = where.with_name(f"{where.stem}.rank{rank}{where.suffix}")
        export = os.environ.get(EXPORT_VARIABLE, "") not in ("", "0")
        steps = os.environ.get(STEPS_VARIABLE)
        _start(
            where,
            os.environ.get("ROSE_ACTIVITY", "auto"),
            nvtx=False,
            export=export,
            steps=int(steps) if steps else None,
            whole_program=True,
        )
        atexit.register(_close)


start_from_environment()
