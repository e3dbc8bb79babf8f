"""Requests and answers as bytes.

The records in them are pickled by their fields: the way that dataclasses with slots are pickled by
themselves costs several times as much, and it is most of what a small invocation costs.
"""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import io
import operator
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from rose_exec import wire
from rose_exec.workers.ambient import Ambient
from rose_exec.workers.job import Answer, Job
from rose_trace.frames import Frame
from rose_trace.legality import AccessSet, RowRange
from rose_trace.pytree import Leaf, Structure
from rose_trace.records import Access

RECORDS = (
    *(Access, AccessSet, Ambient, Answer, Frame, Job, Leaf, RowRange, Structure),
    *(wire.Blob, wire.Concat, wire.Object, wire.Rows),
)

Reduce = Callable[[Any], tuple[type[Any], tuple[Any, ...]]]


def dumps(message: object) -> bytes:
    """Pickle a request or an answer; `pickle.loads` is its inverse."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=5)
    pickler.dispatch_table = _TABLE
    pickler.dump(message)
    return buffer.getvalue()


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
