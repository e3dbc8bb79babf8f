"""Requests and answers as bytes: what is said once stays what it was, whatever comes in between."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import pickle
import sys
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose_exec.memory import ChunkId, Held, Layout, Ready
from rose_exec.memory.arena import Place
from rose_exec.wire import Blob, Concat, Object, Rows
from rose_exec.workers import told
from rose_exec.workers.ambient import DEFAULT, Ambient
from rose_exec.workers.job import Answer, Job
from rose_exec.workers.message import AnswerReader, AnswerWriter, RequestReader, RequestWriter
from rose_exec.workers.process import ProcessWorker
from rose_trace import pytree
from rose_trace.frames import Frame
from rose_trace.legality import AccessSet, RowRange
from rose_trace.pytree import Structure
from rose_trace.records import Access, StateAccess
from tests.properties import examples
from tests.rose_exec import worker_requests as requests
from tests.rose_exec.worker_requests import ask, plain, workers

NAMES = st.sampled_from(["", "a", "b"])
FEW = st.integers(0, 2)
ROWS = st.none() | st.builds(RowRange, st.integers(0, 2), st.integers(2, 4))
STRUCTURES: st.SearchStrategy[Structure] = st.recursive(
    st.none() | st.integers(0, 1) | st.just("s"),
    lambda part: st.tuples(part) | st.lists(part, max_size=2) | st.dictionaries(NAMES, part),
    max_leaves=4,
).map(lambda value: pytree.flatten(value)[1])
LAYOUTS = st.builds(
    Layout,
    st.booleans(),
    st.sampled_from(["float32", "<f4"]),
    st.tuples(FEW),
    st.none() | st.tuples(FEW),
    st.booleans(),
    st.none() | st.tuples(FEW),
)


@st.composite
def held(draw: st.DrawFn) -> Held:
    chunk = ChunkId(draw(NAMES), draw(FEW))
    place = Place(chunk.number, 256 * draw(FEW), 256)
    ready = draw(st.none() | st.builds(Ready, FEW, st.none() | st.binary(max_size=3)))
    return Held(chunk, place, draw(FEW), draw(NAMES), draw(LAYOUTS), ready)


WIRES = st.recursive(
    st.builds(Object, st.none() | st.booleans() | FEW | st.floats(allow_nan=False) | NAMES)
    | st.builds(Blob, st.binary(max_size=3))
    | held(),
    lambda part: (
        st.builds(Concat, st.lists(part, min_size=1, max_size=3).map(tuple))
        | st.builds(Rows, part, FEW, FEW)
    ),
    max_leaves=3,
)
LEAVES = st.lists(WIRES, max_size=3).map(tuple)
SETS = st.builds(
    AccessSet,
    st.lists(st.builds(Access, NAMES, st.sampled_from(StateAccess), st.booleans()), max_size=2).map(
        tuple
    ),
    st.booleans(),
    ROWS,
)
FRAMES = st.builds(
    Frame,
    path=NAMES,
    iteration=st.lists(FEW, max_size=2).map(tuple),
    span_id=FEW,
    trace_id=FEW | st.just(1 << 127),
    calls=st.dictionaries(NAMES, FEW, max_size=2),
    group=st.integers(-1, 1),
    groups=st.integers(1, 2),
    rows=ROWS,
)
AMBIENTS = st.builds(
    Ambient, st.booleans(), st.booleans(), st.tuples(NAMES), NAMES, NAMES, st.booleans()
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "path": NAMES,
    "method": NAMES,
    "resident": NAMES,
    "arguments": STRUCTURES,
    "leaves": LEAVES,
    "frame": FRAMES,
    "allowed": SETS,
    "threads": st.none() | FEW,
    "wait_ns": FEW,
    "function": st.sampled_from([None, requests.ramp, requests.total, math.sqrt, operator.neg]),
    "attribute": NAMES,
    "ambient": st.none() | AMBIENTS,
    "lane": NAMES,
    "sms": FEW,
}
IN_THE_WORKER = {"stream", "tag"}
"""Fields that have no meaning for the other end."""

JOBS = st.fixed_dictionaries(FIELDS).map(lambda fields: Job(**fields))


@st.composite
def varied(draw: st.DrawFn) -> list[Job]:
    """Jobs of one or two nodes, one after the other, mostly alike."""
    nodes = draw(st.lists(JOBS, min_size=1, max_size=2))
    jobs: list[Job] = []
    for _ in range(draw(st.integers(3, 9))):
        node = draw(st.sampled_from(nodes))
        jobs.append(dataclasses.replace(node, leaves=draw(LEAVES), sms=draw(st.integers(0, 1))))
    return jobs


def comparable(value: Any) -> Any:
    """A message as data that compares by value, types included."""
    if isinstance(value, Held):
        return "held", *(comparable(getattr(value, f.name)) for f in dataclasses.fields(value))
    if dataclasses.is_dataclass(value):
        return type(value), *(comparable(getattr(value, f.name)) for f in dataclasses.fields(value))
    if isinstance(value, tuple | list):
        items = cast("list[Any]", value)
        return type(items), *map(comparable, items)
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return [(key, comparable(item)) for key, item in pairs.items()]
    return type(value), value


def test_every_field_of_a_job_is_drawn() -> None:
    assert FIELDS.keys() | IN_THE_WORKER == {field.name for field in dataclasses.fields(Job)}


@given(varied(), st.integers(1, 3), st.data())
@examples(500, 60)
def test_requests_come_out_as_they_went_in(jobs: list[Job], most: int, data: st.DataObject) -> None:
    """Also where some of them are never written, and where more is said than is kept."""
    writer, reader = RequestWriter(), RequestReader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(told, "MOST", most)
        for job in jobs:
            sent = writer.dumps(job)
            fate = data.draw(st.sampled_from(["written", "read", "lost"]))
            if fate == "lost":  # an interrupt before it was written
                continue
            if fate == "written":  # else: an interrupt after it was written
                writer.written()
            assert comparable(reader.loads(sent)) == comparable(job)


@given(st.lists(st.tuples(NAMES, STRUCTURES, LEAVES), max_size=12), st.integers(1, 3))
@examples(300, 30)
def test_answers_come_out_as_they_went_in(
    answers: list[tuple[str, Structure, tuple[Any, ...]]], most: int
) -> None:
    writer, reader = AnswerWriter(), AnswerReader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(told, "MOST", most)
        for node, structure, leaves in answers:
            answer = Answer(structure, leaves)
            found = reader.loads(writer.dumps(node, answer, None))
            writer.written()
            assert comparable(found) == comparable((answer, None))
            error = reader.loads(writer.dumps(node, None, ValueError(node)))[1]
            writer.written()
            assert repr(error) == repr(ValueError(node))


def a_job(**changed: Any) -> Job:
    job = requests.job(requests.total, 1)
    return dataclasses.replace(job, **changed)


def test_what_stays_the_same_is_sent_once() -> None:
    writer, reader = RequestWriter(), RequestReader()
    sizes: list[int] = []
    for k in range(3):
        sent = writer.dumps(a_job(wait_ns=k))
        writer.written()
        sizes.append(len(sent))
        assert comparable(reader.loads(sent)) == comparable(a_job(wait_ns=k))
    assert sizes[1] == sizes[2] < sizes[0] / 3


def test_what_may_have_been_written_is_said_again() -> None:
    writer, reader = RequestWriter(), RequestReader()
    for sms, noted in ((0, True), (1, False), (0, True), (1, True), (1, True)):
        found = reader.loads(writer.dumps(a_job(sms=sms)))
        if noted:  # else: an interrupt between the two
            writer.written()
        assert comparable(found) == comparable(a_job(sms=sms))


def test_a_callable_with_a_state_is_sent_as_it_is_then() -> None:
    writer, reader = RequestWriter(), RequestReader()
    state: list[int] = []
    function = functools.partial(operator.add, state)
    for k in range(3):
        state.append(k)
        found: Any = reader.loads(writer.dumps(a_job(function=function)))
        writer.written()
        assert found.function([]) == list(range(k + 1))
        plainly: Any = reader.loads(writer.dumps(a_job()))
        writer.written()
        assert plainly.function is requests.total


def test_what_cannot_be_pickled_is_not_said() -> None:
    writer, reader = RequestWriter(), RequestReader()
    for job in (a_job(), a_job(function=lambda: None), a_job(lane="b"), a_job()):
        if job.function is not requests.total:
            with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
                writer.dumps(job)
            writer.written()  # of a message without anything new
            continue
        found = reader.loads(writer.dumps(job))
        writer.written()
        assert comparable(found) == comparable(job)


def test_an_answer_that_cannot_be_pickled_says_nothing() -> None:
    writer, reader = AnswerWriter(), AnswerReader()
    structure = pytree.flatten((1,))[1]
    with pytest.raises(TypeError, match="pickle"):
        writer.dumps("f", Answer(structure, (Object(sys),)), None)
    reader.loads(writer.dumps("f", None, ValueError("instead")))
    writer.written()
    answer = Answer(structure, (Object(1),))
    assert comparable(reader.loads(writer.dumps("f", answer, None))[0]) == comparable(answer)


def missing() -> int:
    """Not there in a worker that cannot import this module."""
    return 1


def test_what_cannot_be_unpickled_fails_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = RequestWriter(), RequestReader()
    sent: list[bytes] = []
    for _ in range(2):
        sent.append(writer.dumps(a_job(function=missing)))
        writer.written()
    assert len(sent[1]) < len(sent[0])
    with monkeypatch.context() as patch:
        patch.delattr(sys.modules[__name__], "missing")
        for data in sent:
            with pytest.raises(AttributeError, match="missing"):
                reader.loads(data)
    found: Any = reader.loads(sent[1])
    assert found.function is missing


def test_other_requests_pass_as_they_are() -> None:
    writer, reader = RequestWriter(), RequestReader()
    for other in (AccessSet(opaque=True), DEFAULT, None):
        assert reader.loads(writer.dumps(other)) == other
        writer.written()


def test_a_worker_goes_on_after_a_request_that_cannot_be_sent() -> None:
    def unsendable(value: Any) -> Any:
        return value

    with workers(1) as (worker,):
        value = torch.ones(3)
        assert plain(ask(worker, requests.total, value)) == 3.0
        for _ in range(2):
            with pytest.raises(pickle.PicklingError, match="f: expected values that can be sent"):
                ask(worker, unsendable, value)
            assert plain(ask(worker, requests.total, value)) == 3.0
        assert torch.equal(plain(ask(worker, requests.negated, value)), -value)


def test_a_worker_started_anew_is_told_again() -> None:
    for _ in range(2):
        with workers(1) as (worker,):
            for _ in range(2):
                assert plain(ask(worker, requests.total, torch.ones(3))) == 3.0


def test_the_usual_request_of_a_worker_names_no_class(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    def kept(self: RequestWriter, message: object) -> bytes:
        sent.append(original(self, message))
        return sent[-1]

    original = RequestWriter.dumps
    monkeypatch.setattr(RequestWriter, "dumps", kept)
    worker = ProcessWorker("worker", frozenset())
    try:
        place = ask(worker, requests.ramp, 100_000).leaves[0]
        for _ in range(2):
            assert plain(ask(worker, requests.total, place)) == float(sum(range(100_000)))
    finally:
        worker.close()
    jobs = [data for data in sent if b"total" in data]
    assert len(jobs) == 1, "its function is named once"
    assert b"rose_exec" not in sent[2]
