from __future__ import annotations

from typing import Any

from rose_opt.report.lanes import MOST_LANES, MOST_ROWS, OTHERS, lay_out
from rose_opt.report.recorded import Span
from rose_trace.records import NodePath


def span(start_ns: int, end_ns: int, **columns: Any) -> Span:
    defaults: dict[str, Any] = {
        "process": "main",
        "pid": 1,
        "thread": 1,
        "worker": None,
        "span_id": start_ns * 1_000 + end_ns,
        "parent_id": 0,
        "kind": "exec",
        "node": "n",
        "path": NodePath("i/n"),
        "step": -1,
        "group": -1,
        "wait_ns": None,
    }
    return Span(start_ns=start_ns, end_ns=end_ns, **(defaults | columns))


def lanes(*spans: Span) -> list[tuple[str, int, int]]:
    return [(lane.name, lane.first_row, lane.rows) for lane in lay_out(spans).lanes]


def test_calls_are_below_their_callers() -> None:
    outer, inner = span(0, 10, span_id=1), span(0, 4, span_id=2, parent_id=1)
    second, deepest = span(5, 9, span_id=3, parent_id=1), span(6, 7, span_id=4, parent_id=3)
    assert lay_out([outer, inner, second, deepest]).rows == (0, 1, 1, 2)
    assert lanes(outer, inner, second, deepest) == [("main", 0, 3)]


def test_calls_that_overlap_in_time_do_not_cover_each_other() -> None:
    """Kernels of two calls may run at once: a call lasts until its device is done."""
    assert lay_out([span(0, 10), span(5, 15), span(10, 20)]).rows == (0, 1, 0)


def test_threads_branches_workers_and_streams_have_lanes_in_this_order() -> None:
    kernel = span(1, 2, kind="kernel", node="gemm", path="cuda:0/stream 7/gemm")
    found = lanes(
        kernel,
        span(0, 9),
        span(0, 9, thread=2),
        span(1, 2, worker="simulator[0/2]", process="worker:simulator[0/2]", pid=7),
        span(1, 2, worker="inline"),
        span(1, 2, group=1, thread=3),
        span(3, 4, group=1, thread=4),
    )
    assert [name for name, _, _ in found] == [
        "main",
        "main / thread 1",
        "main / branch 1",
        "main / inline",
        "simulator[0/2]",
        "cuda:0/stream 7",
    ]
    assert [first for _, first, _ in found] == list(range(6))


def test_ranks_of_one_role_are_told_apart() -> None:
    assert [name for name, _, _ in lanes(span(0, 1), span(0, 1, pid=2))] == ["main", "main#1"]


def test_the_least_busy_threads_share_a_lane() -> None:
    many = [span(n, n + 1 + n % 2 * 5, thread=n) for n in range(MOST_LANES + 6)]
    laid = lay_out(many)
    assert len(laid.lanes) == MOST_LANES
    assert laid.merged == 7
    assert laid.lanes[-1].name == f"{OTHERS} (7)"
    shared = [row for row in laid.rows if row >= laid.lanes[-1].first_row]
    assert len(shared) == 7


def test_a_deep_lane_is_cut() -> None:
    nested = [span(n, 100 - n, span_id=n + 1, parent_id=n) for n in range(MOST_ROWS + 5)]
    laid = lay_out(nested)
    assert laid.lanes[0].rows == MOST_ROWS
    assert laid.rows[-6:] == (MOST_ROWS - 1,) * 6
