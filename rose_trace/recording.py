"""An open recording: the recorder of this process, its part file, its activity source, and their end."""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rose_trace import activity as sources
from rose_trace import hooks, identity, otel
from rose_trace.late_import import after_import
from rose_trace.merge import merge
from rose_trace.native import recorder_class
from rose_trace.parquet import TraceError, TraceInfo, parts_of, producer
from rose_trace.parts import PartFile
from rose_trace.record import PARENT_VARIABLE, ChildSettings, close_first
from rose_trace.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from rose_trace.otel_export import LiveExport
    from rose_trace.recorder import Recorder

LEAST_STEPS = 2  # ours: what passes from one iteration to the next shows in two neighbours

log = logging.getLogger("rose_trace")


class ProcessRecording:
    """What every recorded process has: a recorder and a part file.

    Args:
        settings: Where to write, and what to continue.
        process: Role of the process.
        provider: OpenTelemetry provider of the process; ``None`` for the global one.

    Attributes:
        export: Where finished invocations are handed to as well; ``None`` for nowhere.
    """

    def __init__(
        self, settings: ChildSettings, process: str, provider: TracerProvider | None = None
    ) -> None:
        trace_id, parent_id = otel.parse_traceparent(settings.traceparent)
        self.settings = settings
        self._provider = provider
        self.export: LiveExport | None = None
        self._foreign: Any = None  # rose_trace.otel_foreign, once the SDK is there
        self.part = self._new_part(process)
        self.recorder = self._kind()(self.part, settings, trace_id, parent_id)
        self._finished = False
        global _here
        _here = self
        after_import("opentelemetry.sdk.trace", self._take_foreign_spans)
        if "torch" not in sys.modules:
            after_import("torch", self._torch_imported, "recorder")
        hooks.install_recorder(self.recorder)

    def finish(self) -> None:
        """Stop recording here, write what is left and the manifest; once."""
        global _here
        if self._finished:
            return
        self._finished = True
        if _here is self:
            _here = None
        if hooks.recorder() is self.recorder:
            hooks.install_recorder(None)
        self.recorder.buffers.close()
        if self._foreign is not None:
            self._foreign.stop()
        unfinished = self.recorder.unfinished()
        self.part.close(self.recorder.lost_rows, self.recorder.missing(), unfinished)
        if self.export is not None:
            self.export.close()

    def after_fork(self) -> None:
        """Become the recording of a forked child: its own file, nothing of the parent's rows."""
        _inherited.append(self.part)  # never finalised here: the stream belongs to the parent
        self.part = self._new_part(f"{self.part.process}/fork-{os.getpid()}")
        self.recorder.after_fork(self.part)
        if self._foreign is not None:
            self._foreign.PROCESSOR.after_fork()
            self._take_foreign_spans()

    def _kind(self) -> type[Recorder]:
        kind = recorder_class()
        if self.settings.nvtx:
            from rose_trace.nvtx import RangedRecorder

            kind = RangedRecorder
        if self.settings.steps:
            from rose_trace.sampling_recorder import sampled

            kind = sampled(kind, self.settings.steps)
        return kind

    def _torch_imported(self) -> None:
        """Until now there were no tensors, nor a native hot path, which reads them."""
        if not self._finished and _here is self:
            self.recorder.__class__ = self._kind()

    def _new_part(self, process: str) -> PartFile:
        directory, run = Path(self.settings.directory), self.settings.run
        if not self.settings.export:
            return PartFile(directory, run, process)
        from rose_trace.otel_export import ExportingPart, LiveExport

        self.export = LiveExport(self._provider)
        return ExportingPart(directory, run, process, self.export)

    def _take_foreign_spans(self) -> None:
        """The SDK of OpenTelemetry is there: record the spans of other instrumentation too."""
        if self._finished or _here is not self:
            return
        from rose_trace import otel_foreign

        self._foreign = otel_foreign
        otel_foreign.start(self.part.write_rows, self._lost, self._provider, self._provider_made)
        self.recorder.buffers.others.append(otel_foreign.PROCESSOR.flush)

    def _provider_made(self) -> None:
        """Providers end at exit; what they should export is handed over before."""
        close_first()
        Joined.stop_first()

    def _lost(self, failure: Exception, rows: int) -> None:
        self.recorder.lost_rows += rows
        self.recorder.fail(failure)


