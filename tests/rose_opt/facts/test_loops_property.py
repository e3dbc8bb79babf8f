"""Random programs: what an interpreter sees carried is never called free."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rose_opt.facts import build_facts
from tests.properties import examples
from tests.rose_opt.facts.factory import Recording, Value

MODES = ("reads", "updates", "refreshes")

Leaf = tuple[
    str, str, str, int, int
]  # name, access, state, period of running, distance of its input
Body = list[Any]  # leaves and loops (name, count, body), in order

LEAVES = st.tuples(
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(MODES),
    st.sampled_from(["x", "y"]),
    st.integers(1, 2),
    st.integers(0, 3),
)


def loops(body: st.SearchStrategy[Body]) -> st.SearchStrategy[Body]:
    inner = st.tuples(st.sampled_from(["p", "q"]), st.integers(1, 3), body)
    return st.lists(st.one_of(LEAVES, inner), min_size=1, max_size=3)


PROGRAMS = st.recursive(st.lists(LEAVES, min_size=1, max_size=3), loops, max_leaves=4)


def run(recording: Recording, body: Body, index: int, made: list[Value]) -> None:
    """Run a body; a leaf's name says its access, so that one path has one declaration."""
    for item in body:
        if len(item) == 3:
            name, count, inner = item
            for step in recording.loop(name, count):
                run(recording, inner, step, made)
        elif index % item[3] == 0:
            name, mode, state, _, distance = item
            inputs = made[-distance : len(made) - distance + 1] if 0 < distance <= len(made) else []
            declared: dict[str, Any] = {mode: state}
            made.append(recording.node(f"s.{name}_{mode}_{state}", *inputs, **declared))


def carried(recording: Recording) -> set[str]:
    """Loops over which a recorded invocation inherits a state or takes a value."""
    by_id = {row["span_id"]: row for row in recording.rows}
    result: set[str] = set()
    writers: dict[str, dict[str, Any]] = {}

    def cells(row: dict[str, Any]) -> list[tuple[str, int, int]]:
        """Path, invocation and iteration of every loop around an invocation, outermost first."""
        found: list[tuple[str, int, int]] = []
        indices = list(row["iteration"])
        while row["parent_id"]:
            row = by_id[row["parent_id"]]
            invocation = 0 if row["kind"] == "iteration" else row["span_id"]
            found.append((row["path"], invocation, indices.pop()))
        return found[::-1]

    def inherits(reader: dict[str, Any], writer: dict[str, Any]) -> None:
        for (path, call, to), (_, other, origin) in zip(cells(reader), cells(writer), strict=False):
            if call != other:
                return
            if to != origin:
                result.add(path)
                return

    for row in recording.rows:
        if row["kind"] != "exec":
            continue
        for value in row["inputs"]:
            inherits(row, by_id[value["producer"]])
        declared = json.loads(row["declaration"])
        for state in declared["reads"] + declared["updates"]:
            if state in writers:
                inherits(row, writers[state])
        for state in declared["updates"] + declared["refreshes"]:
            writers[state] = row
    return result


@examples(25, 10)
@given(PROGRAMS, st.integers(1, 2))
def test_a_free_loop_carries_nothing(program: Body, iterations: int):
    recording = Recording()
    made: list[Value] = []
    for index in range(iterations):
        with recording.iteration():
            recording.node("start", pure=True)
            run(recording, program, index, made)
    with tempfile.TemporaryDirectory() as folder:
        facts = build_facts(recording.write(Path(folder) / "trace.parquet"))
    dependent = {path for path, loop in facts.loops.items() if not loop.free}
    assert carried(recording) <= dependent
    for edge in facts.graph.edges:
        assert edge.distance == 0 or edge.loop in dependent
