"""Requests and answers as bytes.

Pickle's own way with dataclasses costs several times what the plain data in them costs, and it is most
of what a small invocation costs. So what is the same for every invocation of a node is said once and then
named by a number (`told`); the rest is sent as plain tuples, and records as their fields.
"""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import io
import operator
import pickle
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rose_exec import wire
from rose_exec.memory import Held
from rose_exec.workers.ambient import Ambient
from rose_exec.workers.job import Answer, Job
from rose_exec.workers.told import Learned, Told
from rose_trace.frames import Frame
from rose_trace.legality import AccessSet, RowRange
from rose_trace.pytree import Leaf, Structure, class_of
from rose_trace.records import Access

RECORDS = (
    *(Access, AccessSet, Ambient, Leaf, RowRange, Structure),
    *(wire.Blob, wire.Concat, wire.Object, wire.Rows),
)
BY_NAME = (types.FunctionType, types.NoneType)
"""Types of callables that are the same as long as they are the same object."""

Reduce = Callable[[Any], tuple[type[Any], tuple[Any, ...]]]

_usual = operator.attrgetter(
    *("path", "method", "resident", "arguments", "allowed", "threads", "function", "attribute"),
    *("ambient", "lane", "sms", "frame.path", "frame.group", "frame.groups", "frame.rows"),
)
"""What is the same for every invocation of a node, as a rule."""

_own = operator.attrgetter(
    *("wait_ns", "frame.iteration", "frame.span_id", "frame.trace_id", "frame.calls")
)
"""What is not."""


def dumps(message: object) -> bytes:
    """Pickle records by their fields; `pickle.loads` is its inverse."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=5)
    pickler.dispatch_table = _TABLE
    pickler.dump(message)
    return buffer.getvalue()


def node_of(job: Job) -> tuple[str, str, int]:
    """Whose invocation a job is: invocations of one node by one branch are alike."""
    return job.path, job.resident, job.frame.group


class RequestWriter:
    """The program's end, for one worker."""

    def __init__(self) -> None:
        self._told = Told(dumps)

    def dumps(self, message: object) -> bytes:
        """A request as bytes; `written` follows once they are sent."""
        self._told.begin()
        if not isinstance(message, Job):
            return dumps(message)
        lasting = type(message.function) in BY_NAME
        number, usual = self._told.number(node_of(message), _usual(message), lasting)
        return dumps((number, usual, _plain(message.leaves), _own(message)))

    def written(self) -> None:
        """The last request was sent."""
        self._told.written()


class RequestReader:
    """The worker's end."""

    def __init__(self) -> None:
        self._learned = Learned()

    def loads(self, data: bytes | memoryview) -> object:
        """The request; what is said in it is learned even where that cannot be unpickled."""
        message: Any = pickle.loads(data)
        if class_of(message) is not tuple:
            return message
        number, usual, leaves, (wait_ns, iteration, span_id, trace_id, calls) = message
        known = self._learned.value(number, usual)
        path, method, resident, arguments, allowed, threads, function, attribute = known[:8]
        ambient, lane, sms, enclosing, group, groups, rows = known[8:]
        return Job(
            path,
            method,
            resident,
            arguments,
            _wires(leaves),
            Frame(enclosing, iteration, span_id, trace_id, calls, group, groups, rows),
            allowed,
            threads,
            wait_ns,
            function,
            attribute,
            ambient,
            lane=lane,
            sms=sms,
        )


class AnswerWriter:
    """The worker's end, for results."""

    def __init__(self) -> None:
        self._told = Told(dumps)

    def dumps(self, node: object, answer: object, error: BaseException | None) -> bytes:
        """An answer as bytes; `written` follows once they are sent.

        Args:
            node: Whose invocation it answers.
            answer: The result; an `Answer` for a job.
            error: What went wrong instead.
        """
        self._told.begin()
        if not isinstance(answer, Answer):
            return dumps((answer, error))
        number, structure = self._told.number(node, answer.structure)
        return dumps((number, structure, _plain(answer.leaves)))

    def written(self) -> None:
        """The last answer was sent."""
        self._told.written()


class AnswerReader:
    """The program's end."""

    def __init__(self) -> None:
        self._learned = Learned()

    def loads(self, data: bytes | memoryview) -> tuple[Any, BaseException | None]:
        """The result, and what went wrong instead."""
        message = pickle.loads(data)
        if len(message) == 2:
            return message
        number, structure, leaves = message
        return Answer(self._learned.value(number, structure), _wires(leaves)), None


def _plain(leaves: Iterable[wire.Wire]) -> list[Any]:
    """Leaves as plain data, where they are that simple: no class has to be named."""
    plain: list[Any] = []
    for leaf in leaves:
        match leaf:
            case Held():
                plain.append(leaf.flat())
            case wire.Blob(data):
                plain.append(data)
            case wire.Object(value, None) if type(value) in wire.PLAIN:
                plain.append(value)
            case _:
                plain.append(leaf)
    return plain


def _wires(plain: Iterable[Any]) -> tuple[wire.Wire, ...]:
    """Inverse of `_plain`."""
    leaves: list[wire.Wire] = []
    for item in plain:
        kind = class_of(item)
        if kind is tuple:
            leaves.append(Held.of(*item))
        elif kind is bytes:
            leaves.append(wire.Blob(item))
        elif kind in wire.PLAIN:
            leaves.append(wire.Object(item))
        else:
            leaves.append(item)
    return tuple(leaves)


def _by_fields(cls: type[Any]) -> Reduce:
    names = [field.name for field in dataclasses.fields(cls)]
    values = operator.attrgetter(*names)
    if len(names) == 1:
        return lambda record: (cls, (values(record),))
    return lambda record: (cls, values(record))


_TABLE: Mapping[type[Any], Reduce] = collections.ChainMap(
    {cls: _by_fields(cls) for cls in RECORDS},
    copyreg.dispatch_table,  # pyright: ignore[reportArgumentType]
)
