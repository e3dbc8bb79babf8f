from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, context, trace

import rose_trace as rose
from rose_trace import hooks, recorder
from rose_trace.frames import current
from rose_trace.invocation import Invocation
from rose_trace.native.load import VARIABLE
from rose_trace.parquet import read_spans
from tests.properties import examples
from tests.rose_trace.native_recording import native_recording, numbers_of
from tests.rose_trace.test_recorder import _outcome, trees

pytestmark = pytest.mark.usefixtures("built")

VARYING = {"run", "pid", "thread", "cpu_ns", "start_ns", "end_ns", "attributes"}


def _recorded(path: Path, program: Callable[[], Any], native: bool) -> list[dict[str, Any]]:
    """Rows with ids replaced by the order in which they appear, and without what differs from run to run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "1" if native else "0")
        patch.setattr(recorder, "WATCHED_CALLS", 0)
        with rose.record(path, activity="none") as recording:
            program()
        assert recording.info is not None
        assert recording.info.complete
    known: dict[Any, int] = {0: 0}

    def number(value: Any) -> int:
        return known.setdefault(value, len(known))

    rows = read_spans(path).to_pylist()
    for row in rows:
        for name in ("trace_id", "span_id", "parent_id"):
            row[name] = number(row[name])
        for ref in (*row["inputs"], *row["outputs"]):
            ref["ref"], ref["producer"] = number(ref["ref"]), number(ref["producer"])
    return [{k: v for k, v in row.items() if k not in VARYING} for row in rows]


@examples(60, 4)
@given(forest=st.lists(trees, min_size=6, max_size=12))
def test_a_program_leaves_the_same_rows(
    forest: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("rows")

    @rose.iteration
    def program() -> None:
        for tree in forest:
            _outcome(tree)

    in_python = _recorded(place / "python.parquet", program, native=False)
    assert _recorded(place / "native.parquet", program, native=True) == in_python


@rose.component
class Counter:
    @rose.node(updates="total")
    def add(self, x: Any, *, twice: bool = False) -> Any:
        return x

    @rose.node(reads="total")
    def look(self) -> None: ...

    @rose.node(updates="total")
    def fail(self, error: BaseException) -> None:
        raise error


@rose.node(pure=True)
def leaf(x: Any = None) -> Any:
    return x


@rose.node(pure=True)
def raises(error: BaseException) -> None:
    raise error


def test_methods_of_instances_states_and_their_versions(tmp_path: Path) -> None:
    with rose.program():
        one, other = Counter(), Counter()
    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            for counter in (one, other, one, other, one):
                assert counter.add(1, twice=True) == 1
            one.look()
            with pytest.raises(KeyError):
                one.fail(KeyError("x"))
            with pytest.raises(KeyError):
                one.fail(KeyError("y"))
            one.look()
            Counter.add(one, 3)

        outer()
        rows = [(r.site.node, r.ordinal, r.versions, r.error) for r in native.rows]
        assert rows[:-1] == [
            ("counter.add", 0, (0,), None),
            ("counter#1.add", 0, (0,), None),
            ("counter.add", 1, (1,), None),
            ("counter#1.add", 1, (1,), None),
            ("counter.add", 2, (2,), None),
            ("counter.look", 0, (3,), None),
            ("counter.fail", 0, (3,), "KeyError"),
            ("counter.fail", 1, (4,), "KeyError"),
            ("counter.look", 1, (5,), None),
            ("counter.add", 3, (5,), None),
        ]
        assert rows[-1][0] == "outer"
        assert [name for name in native.in_python if name != "outer"] == [
            "add",
            "add",
            "look",
            "fail",
        ]


def test_exceptions_pass_untouched(tmp_path: Path) -> None:
    class Special(Exception):
        pass

    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            leaf()
            for error in (Special("a"), Special("b"), KeyboardInterrupt(), SystemExit(3)):
                count = sys.getrefcount(error)
                cause = ValueError("cause")
                error.__cause__ = cause
                with pytest.raises(type(error)) as caught:
                    raises(error)
                assert caught.value is error
                assert error.__cause__ is cause
                assert traceback.extract_tb(error.__traceback__)[-1].name == "raises"
                assert current.get().site.node == "outer"  # type: ignore[union-attr]
                error.__traceback__ = None
                del caught
                gc.collect()
                assert sys.getrefcount(error) == count

        outer()
        assert [row.error for row in native.rows[1:5]] == [
            "Special",
            "Special",
            "KeyboardInterrupt",
            "SystemExit",
        ]
        assert native.in_python == ["outer", "leaf", "raises"]


def test_contexts_inside_and_after(tmp_path: Path) -> None:
    mine: ContextVar[int] = ContextVar("mine", default=0)

    @rose.node(pure=True)
    def looks() -> tuple[Any, Any, Any]:
        mine.set(mine.get() + 1)
        return trace.get_current_span(), current.get(), baggage.get_baggage("user")

    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            looks()
            span, frame, found = looks()
            assert span is frame is native.rows[-1]
            assert found is None
            assert trace.get_current_span() is current.get()
            token = context.attach(baggage.set_baggage("user", "rose"))
            around = context.get_current()
            span, frame, found = looks()
            assert span is frame is native.rows[-1]
            assert found == "rose"
            assert context.get_current() is around
            context.detach(token)
            assert mine.get() == 3

        outer()
        assert native.in_python == ["outer", "looks"]
    assert current.get() is None


def test_a_context_that_somebody_keeps_stays_what_it_is(tmp_path: Path) -> None:
    kept: list[Any] = []

    @rose.node(pure=True)
    def keeps(flag: bool) -> None:
        if flag:
            kept.append(context.get_current())

    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            keeps(False)
            for flag in (True, False, True, False):
                keeps(flag)

        outer()
        spans = [trace.get_current_span(found) for found in kept]
        assert spans == [native.rows[1], native.rows[3]]


@dataclasses.dataclass
class Bomb:
    """A value that cannot be walked while it is armed."""

    armed: type[BaseException] | None = None

    def __getattribute__(self, name: str) -> Any:
        if name == "armed" and (found := object.__getattribute__(self, name)) is not None:
            raise found("inside the recorder")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("where", ["arguments", "result"])
def test_a_failure_of_the_recorder_disables_it_once(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bomb = Bomb()

    @rose.node(pure=True)
    def hands_out(*_: Any) -> Any:
        return bomb

    with native_recording(tmp_path / "t.parquet", complete=False) as native:

        @rose.node
        def outer() -> str:
            hands_out()
            hands_out()
            bomb.armed = ZeroDivisionError
            for _ in range(2):
                assert (hands_out(bomb) if where == "arguments" else hands_out()) is bomb
                assert hooks.active is None
            return "done"

        assert outer() == "done"
        assert native.in_python == ["outer", "hands_out"]
        assert native.recorder.failure == "ZeroDivisionError: inside the recorder"
    assert sum("Recording stops here" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_no_failure_of_the_recorder_goes_on(fails: bool, tmp_path: Path) -> None:
    bomb = Bomb(KeyboardInterrupt)
    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            leaf()
            if fails:
                leaf(1)
            with pytest.raises(KeyboardInterrupt, match="inside the recorder"):
                leaf(bomb)

        outer()
        assert native.recorder.failure is None


def test_nothing_leaks(tmp_path: Path) -> None:
    a, error, marker = torch.zeros(4), KeyError("x"), object()
    blocks: list[int] = []
    with rose.program():
        counter = Counter()
    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            held = [a, error, marker, counter, leaf, {"k": a}]
            for _ in range(5):
                for _ in range(50):
                    native.rows.clear()
                    for _ in range(50):
                        leaf([a, a[1:], {"k": marker}])
                        counter.add(torch.zeros(2), twice=True)
                        counter.look()
                        leaf()
                    for _ in range(50):
                        with contextlib.suppress(KeyError):
                            raises(error)
                        error.__traceback__ = None
                native.rows.clear()
                gc.collect()
                blocks.append(sys.getallocatedblocks())
                counts.append([sys.getrefcount(item) for item in held])

        counts: list[list[int]] = []
        outer()
        assert counts[1:] == [counts[0]] * 4
        assert max(blocks[2:]) - min(blocks[2:]) < 2_000


def test_finished_invocations_are_freed_with_their_rows(tmp_path: Path) -> None:
    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            for _ in range(3):
                leaf()
            watched = [weakref.ref(row) for row in native.rows]
            native.rows.clear()
            assert [found() for found in watched] == [None] * 3

        outer()


def test_open_ones_are_still_found_at_the_end(tmp_path: Path) -> None:
    inside, done = threading.Event(), threading.Event()

    @rose.node(pure=True)
    def stays(long: bool) -> None:
        if long:
            inside.set()
            done.wait(30)

    @rose.node
    def outer() -> None:
        stays(False)
        stays(True)

    with native_recording(tmp_path / "t.parquet") as native:
        thread = threading.Thread(target=outer)
        thread.start()
        inside.wait(30)
        opened = [i for i in gc.get_objects() if type(i) is Invocation and not i.end_ns]
        assert sorted(found.path for found in opened) == ["outer", "outer/stays"]
        assert native.in_python == ["outer", "stays"]
        # Two are open, and the row of the first call is still in its thread's buffer.
        assert native.recorder.unfinished() == {"outer": 1, "outer/stays": 2}
        done.set()
        thread.join()


def test_threads_count_every_write_and_call_once(tmp_path: Path) -> None:
    with rose.program():
        counter = Counter()
    calls, threads = 400, 4
    switch = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-5)
        with native_recording(tmp_path / "t.parquet"):

            @rose.node
            def outer(index: int) -> None:
                for i in range(calls):
                    counter.add(torch.zeros(2), twice=bool(i % 2))
                    leaf([index])

            running = [threading.Thread(target=outer, args=(i,)) for i in range(threads)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
            outer(threads)
    finally:
        sys.setswitchinterval(switch)
    rows = read_spans(tmp_path / "t.parquet").to_pylist()
    assert len(rows) == (threads + 1) * (2 * calls + 1)
    assert len({row["span_id"] for row in rows}) == len(rows)
    last = max(row["states"][0]["version"] for row in rows if row["node"] == "counter.add")
    assert last == (threads + 1) * calls - 1
    for outer_row in [row for row in rows if row["node"] == "outer"]:
        below = [row for row in rows if row["parent_id"] == outer_row["span_id"]]
        assert sorted(r["ordinal"] for r in below if r["node"] == "leaf") == list(range(calls))
        assert {row["thread"] for row in below} == {outer_row["thread"]}


def test_a_forked_child_has_numbers_of_its_own(tmp_path: Path) -> None:
    with native_recording(tmp_path / "t.parquet", complete=False) as native:

        @rose.node
        def outer() -> list[tuple[int, ...]]:
            leaf()
            leaf()
            receiving, sending = os.pipe()
            child = os.fork()
            leaf(torch.zeros(2))
            row: Invocation = native.recorder.buffers.mine().rows[-1]
            if not child:
                text = " ".join(map(str, (row.span_id, *numbers_of(row.input_refs), row.ordinal)))
                os.write(sending, text.encode())
                os._exit(0)
            os.waitpid(child, 0)
            told = tuple(map(int, os.read(receiving, 1_000).split()))
            return [(row.span_id, *numbers_of(row.input_refs), row.ordinal), told]

        ours, theirs = outer()
        assert native.in_python == ["outer", "leaf"]
    assert ours[0] != theirs[0]
    assert ours[1] >> 32 != theirs[1] >> 32
    assert ours[2:] == theirs[2:] == (0, 0, 2)


def test_unusual_calls_are_recorded_in_python(tmp_path: Path) -> None:
    @rose.node(pure=True)
    def yields() -> Any:
        yield 1

    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            for _ in range(2):
                assert list(yields()) == [1]
            leaf()

        outer()
        leaf()  # a root
        assert native.in_python == ["outer", "yields", "yields", "leaf", "leaf"]


def test_how_an_executor_runs_a_call(tmp_path: Path) -> None:
    planned = recorder.Execution("sim0", 5, 3)
    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            leaf()
            token = recorder.execution.set(planned)
            leaf()
            leaf()
            recorder.execution.reset(token)
            leaf()

        outer()
        assert native.in_python == ["outer", "leaf"]
        threads = native.rows[0].threads
        assert [(row.execution, row.wait_ns, row.threads) for row in native.rows[:4]] == [
            (None, None, threads),
            (planned, 5, 3),
            (planned, None, 3),
            (None, None, threads),
        ]


def test_what_a_sampling_recorder_records_in_full_is_native(tmp_path: Path) -> None:
    with native_recording(tmp_path / "t.parquet", steps=2) as native:

        @rose.iteration
        def iteration() -> None:
            for _ in rose.iterations("steps", range(20)):
                leaf()

        iteration()
        assert [row.site.node for row in native.rows].count("leaf") == 4
        assert native.in_python.count("leaf") == 1


def test_an_event_behind_device_work(tmp_path: Path) -> None:
    asked: list[tuple[int, int, int]] = []
    with native_recording(tmp_path / "t.parquet") as native:
        clock = native.recorder._device

        def marks(start_ns: int, end_ns: int, device: int) -> None:
            asked.append((start_ns, end_ns, device))

        @rose.node
        def outer() -> None:
            leaf()
            clock.mark = marks
            clock.active = True
            leaf(torch.zeros(2))
            leaf()
            clock.active = False
            leaf()

        outer()
        assert native.in_python == ["outer", "leaf"]
        assert asked == [(row.start_ns, row.end_ns, -1) for row in native.rows[1:3]]
        assert [row.mark for row in native.rows[1:3]] == [None, None]
