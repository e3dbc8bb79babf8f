"""The recorder: runs every invocation natively and writes down what ran.

It never changes the program: exceptions pass untouched, generators and coroutines stay what they
are, and a failure of its own disables it once, loudly, and marks the trace incomplete.

Paper: §4.2, "Tracing"; App. A.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from opentelemetry.context import Context

from rose_trace import hooks, otel
from rose_trace.buffers import FLUSH_ROWS, Buffers, Part, ThreadBuffer
from rose_trace.component import Instance, LocalComponents
from rose_trace.dataref import NONE, describe_inputs, describe_result
from rose_trace.device_time import DeviceClock, Mark, cuda_index
from rose_trace.frames import Frame, current
from rose_trace.generators import State, capture, changed
from rose_trace.invocation import (
    WATCHED_CALLS,
    Execution,
    Invocation,
    Site,
    declaration_json,
    execution,
)
from rose_trace.loop import LoopNode
from rose_trace.node import ExecutionNode
from rose_trace.otel import SPAN_KEY
from rose_trace.pytree import class_of
from rose_trace.record import ChildSettings
from rose_trace.suspended import drive
from rose_trace.unfinished import unfinished

__all__ = ["Execution", "Recorder", "execution"]

log = logging.getLogger("rose_trace")

CPU_READING_NS = 50_000  # ours: shorter than this is taken as one busy core, without a system call
PROBATION_CALLS = (
    256  # ours: short calls after which a node that once was not is taken for brief again
)
THREADS_READING_NS = 10_000_000  # ours

_now, _cpu_time = time.time_ns, time.process_time_ns
_attach, _detach, _context = otel.attach, otel.detach, otel.current_context
_frame, _set_frame, _reset_frame = current.get, current.set, current.reset
_execution = execution.get


class Recorder(LocalComponents):
    """Records one process's invocations.

    Args:
        part: Where rows go.
        settings: What a child of this process needs to record into the same trace.
        trace_id: OpenTelemetry trace of the roots; 0 for a new one per root.
        parent_id: OpenTelemetry parent of the roots; 0 for none.
    """

    # What every invocation asks for has a fixed place: the native hot path reads it there.
    __slots__ = ("_device", "_local", "_lock", "_sites", "buffers")

    def __init__(
        self, part: Part, settings: ChildSettings, trace_id: int = 0, parent_id: int = 0
    ) -> None:
        self._device = DeviceClock()
        self.buffers = Buffers(part, self._lost, self._device)
        self._local = self.buffers.local
        self._settings = settings
        self.lost_rows = 0
        self.failure: str | None = None
        self._ids = otel.Ids()
        self._span_id = self._ids.span_bits
        self._trace_id = trace_id
        self._parent_id = parent_id
        self._sites: dict[Any, Site] = {}
        self._states: dict[str, list[int]] = {}
        self._roots: dict[str, int] = {}
        self._lock = threading.Lock()
        self._since_ns = 0

    # Resolver.

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one invocation natively and record it."""
        if node.suspends:
            return drive(self, node, args, kwargs)
        try:
            inv = self.opened(node, args, kwargs)
            before = self._watch(inv.site) if inv.site.unwatched else None
        except Exception as failure:
            self.fail(failure)
            return node.entry(*args, **kwargs)
        try:
            result = node.entry(*args, **kwargs)
        except BaseException as error:
            self.closed(inv, None, error)
            raise
        self.closed(inv, result)
        if before is not None:
            self._tell(inv.site, before)
        return result

    def run_iteration(
        self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one RL iteration natively and record it; its index counts calls since recording began."""
        return self.invoke(node, args, kwargs)

    def run_loop(
        self, loop: LoopNode[Any, Any, Any], carry: Any, items: Iterable[Any]
    ) -> tuple[Any, Any]:
        """Run all iterations of a loop natively and record it."""
        given = (carry, items) if isinstance(items, (list, tuple)) else (carry,)
        try:
            inv = self.opened(loop, given, {}, loop.instance)
        except Exception as failure:
            self.fail(failure)
            return loop.run(carry, items)
        outputs: list[Any] = []
        try:
            for index, item in enumerate(items):
                token = current.set(inv.inside(index))
                try:
                    carry, output = loop.body(carry, item)
                finally:
                    current.reset(token)
                outputs.append(output)
        except BaseException as error:
            inv.count = len(outputs)
            self.closed(inv, error=error)
            raise
        inv.count = len(outputs)
        self.closed(inv, (carry, outputs))
        return carry, outputs

    def iterate(self, name: str, items: Iterable[Any]) -> Iterable[Any]:
        """Record a loop that cannot be rewritten; the block between two items is one iteration."""
        return self._iterate(name, items)

    # Opening and closing.

    def opened(
        self,
        node: ExecutionNode,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        instance: Instance | None = None,
        caller: Frame | None = None,
    ) -> Invocation:
        """Begin an invocation: make it the current frame and the current OpenTelemetry span."""
        if caller is None:
            caller = _frame() or self._root()
        if node.is_method and args:
            instance = getattr(args[0], "_rose_instance", None)
            if instance is not None:
                args = args[1:]
        name = None if instance is None else instance.name
        site = self._sites.get((node.entry, node.name, caller.path, name))
        if site is None:
            site = self._new_site(node, instance, caller.path)
        try:
            buffer = self._local.buffer
        except AttributeError:
            buffer = self.buffers.mine()
        calls = caller.calls
        ordinal = calls.get(site.node, 0)
        calls[site.node] = ordinal + 1
        inv = Invocation(site, caller, buffer, self._span_id() or 1, ordinal)
        if not inv.trace_id:
            inv.trace_id = self._ids.trace_id()
        if site.indices is not None:
            inv.iteration = (*caller.iteration, next(site.indices))
        if args or kwargs:
            inv.inputs, inv.input_refs = describe_inputs(args, kwargs)
        if site.cells:
            inv.versions = tuple([cell[0] for cell in site.cells])
        planned = _execution()
        if planned is not None:
            inv.execution = planned
            inv.wait_ns, planned.wait_ns = planned.wait_ns, None
        self.attach(inv)
        now = inv.start_ns = _now()
        if not site.brief:
            if now - buffer.read_ns > CPU_READING_NS:
                buffer.cpu_ns = _cpu_time()
                buffer.read_ns = now
            inv.cpu_ns = buffer.cpu_ns + now - buffer.read_ns
        if now - buffer.looked_ns > THREADS_READING_NS:
            read_threads(buffer, now)
            self._device.look()
        inv.threads = buffer.threads if planned is None else planned.threads or buffer.threads
        return inv

    def _watch(self, site: Site) -> State | None:
        """Note the process-wide generators before one of the first calls of a node."""
        site.unwatched -= 1
        try:
            return capture()
        except Exception as failure:
            self.fail(failure)
            return None

    def _tell(self, site: Site, before: State) -> None:
        """Say in the rows of a node that it draws from process-wide generators."""
        try:
            drawn = changed(before, capture())
        except Exception as failure:
            self.fail(failure)
            return
        if drawn:
            known = dict(site.attributes)
            told = filter(None, known.get("generators", "").split(","))
            known["generators"] = ",".join(sorted({*told, *drawn}))
            site.attributes = tuple(known.items())

    def attach(self, inv: Invocation) -> None:
        """Attach the contexts of an invocation."""
        around = _context()
        if len(around) == 1 and SPAN_KEY in around:  # the usual case, without a call
            inv.context_token = _attach(Context({SPAN_KEY: inv}))
        else:
            inv.context_token = _attach(otel.context_with(inv, around))
        inv.frame_token = _set_frame(inv)

    def closed(
        self, inv: Invocation, result: Any = None, error: BaseException | None = None
    ) -> None:
        """End an invocation and hand its row to the calling thread's buffer; never raises."""
        now = inv.end_ns = _now()
        try:
            buffer = inv.buffer
            site = inv.site
            duration = now - inv.start_ns
            if duration < CPU_READING_NS:
                inv.cpu_ns = duration
                if site.probation:
                    site.probation -= 1
                else:
                    site.brief = True
            elif inv.cpu_ns is None:  # brief until now, so not read at its start: unknown
                site.brief, site.probation = False, PROBATION_CALLS
            else:
                buffer.cpu_ns = _cpu_time()
                buffer.read_ns = now
                spent = buffer.cpu_ns - inv.cpu_ns
                inv.cpu_ns = spent if spent > 0 else 0
            self.leave(inv)
            if site.written:
                with self._lock:
                    for cell in site.written:
                        cell[0] += 1
            if error is not None:
                inv.error = type(error).__name__
            elif result is None:
                inv.outputs = NONE
            else:
                claim = inv.span_id, inv.start_ns, now
                inv.outputs, inv.output_refs = describe_result(result, claim)
                if site.kind == "loop":
                    inv.carry = describe_result(result[0], claim)[0]
            if self._device.active:
                inv.mark = self.mark(inv)
            rows = buffer.rows
            rows.append(inv)
            if len(rows) >= FLUSH_ROWS:
                self.buffers.filled(buffer)
        except Exception as failure:
            self.fail(failure)

    def mark(self, inv: Invocation) -> Mark | None:
        """Leave an event behind the device work of an invocation that closes now."""
        device = cuda_index(x for x in (*inv.inputs, *inv.outputs) if class_of(x) is str)
        return self._device.mark(inv.start_ns, inv.end_ns, device)

    def leave(self, inv: Invocation) -> None:
        """Detach the contexts of an invocation."""
        frame_token, context_token = inv.frame_token, inv.context_token
        if frame_token is not None and context_token is not None:
            inv.frame_token = inv.context_token = None
            try:
                _reset_frame(frame_token)
                _detach(context_token)
            except ValueError:  # finalised in another context, where nothing of it is attached
                pass

    def fail(self, failure: Exception) -> None:
        """A failure of the recorder itself: say so once, stop recording, let the program go on."""
        if self.failure is None:
            self.failure = f"{type(failure).__name__}: {failure}"
            log.error(
                "Recorder: expected to record quietly, got %s. Recording stops here and the trace is marked "
                "incomplete; the program goes on.",
                self.failure,
                exc_info=failure,
            )
            if hooks.recorder() is self:
                hooks.install_recorder(None)

    def missing(self) -> str | None:
        """What the rows that were written do not tell, and why; ``None`` where nothing is missing."""
        if self.failure is None and self._device.unresolved:
            return (
                f"the device end of {self._device.unresolved} invocations could not be told "
                f"({self._device.failure or 'the device was not done'})"
            )
        return self.failure

    def unfinished(self) -> dict[str, int]:
        """Invocations that have no row since they have not ended, by node path; asked once, at the end."""
        try:
            with self._lock:
                sites = list(self._sites.values())
            return unfinished(sites, self.buffers.left(), self._since_ns)
        except Exception as failure:
            self.fail(failure)
            return {}

    def child_settings(self) -> ChildSettings:
        """What a worker process started here needs to join the trace, under the current invocation."""
        return dataclasses.replace(self._settings, traceparent=self.traceparent())

    def after_fork(self, part: Part) -> None:
        """Go on in a forked child: own ids, own buffers, no lock that another thread held."""
        self._device.after_fork()
        self.buffers = Buffers(part, self._lost, self._device)
        self._local = self.buffers.local
        self._ids = otel.Ids()
        self._span_id = self._ids.span_bits
        self._lock = threading.Lock()
        self._since_ns = _now()

    def traceparent(self) -> str:
        """W3C traceparent of the current invocation, or of the recording; empty where there is none."""
        frame = current.get()
        if frame is not None and frame.trace_id and frame.span_id:
            return otel.traceparent(frame.trace_id, frame.span_id)
        return otel.traceparent(self._trace_id, self._parent_id) if self._trace_id else ""

    def _lost(self, failure: Exception, rows: int) -> None:
        self.lost_rows += rows
        self.fail(failure)

    def _root(self) -> Frame:
        """A frame outside any invocation: roots continue the surrounding OpenTelemetry trace."""
        trace_id, parent_id = otel.surrounding()
        if not trace_id:
            trace_id, parent_id = self._trace_id or self._ids.trace_id(), self._parent_id
        return Frame("", (), parent_id, trace_id, self._roots)

    def _new_site(self, node: ExecutionNode, instance: Instance | None, caller_path: str) -> Site:
        name = node.full_name(instance)
        accesses = node.accesses(instance).accesses
        with self._lock:
            cells = tuple(self._states.setdefault(access.state, [0]) for access in accesses)
            site = Site(
                node.kind,
                name,
                f"{caller_path}/{name}" if caller_path else name,
                node.key,
                node.fingerprint,
                declaration_json(node, instance),
                tuple((access.state, access.mode.value) for access in accesses),
                cells,
                tuple(
                    cell for cell, access in zip(cells, accesses, strict=True) if access.mode.writes
                ),
                itertools.count() if node.kind == "iteration" else None,
                unwatched=WATCHED_CALLS,
                is_async=node.is_async,
            )
            key = (node.entry, node.name, caller_path, None if instance is None else instance.name)
            return self._sites.setdefault(key, site)

    def _iterate(self, name: str, items: Iterable[Any]) -> Iterator[Any]:
        try:
            caller = _frame() or self._root()
            key = (name, caller.path)
            site = self._sites.get(key)
            if site is None:
                path = caller.child_path(name)
                site = Site(
                    "loop", name, path, "", "", _GLUE, attributes=(("rewritable", "false"),)
                )
                self._sites[key] = site
            buffer = self.buffers.mine()
            inv = Invocation(site, caller, buffer, self._span_id() or 1, caller.next_ordinal(name))
            self.attach(inv)
            inv.start_ns, inv.cpu_ns, inv.threads = _now(), _cpu_time(), buffer.threads
        except Exception as failure:
            self.fail(failure)
            yield from items
            return
        inv.count = 0
        problem: BaseException | None = None
        try:
            for index, item in enumerate(items):
                frame = inv.inside(index)
                token = current.set(frame)
                try:
                    yield item
                    inv.count = index + 1
                finally:
                    if current.get() is frame:
                        current.reset(token)
        except GeneratorExit:  # the block was left with break, return or an exception
            inv.count += 1
            raise
        except BaseException as error:
            problem = error
            raise
        finally:
            if current.get() is not inv:  # finalised late: the program has moved on
                inv.frame_token = None
            self.closed(inv, None, problem)


_GLUE = json.dumps(
    {
        "reads": [],
        "updates": [],
        "refreshes": [],
        "pure": False,
        "rows": False,
        "component": None,
        "batch_states": [],
        "shardable": False,
    },
    separators=(",", ":"),
)


def read_threads(buffer: ThreadBuffer, now: int) -> None:
    """Look up the intra-op threads of the program."""
    buffer.looked_ns = now
    torch = sys.modules.get("torch")
    if torch is not None:
        buffer.threads = torch.get_num_threads()
