"""`Invocation`: one call while it runs, and the row it becomes.

It is at once the frame its children see and the OpenTelemetry span that other libraries see, so
opening one costs a single object.
"""

from __future__ import annotations

import itertools
import json
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext

from rose_trace.dataref import NO_VALUES, Refs, Tokens
from rose_trace.device_time import Mark
from rose_trace.frames import Frame
from rose_trace.otel import SAMPLED

if TYPE_CHECKING:
    from rose_trace.buffers import ThreadBuffer
    from rose_trace.component import Instance
    from rose_trace.node import ExecutionNode


WATCHED_CALLS = 8  # ours: a node that draws does so from its first calls on


@dataclass(slots=True)
class Execution:
    """How an executor runs the next invocation; children inherit all but the wait.

    Attributes:
        worker: Worker that runs it.
        wait_ns: Time between being ready and starting [ns]; the first invocation takes it.
        threads: Intra-op threads it runs with.
    """

    worker: str | None = None
    wait_ns: int | None = None
    threads: int | None = None


execution: ContextVar[Execution | None] = ContextVar("rose_execution", default=None)
"""Set by an executor around an invocation; ``None`` in a native run."""


@dataclass(slots=True, eq=False)
class Site:
    """What all invocations of one node at one place of the hierarchy share.

    Attributes:
        kind: ``exec``, ``loop`` or ``iteration``.
        node: Name with its component.
        path: Position in the hierarchy.
        key: Definition, ``module:qualname``.
        fingerprint: Hash of the definition.
        declaration: JSON of what was declared.
        states: Absolute state and access of every declared access.
        cells: Counters of the writes to those states, in the same order.
        written: The counters that an invocation advances.
        indices: Gives the index of an RL iteration; ``None`` for any other node.
        is_async: Whether its invocations are coroutines.
        brief: Whether the last invocation was too short to be worth a reading of CPU time.
        probation: How many more short invocations it takes to be taken for brief.
        attributes: Attributes of all its rows.
        unwatched: How many more calls to watch for draws from process-wide generators.
        seen_inputs: Tokens of the last arguments, where the hot path has seen them.
        seen_outputs: Tokens of the last result, likewise.
    """

    kind: str
    node: str
    path: str
    key: str
    fingerprint: str
    declaration: str
    states: tuple[tuple[str, str], ...] = ()
    cells: tuple[list[int], ...] = ()
    written: tuple[list[int], ...] = ()
    indices: itertools.count[int] | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    unwatched: int = 0
    is_async: bool = False
    brief: bool = False
    probation: int = 0
    seen_inputs: Tokens = ()
    seen_outputs: Tokens = ()


def declaration_json(node: ExecutionNode, instance: Instance | None) -> str:
    """The ``declaration`` column: what was declared about a node and its component."""
    declared = node.declaration
    return json.dumps(
        {
            "reads": declared.reads,
            "updates": declared.updates,
            "refreshes": declared.refreshes,
            "pure": declared.pure,
            "rows": declared.rows,
            "component": None if instance is None else instance.declared.key,
            "batch_states": () if instance is None else instance.batch_states,
            "shardable": instance is not None and instance.declared.shardable,
            **({"graph": True} if declared.graph else {}),
        },
        separators=(",", ":"),
    )


class Invocation(Frame, NonRecordingSpan):
    """One open call; after `end_ns` is set it is a finished row.

    Attributes:
        site: What it shares with other calls.
        buffer: Buffer of the thread that opened it.
        parent_id: Span id of the caller, 0 for a root.
        ordinal: Number of this call among the caller's calls of the node.
        count: Iterations of a loop; ``None`` otherwise.
        around: OpenTelemetry's context when it opened, while it is the current span without being attached
            (`rose_trace.current_span`); ``None`` otherwise.
        start_ns: Start [Unix ns].
        end_ns: End [Unix ns].
        mark: Event behind its device work, until the work is done.
        device_end_ns: End of its device work [Unix ns]; ``None`` without any.
        stream: Stream of that work.
        cpu_ns: CPU time of the process when it started, then between start and end [ns];
            ``None`` where unknown.
        threads: Intra-op threads; 0 where unknown.
        execution: How an executor ran it.
        wait_ns: Time between being ready and starting [ns].
        error: Exception type that left it; ``None`` where it returned.
        inputs: Tokens of the arguments.
        input_refs: ``ref, producer, offset`` of every argument leaf.
        outputs: Tokens of the result.
        output_refs: The same for the result.
        carry: Tokens of a loop's carry.
        versions: Writes to each declared state before this call.
    """

    __slots__ = (
        "around",
        "buffer",
        "carry",
        "context_token",
        "count",
        "cpu_ns",
        "device_end_ns",
        "end_ns",
        "error",
        "execution",
        "frame_token",
        "input_refs",
        "inputs",
        "mark",
        "ordinal",
        "output_refs",
        "outputs",
        "parent_id",
        "site",
        "start_ns",
        "stream",
        "threads",
        "versions",
        "wait_ns",
    )

    def __init__(
        self, site: Site, caller: Frame, buffer: ThreadBuffer, span_id: int, ordinal: int
    ) -> None:
        self.site = site
        self.path = site.path
        self.iteration = caller.iteration
        self.span_id = span_id
        self.parent_id = caller.span_id
        self.trace_id = caller.trace_id
        self.calls = {}
        self.group = caller.group
        self.groups = caller.groups
        self.rows = caller.rows
        self.buffer = buffer
        self.ordinal = ordinal
        self.inputs: Tokens = NO_VALUES
        self.input_refs: Refs = NO_VALUES
        self.outputs: Tokens = NO_VALUES
        self.output_refs: Refs = NO_VALUES
        self.versions: tuple[int, ...] = ()
        self.start_ns = self.end_ns = self.threads = 0
        self.cpu_ns: int | None = None
        self.execution: Execution | None = None
        self.wait_ns: int | None = None
        self.count: int | None = None
        self.around: Context | None = None
        self.error: str | None = None
        self.carry: Tokens | None = None
        self.frame_token: Token[Frame | None] | None = None
        self.context_token: Token[Context] | None = None
        self.mark: Mark | None = None
        self.device_end_ns: int | None = None
        self.stream: int | None = None

    def __getattr__(self, name: str) -> dict[str, int]:
        """The hot path leaves `calls` out until there is one.

        Raises:
            AttributeError: For anything else.
        """
        if name != "calls":
            raise AttributeError(f"{type(self).__name__}: no attribute {name}")
        self.calls = {}
        return self.calls

    def get_span_context(self) -> SpanContext:
        """OpenTelemetry's view of this invocation."""
        return SpanContext(self.trace_id, self.span_id, is_remote=False, trace_flags=SAMPLED)

    def inside(self, index: int) -> Frame:
        """The frame of iteration `index` of this loop."""
        return Frame(
            self.path,
            (*self.iteration, index),
            self.span_id,
            self.trace_id,
            {},
            self.group,
            self.groups,
            self.rows,
        )

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<Invocation {self.path} {self.span_id:016x}>"
