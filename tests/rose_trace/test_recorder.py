from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rose_trace as rose
from rose_trace import hooks, recorder
from rose_trace.frames import Frame, current, entered
from rose_trace.legality import RowRange
from rose_trace.recorder import Execution, execution
from tests.properties import examples

Rows = list[dict[str, Any]]
Recorded = Callable[[Callable[[], Any]], Rows]


def _program() -> Callable[[], Any]:
    with rose.program():

        @rose.component
        class Policy:
            @rose.node(reads="weights", rows=True)
            def encode(self, obs: float) -> float:
                return obs + 1

            @rose.node(rows=True)
            def act(self, obs: float, t: int) -> float:
                return self.encode(obs) + self.encode(obs)

            @rose.node(updates="weights")
            def learn(self) -> None: ...

        policy, other = Policy(), Policy()

    @rose.loop
    def interact(obs: float, t: int) -> tuple[float, float]:
        action = policy.act(obs, t)
        return obs, action

    @rose.loop
    def rollout(_: None, epoch: int) -> tuple[None, list[float]]:
        return None, interact(float(epoch), count=2)[1]

    @rose.iteration(name="step")
    def iteration() -> list[list[float]]:
        _, epochs = rollout(None, count=2)
        for _ in rose.iterations("learn", [1, 2]):
            policy.learn()
        other.encode(0.0)
        return epochs

    return iteration


def test_paths_indices_ordinals_and_counts_of_a_nested_program(recorded: Recorded) -> None:
    iteration = _program()
    results: list[Any] = []
    rows = recorded(lambda: results.extend([iteration(), iteration()]))
    assert results == [[[2.0, 2.0], [4.0, 4.0]]] * 2
    seen = [
        (row["path"], tuple(row["iteration"]), row["ordinal"], row["kind"], row["count"])
        for row in rows
    ]
    act, encode = (
        "step/rollout/interact/policy.act",
        "step/rollout/interact/policy.act/policy.encode",
    )
    expected: list[Any] = []
    for i in (0, 1):
        expected += [("step", (i,), i, "iteration", None), ("step/rollout", (i,), 0, "loop", 2)]
        for epoch in (0, 1):
            expected.append(("step/rollout/interact", (i, epoch), 0, "loop", 2))
            for t in (0, 1):
                place = (i, epoch, t)
                expected.append((act, place, 0, "exec", None))
                expected += [(encode, place, 0, "exec", None), (encode, place, 1, "exec", None)]
        expected += [("step/learn", (i,), 0, "loop", 2)]
        expected += [("step/learn/policy.learn", (i, k), 0, "exec", None) for k in (0, 1)]
        expected += [("step/policy#1.encode", (i,), 0, "exec", None)]
    assert seen == expected


