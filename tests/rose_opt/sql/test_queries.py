"""Every query of the page gives what plain Python computes from the rows of the trace."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rose_opt.sql import Session, queries
from tests.rose_opt.sql.answers import ANSWERS, Answers
from tests.rose_opt.sql.traces import chosen, recorded

ROUNDED = 0.51e-2  # answers are rounded to two digits or more
ONE = [name for name, query in queries().items() if not query.schemas]
Ask = Callable[..., list[tuple[Any, ...]]]
TWO = [name for name, query in queries().items() if query.schemas]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answers]:
    folder = tmp_path_factory.mktemp("traces")
    paths = {
        "recorded": recorded(folder / "recorded.parquet"),
        "recorded again": recorded(folder / "again.parquet", steps=4),
        "chosen": chosen(folder / "chosen.parquet"),
        "chosen slower": chosen(folder / "slower.parquet", slow=True),
    }
    return {name: Answers(path) for name, path in paths.items()}


@pytest.fixture(scope="module")
def ask(traces: dict[str, Answers]) -> Iterator[Ask]:
    """Rows of a query over traces, by schema; all queries of the same traces share a session."""
    with contextlib.ExitStack() as open_sessions:
        sessions: dict[tuple[str, ...], Session] = {}

        def rows(query: str, **schemas: str) -> list[tuple[Any, ...]]:
            key = tuple(schemas.values())
            if key not in sessions:
                paths = {schema: traces[name].path for schema, name in schemas.items()}
                sessions[key] = open_sessions.enter_context(Session(paths))
            return [row for batch in sessions[key].run(query).batches for row in batch]

        yield rows


def same(got: Sequence[Any], expected: Sequence[Any]) -> bool:
    for mine, other in zip(got, expected, strict=True):
        if isinstance(mine, float) or isinstance(other, float):
            if mine is None or other is None or not math.isclose(mine, other, abs_tol=ROUNDED):
                return False
        elif mine != other:
            return False
    return True


def check(got: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    assert len(got) == len(expected)
    for mine, other in zip(got, expected, strict=True):
        assert same(mine, tuple(_whole(m, o) for m, o in zip(mine, other, strict=True))), (
            mine,
            other,
        )


def _whole(mine: Any, other: Any) -> Any:
    """A float that the query gives in whole nanoseconds."""
    return round(other) if isinstance(mine, int) and isinstance(other, float) else other


def test_every_query_of_the_page_has_an_answer_here() -> None:
    assert set(ANSWERS) == set(queries())


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("trace", ["recorded", "chosen"])
def test_query_of_one_trace(traces: dict[str, Answers], ask: Ask, trace: str, name: str) -> None:
    expected = ANSWERS[name](traces[trace])
    got = ask(queries()[name].sql, trace=trace)
    check(got, expected)
    assert got or (trace == "recorded" and name in {"first-stall", "cpu-bound-nodes"})


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize(
    ("before", "after"), [("recorded", "recorded again"), ("chosen", "chosen slower")]
)
def test_query_of_two_traces(
    traces: dict[str, Answers], ask: Ask, before: str, after: str, name: str
) -> None:
    expected = ANSWERS[name](traces[before], traces[after])
    got = ask(queries()[name].sql, before=before, after=after)
    check(got, expected)
    assert got


@pytest.mark.parametrize("trace", ["recorded", "chosen"])
def test_critical_path_covers_each_iteration_up_to_its_last_end(
    traces: dict[str, Answers], ask: Ask, trace: str
) -> None:
    answers = traces[trace]
    rows = ask(
        "SELECT iteration_id, sum(gap_ns + on_path_ns)::BIGINT, min(gap_ns), min(on_path_ns), "
        "list(position ORDER BY position) FROM critical_path GROUP BY ALL",
        trace=trace,
    )
    got = {row[0]: row[1:] for row in rows}
    assert set(got) == {root["span_id"] for root in answers.roots}
    for root in answers.roots:
        mine = [r for r in answers.leaves if answers.root(r) is root]
        total, gap, on_path, positions = got[root["span_id"]]
        assert total == max(r["until"] for r in mine) - root["start_ns"]
        assert gap >= 0
        assert on_path >= 0
        assert positions == list(range(len(positions)))


def test_work_beside_the_critical_path_is_not_on_it(ask: Ask) -> None:
    """The last iteration of the trace runs an inference beside a longer simulation step."""
    got = ask(
        "SELECT path, reason, gap_ns, on_path_ns FROM critical_path "
        "WHERE iteration = (SELECT max(iteration) FROM iterations) ORDER BY position",
        trace="chosen",
    )
    assert got == [
        ("iteration/loader.read", "start", 0, 300),
        ("iteration/sim.step", "data", 0, 500),
        ("iteration/policy.value", "data", 200, 100),
    ]
