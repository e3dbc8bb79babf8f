from __future__ import annotations

import re
from collections import Counter
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rose_trace as rose
from rose_exec.replay import replay
from rose_opt.facts import build_facts
from rose_opt.optimize import plan as optimize
from rose_opt.plan import Plan
from rose_opt.report import ReportError, read_recorded, report_html
from rose_opt.report.recorded import Recorded
from rose_opt.report.timeline import node_colours
from rose_opt.settings import PlanSettings
from rose_trace.component import program
from rose_trace.parquet import read_spans
from tests.rose_exec import programs
from tests.rose_exec.observe import observed_plan
from tests.rose_opt.facts.factory import START_NS, Recording
from tests.rose_opt.facts.programs import ppo
from tests.rose_opt.report import embedded, recordings

pytestmark = pytest.mark.usefixtures("workers_from_a_clean_process")
MEGABYTE = 1_000_000


class Fetches(HTMLParser):
    """Collects what a browser would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"src", "href", "srcset", "data", "poster", "action"} and value:
                self.found.append(value)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("report")
    return recordings.native(folder / "before.parquet"), recordings.planned(
        folder / "after.parquet"
    )


@pytest.fixture(scope="module")
def pair(both: tuple[Path, Path]) -> tuple[Recorded, Recorded]:
    return read_recorded(both[0]), read_recorded(both[1])


@pytest.fixture(scope="module")
def chosen(pair: tuple[Recorded, Recorded]) -> Plan:
    return optimize(pair[0].facts, PlanSettings(cores=4))


@pytest.fixture(scope="module")
def page(pair: tuple[Recorded, Recorded], chosen: Plan) -> str:
    return report_html(*pair, chosen)


def expected_rows(path: Path, iteration: int) -> list[dict[str, Any]]:
    """Spans of one iteration, counted without the report."""
    rows = read_spans(path).to_pylist()
    root = [row for row in rows if row["kind"] == "iteration"][iteration]
    inside = (row for row in rows if row["iteration"][0] == root["iteration"][0])
    return [row | {"base_ns": root["start_ns"]} for row in inside]


def test_a_browser_needs_nothing_from_elsewhere(page: str) -> None:
    parser = Fetches()
    parser.feed(page)
    assert [value for value in parser.found if not value.startswith("data:")] == []
    style = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style
    assert len(page.encode()) < 2 * MEGABYTE


def test_charts_hold_every_invocation_of_both_recordings(
    page: str, both: tuple[Path, Path]
) -> None:
    tables = embedded.invocations(page)
    assert len(tables) == 2
    for table, path in zip(tables, both, strict=True):
        rows = expected_rows(path, 1)
        assert len(table["left"]) == len(rows) > 50
        drawn = sorted(zip(table["left"], table["right"], table["ms"], strict=True))
        spans = sorted(
            (
                (row["start_ns"] - row["base_ns"]) / 1e9,
                (row["end_ns"] - row["base_ns"]) / 1e9,
                (row["end_ns"] - row["start_ns"]) / 1e6,
            )
            for row in rows
        )
        for shown, expected in zip(drawn, spans, strict=True):
            assert shown == pytest.approx(expected, rel=1e-5, abs=1e-6)
        steps = sorted(row["iteration"][-1] for row in rows)
        assert sorted(table["step"]) == steps


def test_a_node_has_one_colour_in_both_timelines(
    page: str, both: tuple[Path, Path], pair: tuple[Recorded, Recorded]
) -> None:
    palette = node_colours([*pair])
    assert embedded.paths(page) == palette.paths
    for table, path in zip(embedded.invocations(page), both, strict=True):
        numbers: list[int] = table["node"].tolist()
        drawn = Counter(palette.paths[number] for number in numbers)
        assert drawn == Counter(row["path"] for row in expected_rows(path, 1))
    fills = [palette.fills[number] for number in palette.leaves]
    assert len(set(fills)) == len(fills) == 8
    for number, fill in zip(palette.leaves, fills, strict=True):
        swatch = f'background:{fill}"></i>{palette.labels[number]}</span>'
        assert swatch in page


def test_only_a_planned_run_shows_groups_and_waits(page: str) -> None:
    native, planned = embedded.invocations(page)
    assert not {"group", "wait"} & native.keys()
    assert set(planned["group"]) == {-1, 0, 1}
    assert planned["wait"][planned["group"] >= 0] == pytest.approx(1e-3)


def test_activity_is_drawn_as_sampled_with_its_source(page: str) -> None:
    before, after = embedded.samples(page)
    assert set((before["percent"] / 10).round()) == {2, 9}
    assert set(before["low"][before["percent"] < 50]) == {1}
    assert list(after["percent"]) == pytest.approx([75.0])
    assert "Before: SM activity; source pm-sampling on cuda:0, resolution 5 ms, measured" in page
    assert "estimated from kernel grids; source kernels on cuda:0" in page
    assert "ms, estimate" in page


def test_title_and_numbers_are_those_of_the_facts(page: str, both: tuple[Path, Path]) -> None:
    first, second = (build_facts(path).iteration.iteration_ns for path in both)
    assert (
        f"<title>before.parquet and after.parquet: {first / 1e6:.4g} ms and {second / 1e6:.4g} ms per "
        "iteration, 2.00 times as fast</title>"
    ) in page
    below = re.findall(r"<b>([^<]+)</b><span>of time below 50 % (\w+)", page)
    assert [when for _, when in below] == ["before", "after"]
    assert float(below[0][0].rstrip("%")) == pytest.approx(50, abs=3)
    assert below[1][0] == "0.0%"


def test_plan_refusals_and_unlocking_annotations_are_told(
    pair: tuple[Recorded, Recorded], chosen: Plan
) -> None:
    page = report_html(pair[0], plan=chosen)
    assert chosen.refusals
    for refusal in chosen.refusals:
        assert f"{refusal.transform}({refusal.subject})" in page
        assert refusal.unlock.replace("'", "&#x27;") in page
    for transform in chosen.transforms:
        assert f"<code>{transform}</code>" in page
    assert f"{chosen.predicted.gap:.1%}" in page
    assert f"{chosen.predicted.lower_bound_ns / 1e6:.1f} ms" in page
    assert "made from another recording" not in page


def test_a_plan_of_another_program_is_pointed_out(
    pair: tuple[Recorded, Recorded], tmp_path: Path
) -> None:
    other = ppo(Recording(), steps=3).write(tmp_path / "other.parquet")
    page = report_html(pair[0], plan=optimize(build_facts(other), PlanSettings(cores=4)))
    assert "made from another recording" in page


def test_an_incomplete_recording_has_a_banner(tmp_path: Path) -> None:
    recording = ppo(Recording())
    recording.reasons = ["worker 7 lost <3> rows"]
    page = report_html(read_recorded(recording.write(tmp_path / "trace.parquet")))
    assert "trace.parquet is incomplete:</b> worker 7 lost &lt;3&gt; rows." in page
    assert "is incomplete" not in report_html(
        read_recorded(ppo(Recording()).write(tmp_path / "whole.parquet"))
    )


def test_a_sampled_recording_says_what_its_timeline_lacks(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    with program(), rose.record(path, activity="none", steps=2):
        iteration = programs.build(steps=9)
        iteration()
        iteration()
    recorded = read_recorded(path)
    page = report_html(recorded)
    sampling = recorded.facts.sampling
    assert sampling is not None
    counts = f"{sampling.recorded} of {sampling.invocations} invocations"
    assert f"trace.parquet holds {counts}: the first and last 2 iterations" in page
    assert len(embedded.invocations(page)[0]["left"]) == len(expected_rows(path, 1))


def test_windows_are_told_with_cause_and_cure(pair: tuple[Recorded, Recorded], page: str) -> None:
    windows = pair[0].facts.windows
    caused = [window for window in windows if window.cause is not None]
    assert caused
    for window in caused:
        assert window.cause is not None
        assert escape(window.cause.advice) in page
    assert "<th>cause and cure</th>" in page


def test_without_samples_the_page_says_so(tmp_path: Path) -> None:
    page = report_html(read_recorded(ppo(Recording()).write(tmp_path / "trace.parquet")))
    assert embedded.samples(page) == []
    assert "No activity samples beside this trace" in page


def test_names_from_a_trace_are_text_not_markup(tmp_path: Path) -> None:
    recording = Recording()
    with recording.iteration():
        recording.node("</script><script>alert(1)</script>", ns=100, pure=True)
    page = report_html(read_recorded(recording.write(tmp_path / "<b>.parquet")))
    assert "<script>alert" not in page
    assert "<b>.parquet" not in page
    assert len(embedded.invocations(page)[0]["left"]) == 2


def test_another_iteration_can_be_chosen(both: tuple[Path, Path]) -> None:
    warm_up = read_recorded(both[0], iteration=0)
    assert (warm_up.shown.index, warm_up.shown.start_ns) == (0, START_NS)
    with pytest.raises(ReportError, match=r"expected an iteration in 0\.\.1, got 2"):
        read_recorded(both[0], iteration=2)


def test_fifty_thousand_invocations_a_side_stay_below_six_megabytes(
    pair: tuple[Recorded, Recorded],
) -> None:
    steps = 12_500
    crowded = [recordings.crowded(recorded, steps, n) for n, recorded in enumerate(pair)]
    page = report_html(crowded[0], crowded[1])
    assert len(page.encode()) < 6 * MEGABYTE
    tables = embedded.invocations(page)
    assert [len(table["left"]) for table in tables] == [4 * steps] * 2
    names = embedded.paths(page)
    levels = embedded.bands(page)
    assert len(levels) >= 4
    assert min(len(table["left"]) for table in levels) < 3_000
    busy = [
        {
            name: sum(s.end_ns - s.start_ns for s in recorded.spans if s.path == name) / 1e6
            for name in names
        }
        for recorded in crowded
    ]
    for position, table in enumerate(levels):
        assert set(np.unique(table["node"]).tolist()) == set(range(len(names)))
        for number, name in enumerate(names):
            some = table["node"] == number
            assert table["count"][some].sum() == steps
            assert table["ms"][some].sum() == pytest.approx(
                busy[position * 2 // len(levels)][name], rel=1e-4
            )


def test_a_real_planned_run_is_shown_in_its_lanes(tmp_path: Path) -> None:
    plan = observed_plan(
        programs.build,
        "split-spatial{loop=iteration/rollout/interact groups=2}",
        "merge{loop=iteration/rollout/interact}",
        rows=programs.ROWS,
    )
    paths = [tmp_path / "before.parquet", tmp_path / "after.parquet"]
    with program(), rose.record(paths[0], activity="none"):
        iteration = programs.build()
        iteration()
        iteration()
    with (
        replay(plan, build=programs.build, strict=True) as session,
        rose.record(paths[1], activity="none"),
    ):
        session.built()
        session.built()
    before, after = map(read_recorded, paths)
    page = report_html(before, after, plan)
    tables = embedded.invocations(page)
    assert [len(table["left"]) for table in tables] == [len(before.spans), len(after.spans)]
    assert set(tables[1]["group"]) == {-1, 0, 1}
    for name in ("main", "main / branch 0", "simulator-0", "simulator-1"):
        assert f'"{name}"' in page or f"&quot;{name}&quot;" in page
