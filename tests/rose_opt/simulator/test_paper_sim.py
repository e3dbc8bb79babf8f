"""`benchmarks/paper_sim`: what it claims holds, and what it cannot know it does not claim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.paper_beyond import device_searches, noise_studies
from benchmarks.paper_cells import figure_10, figure_11, figure_14, figure_15, graph_only, table_1
from benchmarks.paper_inputs import Cell, pair

ROOT = Path(__file__).parents[3]
CELLS = [*table_1(), *figure_10(), *figure_11(), *figure_14(), *figure_15()]


def cell(where: str, words: str) -> Cell:
    (found,) = [c for c in CELLS if c.where == where and words in c.what]
    return found


def test_table_1_and_figure_10() -> None:
    speedup = cell("Table 1", "ManiSkill").ours
    assert speedup == pytest.approx(1.07, abs=0.03)
    assert cell("Fig. 10", "completion at 91").ours == pytest.approx(5.716, rel=0.05)
    assert cell("Fig. 10", "Algorithm 2").ours == 91
    losses = [c.ours for c in CELLS if "loss per overlapped" in c.what]
    assert losses == pytest.approx([0.83, 0.13], abs=0.005)


def test_graph_alone_follows_from_time_slicing_and_the_other_two_bars() -> None:
    assert cell("Fig. 14a", "graph alone").ours == pytest.approx(1.08, abs=0.03)
    # A wrong pair of bars gives another one: the number is no constant.
    assert abs(graph_only(1.05, 1.29) - 1.08) > 0.03


def test_the_u_shape_is_found_in_at_most_ten_trials() -> None:
    ticks = [c.ours for c in CELLS if c.where == "Fig. 15" and "trial " in c.what]
    assert ticks == [100, 95, 89, 93, 97]
    for words in ("most trials", "trials on the pair"):
        trials = cell("Fig. 15", words).ours
        assert trials is not None
        assert trials <= 10
    curve = pair()
    shares = [share / 100 for share in range(75, 101)]
    times = [curve.completion_ns(share) for share in shares]
    lowest = times.index(min(times))
    assert 0 < lowest < len(times) - 1
    assert times[: lowest + 1] == sorted(times[: lowest + 1], reverse=True)
    assert times[lowest:] == sorted(times[lowest:])


def test_a_cell_without_inputs_has_no_number() -> None:
    missing = [c for c in CELLS if c.kind == "missing"]
    assert len([c for c in missing if c.where == "Fig. 11"]) == 12
    assert cell("Table 1", "LIBERO") in missing
    for item in missing:
        assert item.ours is None
        assert item.met is None
        assert "inputs not published" in item.note
    for item in CELLS:
        assert (item.ours is None) == (item.kind == "missing")
        if item.met is not None:
            assert item.inputs, item.what


def test_a_number_outside_its_tolerance_is_not_met() -> None:
    off = Cell("Fig. 10", "x", 5.716, 5.0, "predicted", tolerance=0.05 * 5.716)
    assert off.met is False
    assert Cell("Fig. 15", "x", 10, 11, "predicted", tolerance=0, at_most=True).met is False
    assert Cell("Fig. 15", "x", 10, 3, "predicted", tolerance=0, at_most=True).met is True


def test_repeats_help_where_runs_scatter() -> None:
    studies = {(s.scatter, s.repeats): s for s in noise_studies(searches=40)}
    assert studies[0.04, 3].close >= studies[0.04, 1].close
    assert studies[0.02, 3].close >= 0.95
    assert all(s.runs > 1 for s in studies.values())


def test_a_bump_in_what_we_measured_stops_small_steps() -> None:
    found = {(d.mechanism, d.coarse_step): d for d in device_searches()}
    assert found["green contexts", 3].sms == 132
    assert found["green contexts", 8].completion_ms == found["green contexts", 8].sweep_ms
    assert all(d.trials <= 10 for d in found.values())


@pytest.mark.slow
def test_the_command_ends_with_one_json_object() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "paper_sim"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["met"] is True
    assert told["table1_libero"] is None
    assert "Table 1: LIBERO, MPS off: speedup" in told["missing"]