def test_parents_times_and_ids(recorded: Recorded) -> None:
    iteration = _program()
    rows = recorded(iteration)
    by_id = {row["span_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    assert len({row["trace_id"] for row in rows}) == 1
    for row in rows:
        assert row["start_ns"] <= row["end_ns"]
        if row["parent_id"]:
            parent = by_id[row["parent_id"]]
            assert row["path"] == f"{parent['path']}/{row['node']}"
            assert parent["start_ns"] <= row["start_ns"]
            assert row["end_ns"] <= parent["end_ns"]
    assert [row["path"] for row in rows if not row["parent_id"]] == ["step"]


def test_declarations_states_and_versions(recorded: Recorded) -> None:
    iteration = _program()
    rows = recorded(lambda: (iteration(), iteration()))
    encode = [row for row in rows if row["node"] == "policy.encode"]
    assert json.loads(encode[0]["declaration"]) == {
        "reads": ["weights"],
        "updates": [],
        "refreshes": [],
        "pure": False,
        "rows": True,
        "component": f"{__name__}:_program.<locals>.Policy",
        "batch_states": [],
        "shardable": False,
    }
    assert [row["states"] for row in encode[:1]] == [
        [{"state": "policy.weights", "access": "read", "version": 0}]
    ]
    assert {row["states"][0]["version"] for row in encode[8:]} == {2}
    learn = [row["states"] for row in rows if row["node"] == "policy.learn"]
    assert [(s[0]["access"], s[0]["version"]) for s in learn] == [("update", k) for k in range(4)]
    other = [row for row in rows if row["node"] == "policy#1.encode"]
    assert other[0]["states"] == [{"state": "policy#1.weights", "access": "read", "version": 0}]
    glue = next(row for row in rows if row["path"] == "step/learn")
    assert dict(glue["attributes"]) == {"rewritable": "false"}


def test_structure_of_results_and_of_a_loops_carry(recorded: Recorded) -> None:
    @rose.node(pure=True)
    def make() -> dict[str, Any]:
        return {"a": torch.zeros(2, 3), "b": (1, None)}

    @rose.loop
    def walk(carry: torch.Tensor, _: int) -> tuple[torch.Tensor, int]:
        return carry + 1, 5

    rows = recorded(lambda: (make(), walk(torch.zeros(4), count=2)))
    assert json.loads(rows[0]["structure"]) == [
        "dict",
        ["a", "b"],
        "",
        [
            ["leaf", "tensor", "float32", [2, 3]],
            ["tuple", [], "", [["leaf", "int", "", None], ["none", [], "", []]]],
        ],
    ]
    assert json.loads(rows[1]["structure"]) == ["leaf", "tensor", "float32", [4]]
    assert [(r["slot"], r["dtype"]) for r in rows[1]["outputs"]] == [
        ("0", "float32"),
        ("1.0", "int"),
        ("1.1", "int"),
    ]


def test_an_exception_passes_untouched_and_everything_is_closed(recorded: Recorded) -> None:
    error = RuntimeError("mine")

    @rose.node
    def fails() -> None:
        raise error

    @rose.loop
    def walk(carry: int, index: int) -> tuple[int, None]:
        if index == 1:
            fails()
        return carry, None

    @rose.iteration
    def iteration() -> None:
        for _ in rose.iterations("glue", range(3)):
            walk(0, count=3)

    def program() -> None:
        with pytest.raises(RuntimeError) as caught:
            iteration()
        assert caught.value is error
        assert current.get() is None

    rows = recorded(program)
    assert [(r["node"], r["status"], r["error"], r["count"]) for r in rows] == [
        ("iteration", "error", "RuntimeError", None),
        ("glue", "ok", None, 1),
        ("walk", "error", "RuntimeError", 1),
        ("fails", "error", "RuntimeError", None),
    ]
    assert rows[0]["structure"] is None


def test_leaving_a_traced_loop_early(recorded: Recorded) -> None:
    @rose.node(pure=True)
    def work() -> None: ...

    @rose.node
    def outer() -> int:
        for x in rose.iterations("glue", range(10)):
            work()
            if x == 2:
                return x
        return -1

    def program() -> None:
        assert outer() == 2
        work()

    rows = recorded(program)
    assert [(r["path"], r["count"], r["iteration"]) for r in rows] == [
        ("outer", None, []),
        ("outer/glue", 3, []),
        ("outer/glue/work", None, [0]),
        ("outer/glue/work", None, [1]),
        ("outer/glue/work", None, [2]),
        ("work", None, []),
    ]


def test_a_loop_over_items_sees_each_item_once(recorded: Recorded) -> None:
    pulled: list[int] = []

    def items() -> Iterator[int]:
        for i in range(3):
            pulled.append(i)
            yield i

    @rose.loop
    def walk(carry: int, item: int) -> tuple[int, int]:
        assert pulled[-1] == item
        return carry + item, item

    result: list[Any] = []
    rows = recorded(lambda: result.append(walk(0, over=items())))
    assert result == [(3, [0, 1, 2])]
    assert rows[0]["count"] == 3


def test_threads_record_into_their_own_buffers(recorded: Recorded) -> None:
    @rose.node(pure=True)
    def work(x: int) -> int:
        return x

    def run() -> None:
        for i in range(3000):
            work(i)

    def program() -> None:
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    rows = recorded(program)
    assert len(rows) == 12_000
    assert len({row["span_id"] for row in rows}) == 12_000
    assert len({row["thread"] for row in rows}) == 4
    starts = [row["start_ns"] for row in rows]
    assert starts == sorted(starts)


def test_a_frame_prepared_by_an_executor_places_the_invocation(recorded: Recorded) -> None:
    @rose.node(pure=True)
    def child() -> None: ...

    @rose.node
    def work() -> object:
        child()
        return rose.current_rows()

    definition: Any = work.__rose_node__  # type: ignore[attr-defined]

    def program() -> None:
        recorder = hooks.recorder()
        assert recorder is not None
        frame = Frame("it/loop", (3, 1), 77, 99, {"work": 2}, 1, 2, RowRange(4, 8))
        token = execution.set(Execution("sim0", 1_234, 1))
        with entered(frame):
            assert recorder.invoke(definition, (), {}) == RowRange(4, 8)
        execution.reset(token)

    first, second = recorded(program)
    assert first["path"] == "it/loop/work"
    assert (first["iteration"], first["ordinal"], first["parent_id"]) == ([3, 1], 2, 77)
    assert first["trace_id"] == f"{99:032x}"
    assert (first["group"], first["groups"], first["row_start"], first["row_stop"]) == (1, 2, 4, 8)
    assert (first["worker"], first["wait_ns"]) == ("sim0", 1_234)
    assert (first["threads"], second["threads"]) == (1, 1)
    assert (second["worker"], second["wait_ns"], second["group"]) == ("sim0", None, 1)
    assert second["parent_id"] == first["span_id"]


def test_a_failing_hook_disables_itself_once_and_marks_the_trace(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import rose_trace.recorder as module

    @rose.node(pure=True)
    def work(x: int) -> int:
        return x + 1

    @rose.node
    def outer() -> int:
        return work(work(0))

    def broken(*_: object) -> Any:
        raise ZeroDivisionError("inside the recorder")

    with rose.record(tmp_path / "t.parquet", activity="none") as recording:
        assert outer() == 2
        monkeypatch.setattr(module, "describe_result", broken)
        assert outer() == 2
        assert outer() == 2
        assert hooks.active is None
        assert current.get() is None
    assert recording.info is not None
    assert not recording.info.complete
    assert recording.info.rows["spans"] == 3
    assert "ZeroDivisionError: inside the recorder" in recording.info.reasons[0]
    assert sum("Recording stops here" in record.message for record in caplog.records) == 1


def test_a_wrong_declaration_does_not_stop_the_program(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @rose.node(reads="weights")
    def free() -> int:
        return 3

    with rose.record(tmp_path / "t.parquet", activity="none"):
        assert free() == 3
    assert "expected an absolute name outside a component" in caplog.text


def test_cpu_time_of_busy_and_of_waiting_invocations(recorded: Recorded) -> None:
    ready = threading.Event()

    @rose.node(pure=True)
    def busy() -> None:
        until = time.process_time_ns() + 50_000_000
        while time.process_time_ns() < until:
            pass

    @rose.node(pure=True)
    def waits() -> None:
        ready.wait(0.3)

    rows = recorded(lambda: (busy(), waits()))
    assert rows[0]["cpu_ns"] >= 50_000_000
    assert rows[1]["cpu_ns"] < 0.5 * (rows[1]["end_ns"] - rows[1]["start_ns"])
    assert rows[0]["threads"] == torch.get_num_threads()


def test_cpu_time_of_a_call_that_was_brief_until_now_is_unknown_once(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(recorder, "_now", lambda: now)
    monkeypatch.setattr(recorder, "_cpu_time", lambda: 7)  # nothing but waiting

    @rose.node(pure=True)
    def waits(ns: int) -> None:
        nonlocal now
        now += ns

    def program() -> None:
        for ns in (1_000, 2_000, 10_000_000, 20_000_000, 3_000, 30_000_000):
            waits(ns)

    rows = recorded(program)
    assert rows[3]["end_ns"] - rows[3]["start_ns"] == 20_000_000
    # Known again from then on: a node that once was not brief is on probation.
    assert [row["cpu_ns"] for row in rows] == [1_000, 2_000, None, 0, 3_000, 0]


# A random program: a tree of nodes and loops over a few states, some of which fail.

Tree = tuple[Any, ...]
leaves = st.tuples(st.just("leaf"), st.integers(0, 3), st.booleans())
trees: st.SearchStrategy[Tree] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("node"), st.lists(inner, max_size=3)),
        st.tuples(st.just("loop"), st.integers(0, 3), st.lists(inner, max_size=2)),
        st.tuples(st.just("glue"), st.integers(0, 3), st.lists(inner, max_size=2)),
        st.tuples(st.just("try"), st.lists(inner, max_size=2)),
        st.tuples(st.just("generator"), st.lists(inner, max_size=3)),
    ),
    max_leaves=12,
)


class _Failed(Exception):
    pass


@rose.component(name="store")
class _Store:
    def __init__(self) -> None:
        self.values = [torch.zeros(2) for _ in range(4)]
        self.log: list[float] = []

    @rose.node(updates=("a", "b"))
    def touch(self, index: int, fails: bool) -> torch.Tensor:
        self.values[index] = self.values[index] * 1.5 + index + 1
        self.log.append(float(self.values[index].sum()))
        if fails and len(self.log) % 3 == 0:
            raise _Failed(index)
        return self.values[index]


@rose.node
def _node(store: _Store, children: list[Tree]) -> list[Any]:
    return [_run(store, child) for child in children]


@rose.node
def _generator(store: _Store, children: list[Tree]) -> Iterator[Any]:
    for child in children:
        yield _run(store, child)


def _run(store: _Store, tree: Tree) -> Any:
    match tree:
        case ("leaf", index, fails):
            return store.touch(index, fails)
        case ("node", children):
            return _node(store, children)
        case ("generator", children):
            return list(_generator(store, children))
        case ("loop", count, children):

            @rose.loop
            def body(carry: float, index: int) -> tuple[float, list[Any]]:
                made = [_run(store, child) for child in children]
                return carry + index + len(made), made

            return body(0.0, count=count)
        case ("glue", count, children):
            return [
                [_run(store, c) for c in children] for _ in rose.iterations("glue", range(count))
            ]
        case ("try", children):
            try:
                return [_run(store, child) for child in children]
            except _Failed as error:
                return f"failed {error}"
        case _:
            raise AssertionError(tree)


def _outcome(tree: Tree) -> str:
    with rose.program():
        store = _Store()
    try:
        result = _run(store, tree)
    except _Failed as error:
        result = f"left by {error}"
    return repr((result, store.log, [str(v) for v in store.values]))


@examples(25, 25)
@given(tree=trees)
def test_a_traced_program_does_what_the_untraced_one_does(
    tree: Tree, tmp_path_factory: pytest.TempPathFactory
) -> None:
    native = _outcome(tree)
    path = tmp_path_factory.mktemp("traced") / "t.parquet"
    with rose.record(path, activity="none") as recording:
        traced = _outcome(tree)
    assert traced == native
    assert current.get() is None
    assert recording.info is not None
    assert recording.info.complete