class Recording(ProcessRecording):
    """The recording that owns the trace.

    Args:
        path: The file to write at the end.
        activity: Source of activity samples.
        nvtx: Whether invocations are NVTX ranges too.
        steps: Iterations at each end of inner loops to record in full; ``None`` for all.
        export: Whether invocations are handed to the OpenTelemetry provider too.
        provider: That provider; ``None`` for the global one.
        whole_program: Whether it lasts until the program ends.

    Raises:
        TraceError: If the parts directory cannot be made, or belongs to a live recording.
        ValueError: If `steps` is below 2, or there is no such source of activity.
    """

    def __init__(
        self,
        path: Path,
        *,
        activity: str,
        nvtx: bool,
        export: bool = False,
        steps: int | None = None,
        provider: TracerProvider | None = None,
        whole_program: bool = False,
    ) -> None:
        if steps is not None and steps < LEAST_STEPS:
            raise ValueError(
                f"record(steps={steps}): expected at least {LEAST_STEPS}, got {steps}. What passes from one "
                "iteration to the next shows only in neighbours; leave it out to record everything."
            )
        self.path = path.absolute()
        self.whole_program = whole_program
        self.info: TraceInfo | None = None
        self._pid = os.getpid()
        parts = parts_of(self.path)
        run = uuid.uuid4().hex
        trace_id, span_id = otel.surrounding()
        if not trace_id:
            trace_id, span_id = otel.parse_traceparent(os.environ.get(PARENT_VARIABLE, ""))
        self._source, chosen = sources.choose(activity)
        header = {
            "run": run,
            "schema_version": SCHEMA_VERSION,
            "producer": producer(),
            "pid": self._pid,
            "activity": chosen,
            "steps": steps,
        }
        try:
            _make_room(parts)
            parts.mkdir(parents=True)
            (parts / "run.json").write_text(json.dumps(header, indent=1), encoding="utf-8")
        except OSError as error:
            raise TraceError(
                f"{self.path}: expected to write there, got {error}. Choose another path."
            ) from error
        traceparent = otel.traceparent(trace_id, span_id) if trace_id else ""
        settings = ChildSettings(str(parts), run, traceparent, self._pid, nvtx, export, steps or 0)
        super().__init__(settings, "main", provider)
        if self._source is not None:
            self._source.start(self.recorder.buffers.add_sample)

    def child_settings(self) -> ChildSettings:
        """What a worker process needs to join this recording."""
        return self.recorder.child_settings()

    def close(self) -> None:
        """End the recording and merge its parts; in a forked child, only end the child's part.

        Raises:
            TraceError: If the trace cannot be written; the parts are then kept.
        """
        if os.getpid() != self._pid:
            self.finish()
            return
        if self._source is not None:
            self._source.stop()
        self.finish()
        self.info = merge(Path(self.settings.directory), self.path)
        if not self.info.complete:
            log.warning("%s: the trace is incomplete: %s.", self.path, "; ".join(self.info.reasons))


class Joined:
    """The recording of a worker process in somebody else's trace."""

    _current: ProcessRecording | None = None

    @classmethod
    def start(cls, settings: ChildSettings, process: str) -> None:
        """Begin; see `rose_trace.record.join`.

        Raises:
            TraceError: If the recording is over.
        """
        if not Path(settings.directory).is_dir():
            raise TraceError(
                f"join({process}): expected an open recording, got none at {settings.directory}. Join before the "
                "recording process closes."
            )
        cls._current = ProcessRecording(settings, process)
        atexit.register(cls.stop)
        _finish_with_multiprocessing()

    @classmethod
    def stop_first(cls) -> None:
        """End it before what was made just now: exit handlers run newest first."""
        if cls._current is not None:
            atexit.unregister(cls.stop)
            atexit.register(cls.stop)

    @classmethod
    def stop(cls) -> None:
        """End it, once."""
        joined, cls._current = cls._current, None
        if joined is not None:
            joined.finish()


_here: ProcessRecording | None = None
_inherited: list[Any] = []


def _after_fork() -> None:
    if _here is not None:
        identity.after_fork()
        _here.after_fork()


def _finish_fork() -> None:
    """A forked child of multiprocessing ends in `os._exit` and runs only finalizers."""
    if _here is not None:
        _finish_with_multiprocessing()


def _finish_here() -> None:
    if _here is not None:
        _here.finish()


def _finish_with_multiprocessing() -> None:
    from multiprocessing import util

    util.Finalize(None, _finish_here, exitpriority=0)


def _watch_forks() -> None:
    from multiprocessing import util

    os.register_at_fork(after_in_child=_after_fork)
    util.register_after_fork(sys.modules[__name__], lambda _: _finish_fork())


_watch_forks()


def _make_room(parts: Path) -> None:
    """Move the parts of a killed run aside.

    Raises:
        TraceError: If they belong to a live recording.
    """
    if not parts.exists():
        return
    try:
        owner = int(json.loads((parts / "run.json").read_text(encoding="utf-8"))["pid"])
    except (OSError, ValueError, KeyError):
        owner = 0
    if owner and owner != os.getpid() and Path(f"/proc/{owner}").exists():
        raise TraceError(
            f"{parts}: expected no live recording there, got one by process {owner}. Choose another path."
        )
    number = 1
    while (aside := parts.with_name(f"{parts.name}.{number}")).exists():
        number += 1
    parts.rename(aside)
    log.warning(
        "%s: kept the parts of a run that did not end; rose-trace recover can read %s.",
        parts,
        aside,
    )
