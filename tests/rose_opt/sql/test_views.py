"""Views are described as they are, show no more than their source resolves, and cannot change anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rose_opt.facts import FactsError, FactsSettings, build_facts
from rose_opt.sql import QueryError, Session, queries, views
from tests.rose_opt.facts.factory import Recording, Value
from tests.rose_opt.sql.traces import chosen, gpm, sampled, with_states

PAGE = Path(__file__).parents[3] / "docs" / "sql.md"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chosen(tmp_path_factory.mktemp("trace") / "trace.parquet")


@pytest.fixture(scope="module")
def session(trace: Path) -> Any:
    with Session({"trace": trace}) as opened:
        yield opened


def answer(session: Session, query: str) -> list[tuple[Any, ...]]:
    return [row for batch in session.run(query).batches for row in batch]


@pytest.mark.parametrize("name", views())
def test_every_column_of_a_view_is_described(session: Session, name: str) -> None:
    view = views()[name]
    assert session.run(f"FROM {name} LIMIT 1").names == tuple(c.name for c in view.columns)
    assert view.meaning.endswith((".", ":"))
    assert all(column.meaning for column in view.columns)


@pytest.mark.parametrize("name", views())
def test_columns_named_by_a_unit_say_it(name: str) -> None:
    for column in views()[name].columns:
        for suffix in ("_ns", "bytes"):
            if column.name.endswith(suffix):
                assert suffix.strip("_") in column.unit, column
        if column.name in {"activity", "share", "coverage"}:
            assert column.unit == "fraction"


@pytest.mark.parametrize("name", queries())
def test_every_query_asks_a_question(name: str) -> None:
    query = queries()[name]
    assert query.question.endswith("?")
    assert query.note.endswith(".")
    assert "ORDER BY" in query.sql


def test_views_of_a_trace_without_samples_or_probes(tmp_path: Path) -> None:
    recording = Recording()
    with recording.iteration():
        recording.node("act", pure=True)
    with Session({"trace": recording.write(tmp_path / "trace.parquet")}) as session:
        for name in ("activity", "probes", "windows", "gaps", "processes"):
            assert answer(session, f"FROM {name}") == []
        assert answer(session, "SELECT activity, source FROM invocations") == [(None, None)]
        assert answer(session, "SELECT covered_ns, low_ns, activity FROM iterations") == [
            (0, 0, None)
        ]


def test_an_activity_is_not_shown_finer_than_its_source(tmp_path: Path) -> None:
    with Session({"trace": gpm(tmp_path / "trace.parquet")}) as session:
        shown = answer(
            session,
            "SELECT DISTINCT node, activity IS NULL, source, resolution_ns FROM invocations",
        )
        assert sorted(shown) == [
            ("long", False, "gpm", 100_000_000),
            ("short", True, "gpm", 100_000_000),
        ]
        marked = answer(session, "SELECT path, resolved, estimate FROM windows ORDER BY path")
        assert marked == [("iteration/long", True, False), ("iteration/short", False, True)]
        assert answer(session, "SELECT DISTINCT resolution_ns, chosen FROM activity") == [
            (100_000_000, True)
        ]
        assert answer(session, "SELECT min(duration_ns) >= 100_000_000 FROM gaps") == [(True,)]


def test_a_short_low_run_is_no_gap(tmp_path: Path) -> None:
    recording = Recording()
    with recording.iteration():
        recording.node("act", ns=400_000_000, pure=True)
    for start in range(0, 400_000_000, 20_000_000):
        recording.sample(start, start + 20_000_000, 0.2 if start == 40_000_000 else 0.9, "gpm")
    with Session({"trace": recording.write(tmp_path / "trace.parquet")}) as session:
        assert answer(session, "FROM gaps") == []


def test_estimates_are_marked(tmp_path: Path) -> None:
    recording = Recording()
    with recording.iteration():
        recording.node("act", ns=100, pure=True)
    recording.sample(0, 100, 0.3, "kernels")
    with Session({"trace": recording.write(tmp_path / "trace.parquet")}) as session:
        for view in ("activity", "invocations", "iterations", "windows", "gaps"):
            assert answer(session, f"SELECT DISTINCT estimate FROM {view}") == [(True,)], view


def test_windows_are_those_of_the_windows_command(session: Session, trace: Path) -> None:
    facts = build_facts(trace, FactsSettings())
    got = answer(
        session, "SELECT path, rank, tier, refused, total_ns, activity, resolved FROM windows"
    )
    expected = [
        (w.target, w.rank, w.tier, w.refused, w.total_ns, w.sm_activity, w.resolved)
        for w in facts.windows
    ]
    assert sorted(got, key=str) == sorted(expected, key=str)


def test_writes_to_other_rows_are_no_dependency(tmp_path: Path) -> None:
    recording = Recording()
    with recording.iteration():
        for version in range(2):
            for start in (0, 2):
                recording.node(
                    "sim.step",
                    columns={
                        "row_start": start,
                        "row_stop": start + 2,
                        "states": [
                            {"state": "sim.episode", "access": "update", "version": version}
                        ],
                    },
                )
    with Session({"trace": recording.write(tmp_path / "trace.parquet")}) as session:
        got = answer(
            session,
            "SELECT c.seq, p.seq, d.kind FROM dependencies d JOIN invocations c USING (span_id) "
            "JOIN invocations p ON p.span_id = d.depends_on ORDER BY 1, 2",
        )
    assert got == [(3, 1, "raw"), (4, 2, "raw")]


def test_a_read_that_must_end_before_a_write_is_a_dependency(tmp_path: Path) -> None:
    recording = Recording()
    with recording.iteration():
        recording.node("policy.act", reads="weights", ns=300, columns={"thread": 2})
        recording.now_ns -= 100
        recording.node("policy.load", refreshes="weights", ns=300)
    with Session({"trace": with_states(recording).write(tmp_path / "trace.parquet")}) as session:
        assert answer(session, "SELECT consumer, producer, kind, state FROM edges") == [
            ("iteration/policy.load", "iteration/policy.act", "war", "policy.weights")
        ]


def test_lone_spans_can_be_queried_without_a_finished_iteration(tmp_path: Path) -> None:
    recording = Recording(reasons=["killed"])
    recording.node("act", Value(5, 77), pure=True)
    with Session({"trace": recording.write(tmp_path / "trace.parquet")}) as session:
        assert answer(session, "SELECT path FROM spans") == [("act",)]
        assert answer(session, "SELECT producer FROM refs WHERE direction = 'input'") == [(77,)]
        assert session.incomplete == {"trace": "killed"}
        assert answer(session, "SELECT complete, reasons FROM recording") == [(False, ["killed"])]
        with pytest.raises(FactsError, match=r"expected a finished call of a rose\.iteration"):
            session.run("FROM nodes")


def test_invocations_without_their_caller_are_left_out(tmp_path: Path) -> None:
    recording = Recording(reasons=["killed"])
    for _ in range(2):
        with recording.iteration(), recording.composite("outer"):
            recording.node("act", pure=True)
    del recording.rows[4]  # the second call of outer
    with Session({"trace": recording.write(tmp_path / "trace.parquet")}) as session:
        assert answer(session, "SELECT count(*) FROM spans WHERE node = 'act'") == [(2,)]
        assert answer(session, "SELECT count(*) FROM invocations WHERE node = 'act'") == [(1,)]


REFUSED = {
    "COPY spans TO 'out.csv'": "got COPY",
    "ATTACH 'out.db'": "got ATTACH",
    "CREATE TABLE mine AS FROM spans": "got CREATE",
    "DROP VIEW spans": "got DROP",
    "INSTALL spatial": "got LOAD",
    "SET threads = 1": "got SET",
    "EXPLAIN ANALYZE COPY spans TO 'out.csv'": "got EXPLAIN",
    "PRAGMA database_list": "got PRAGMA",
    "SELECT 1; COPY spans TO 'out.csv'": "expected one statement, got 2",
    "": "expected a SELECT statement, got nothing",
    "-- nothing": "expected a SELECT statement, got nothing",
    "FROM read_csv('/etc/hosts')": "file system operations are disabled",
    "FROM glob('/*')": "file system operations are disabled",
    "FROM read_text('/etc/hosts')": "file system operations are disabled",
    "FROM '/etc/hosts'": "expected a view",
}


@pytest.mark.parametrize("query", REFUSED)
def test_what_does_more_than_read_is_refused(
    session: Session, trace: Path, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)
    before = {path: path.read_bytes() for path in trace.parent.iterdir()}
    with pytest.raises(QueryError, match=re.escape(REFUSED[query])):
        answer(session, query)
    assert {path: path.read_bytes() for path in trace.parent.iterdir()} == before


def test_python_variables_are_no_tables(session: Session) -> None:
    mine = [1, 2, 3]
    with pytest.raises(QueryError, match="expected a view, got 'mine'"):
        session.run("FROM mine")
    assert mine


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("FROM nodess", "query: expected a view, got 'nodess'. Did you mean nodes? The views are"),
        ("SELECT pth FROM nodes", 'Candidate bindings: "path"'),
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT 'a'::INTEGER", "Could not convert string 'a' to INT32"),
        ("SELECT no_such(1)", "no_such does not exist"),
    ],
)
def test_errors_tell_what_and_where(session: Session, query: str, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        answer(session, query)
    assert message in str(caught.value)
    assert f"LINE 1: {query}" in str(caught.value)
    assert "^" in str(caught.value)


def test_an_error_among_later_rows_is_one_too(session: Session) -> None:
    query = "SELECT CASE WHEN range > 50_000 THEN error('late') END FROM range(100_000)"
    with pytest.raises(QueryError, match="late"):
        answer(session, query)


def test_views_can_be_listed_and_described_in_sql(session: Session) -> None:
    assert {row[0] for row in answer(session, "SHOW TABLES")} == set(views())
    assert [row[0] for row in answer(session, "DESCRIBE waits")][:2] == ["span_id", "path"]


def test_two_traces_are_two_schemas(trace: Path, tmp_path: Path) -> None:
    other = Recording()
    with other.iteration():
        other.node("act", pure=True)
    other = sampled(other, 50).write(tmp_path / "it's another.parquet")
    with Session({"before": trace, "Run 2": other}) as session:
        assert answer(session, 'SELECT path FROM "Run 2".nodes WHERE leaf') == [("iteration/act",)]
        assert answer(session, "SELECT count(*) > 5 FROM before.nodes") == [(True,)]
        with pytest.raises(QueryError, match=r"Write before\.nodes or Run 2\.nodes\."):
            session.run("FROM nodes")


def test_the_page_shows_every_view_and_query() -> None:
    from rose_opt.cli.query_output import queries_page, views_page

    text = PAGE.read_text()
    assert views_page() in text, "docs/sql.md: print the parts with rose-opt sql --list"
    assert queries_page() in text, "docs/sql.md: print the parts with rose-opt sql --list"
