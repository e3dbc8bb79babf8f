from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rose_opt.cli import app
from rose_opt.facts import FactsError, FactsSettings, build_facts, window_score
from tests.rose_opt.facts.factory import START_NS, Recording


def two_phases() -> Recording:
    """One iteration of 1,000: low for 400 (a=0.25), middle for 300 (0.6), busy for 200 (0.9)."""
    recording = Recording()
    with recording.iteration():
        recording.node("low", ns=400, pure=True, cores=0.5)
        recording.now_ns += 50
        recording.node("middle", ns=300, pure=True, cores=1.5)
        recording.node("busy", ns=200, pure=True)
        recording.now_ns += 50
    for start, stop, activity in (
        (0, 100, 0.1),
        (100, 400, 0.3),
        (400, 450, 0.9),
        (450, 750, 0.6),
        (750, 1_000, 0.9),
    ):
        recording.sample(start, stop, activity)
    return recording


def test_windows_against_hand_computed_values(tmp_path: Path):
    facts = build_facts(two_phases().write(tmp_path / "trace.parquet"))
    low, middle, busy = facts.windows
    assert low.target == "iteration/low"
    assert (low.rank, low.tier, low.total_ns, low.coverage) == (1, 0, 400, 1.0)
    assert low.sm_activity == pytest.approx((100 * 0.1 + 300 * 0.3) / 400)
    assert low.score == pytest.approx(400 * 0.75)
    assert (middle.rank, middle.tier) == (2, 1)
    assert middle.sm_activity == pytest.approx(0.6)
    assert (busy.rank, busy.tier) == (None, None)
    assert busy.refused == "activity 0.90 is not below 0.8"
    assert (facts.iteration.iteration_ns, facts.iteration.glue_ns) == (1_000, 100)
    assert facts.timings["iteration/low"].cores_used == pytest.approx(0.5)
    assert facts.timings["iteration/middle"].cpu_ns == 450


def test_window_that_starts_and_ends_inside_samples(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        recording.now_ns = 30
        recording.node("act", ns=100, pure=True)
    recording.sample(0, 50, 0.2)
    recording.sample(50, 110, 0.5)
    recording.sample(110, 200, 0.8)
    (window,) = build_facts(recording.write(tmp_path / "trace.parquet")).windows
    assert window.sm_activity == pytest.approx((20 * 0.2 + 60 * 0.5 + 20 * 0.8) / 100)
    assert window.coverage == 1.0


def test_first_tier_comes_before_a_higher_score(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        recording.node("long", ns=900, pure=True)
        recording.node("short", ns=100, pure=True)
    recording.sample(0, 900, 0.5)
    recording.sample(900, 1_000, 0.4999)
    first, second = build_facts(recording.write(tmp_path / "trace.parquet")).windows
    assert [window.target for window in (first, second)] == ["iteration/short", "iteration/long"]
    assert first.score < second.score


def test_half_covered_nodes_are_not_ranked(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        recording.node("seen", ns=100, pure=True)
        recording.node("unseen", ns=100, pure=True)
    recording.sample(0, 149, 0.1)
    seen, unseen = build_facts(recording.write(tmp_path / "trace.parquet")).windows
    assert (seen.rank, unseen.rank) == (1, None)
    assert (unseen.sm_activity, unseen.coverage) == (None, 0.49)
    assert unseen.refused == "samples cover 49% of its time, below 50%"


def test_gaps_between_samples_are_not_covered(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        recording.node("act", ns=100, pure=True)
    recording.sample(0, 40, 0.2)
    recording.sample(60, 100, 0.4)
    (window,) = build_facts(recording.write(tmp_path / "trace.parquet")).windows
    assert window.coverage == pytest.approx(0.8)
    assert window.sm_activity == pytest.approx(0.3)


def test_either_threshold_suffices(tmp_path: Path):
    path = two_phases().write(tmp_path / "trace.parquet")
    both_high = build_facts(path, FactsSettings(min_window_ns=350, min_window_fraction=0.35))
    assert [window.rank for window in both_high.windows] == [1, None, None]
    assert both_high.windows[1].refused == "0.000 ms an iteration, below 0.000 ms"
    one_low = build_facts(path, FactsSettings(min_window_ns=350, min_window_fraction=0.01))
    assert [window.rank for window in one_low.windows] == [1, 2, None]


def test_the_tier_comes_before_the_score(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        recording.node("long", ns=1_000, pure=True)
        recording.node("short", ns=100, pure=True)
        recording.node("shorter", ns=60, pure=True)
    recording.sample(0, 1_000, 0.6)
    recording.sample(1_000, 1_160, 0.2)
    windows = build_facts(recording.write(tmp_path / "trace.parquet")).windows
    assert [(w.target, w.tier, w.rank) for w in windows] == [
        ("iteration/short", 0, 1),
        ("iteration/shorter", 0, 2),
        ("iteration/long", 1, 3),  # the largest score of all, in the second tier
    ]
    assert windows[2].score > windows[0].score > windows[1].score


def test_the_limits_themselves_belong_to_the_busier_side(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        recording.node("half", ns=100, pure=True)
        recording.node("busy", ns=100, pure=True)
    recording.sample(0, 100, 0.5)
    recording.sample(100, 200, 0.8)
    half, busy = build_facts(recording.write(tmp_path / "trace.parquet")).windows
    assert (half.tier, half.rank) == (1, 1)
    assert busy.refused == "activity 0.80 is not below 0.8"


def test_durations_are_means_over_ranks_and_iterations(tmp_path: Path):
    recording = Recording()
    for process, lengths in (("rank0", (900, 100, 200)), ("rank1", (900, 300, 400))):
        recording.process, recording.now_ns = process, 0
        for ns in lengths:  # the first is warm-up
            with recording.iteration():
                recording.node("act", ns=ns, pure=True)
    recording.sample(0, 2_000, 0.5)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert (facts.iteration.ranks, facts.iteration.used) == (2, 4)
    (window,) = facts.windows
    assert (window.total_ns, window.mean_ns, window.calls) == (250, 250, 1.0)


def test_warm_up_iteration_does_not_count(tmp_path: Path):
    recording = Recording()
    for ns in (5_000, 100, 200, 300):
        with recording.iteration():
            recording.node("act", ns=ns, pure=True)
            recording.node("act", ns=ns, pure=True)
    recording.sample(0, 10_000, 0.2)
    recording.sample(10_000, 11_200, 0.4)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    (window,) = facts.windows
    assert facts.iteration.used == 3
    assert facts.iteration.iteration_ns == 400
    assert (window.total_ns, window.calls, window.mean_ns) == (400, 2.0, 200)
    assert window.sm_activity == pytest.approx(0.4)


def test_device_time_after_the_host_returns_counts(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        recording.node("act", ns=100, pure=True, columns={"device_end_ns": START_NS + 250})
        recording.now_ns = 300
    recording.sample(0, 100, 0.0)
    recording.sample(100, 300, 0.5)
    (window,) = build_facts(recording.write(tmp_path / "trace.parquet")).windows
    assert window.total_ns == 250
    assert window.sm_activity == pytest.approx(150 * 0.5 / 250)


def test_calls_shorter_than_the_source_are_marked(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        for _ in range(4):
            recording.node("act", ns=50_000_000, pure=True)
    for start in range(0, 200_000_000, 20_000_000):
        recording.sample(start, start + 20_000_000, 0.3, source="gpm")
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert facts.activity is not None
    # Samples come every 20 ms, but the counters behind them refresh every 100 ms.
    assert (facts.activity.sample_ns, facts.activity.resolution_ns) == (20_000_000, 100_000_000)
    assert not facts.windows[0].resolved


def test_best_source_is_used_and_another_can_be_asked_for(tmp_path: Path):
    recording = two_phases()
    recording.sample(0, 1_000, 0.7, source="cpu", device="cpu")
    path = recording.write(tmp_path / "trace.parquet")
    best = build_facts(path).activity
    assert best is not None
    assert (best.source, best.devices) == ("pm-sampling", ("cuda:0",))
    cpu = build_facts(path, FactsSettings(source="cpu"))
    assert cpu.activity is not None
    assert cpu.activity.meaning == "share of all CPU cores that are busy"
    assert [window.sm_activity for window in cpu.windows] == pytest.approx([0.7, 0.7, 0.7])
    with pytest.raises(FactsError) as error:
        build_facts(path, FactsSettings(source="gpm"))
    assert str(error.value) == (
        f"{path}: expected samples of 'gpm', got cpu, pm-sampling. Choose a recorded source."
    )


def test_each_process_is_judged_by_its_own_device(tmp_path: Path):
    recording = Recording()
    for process, name in (("main", "a"), ("worker", "b")):
        recording.process = process
        with recording.iteration():
            made = recording.node(name, ns=100, pure=True)
        recording.rows[-1]["outputs"] = [
            {**made.row(0), "device": "cuda:0" if name == "a" else "cuda:1"}
        ]
    recording.sample(0, 200, 0.1, device="cuda:0")
    recording.sample(0, 200, 0.6, device="cuda:1")
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert facts.iteration.ranks == 2
    activity = {window.target: window.sm_activity for window in facts.windows}
    assert activity == pytest.approx({"iteration/a": 0.1, "iteration/b": 0.6})


def test_stretches_of_low_samples_with_the_node_that_runs(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        recording.node("act", ns=300, pure=True)
        recording.node("step", ns=700, pure=True)
    for start in range(0, 1_000, 100):
        recording.sample(start, start + 100, 0.9 if start in (200, 800) else 0.2)
    windows = build_facts(recording.write(tmp_path / "trace.parquet")).sample_windows
    assert [
        (window.start_ns - START_NS, window.end_ns - START_NS, window.target, window.overlap_ns)
        for window in windows
    ] == [
        (300, 800, "iteration/step", 500),
        (0, 200, "iteration/act", 200),
        (900, 1_000, "iteration/step", 100),
    ]
    assert windows[0].activity == pytest.approx(0.2)


def test_probes_beside_the_trace(tmp_path: Path):
    recording = two_phases()
    for variant, groups, threads, duration_ns, identical in (
        ("whole", 1, 2, 100, None),
        ("whole", 1, 2, 140, None),
        ("whole", 1, 2, 120, None),
        ("part", 2, 1, 110, True),
        ("part", 2, 1, 112, False),
    ):
        recording.probes.append(
            {
                "run": "test",
                "path": "iteration/low",
                "variant": variant,
                "groups": groups,
                "group": -1,
                "threads": threads,
                "duration_ns": duration_ns,
                "cpu_ns": duration_ns * threads,
                "identical": identical,
                "iteration": [0],
            }
        )
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    part, whole = facts.probes_of("iteration/low")
    assert (whole.variant, whole.duration_ns, whole.count, whole.identical) == (
        "whole",
        110,  # the lower quartile
        3,
        None,
    )
    assert whole.cores_used == pytest.approx(2.0)
    assert (part.groups, part.threads, part.duration_ns, part.identical) == (2, 1, 110, False)


def test_trace_without_samples_has_no_windows(tmp_path: Path):
    recording = two_phases()
    recording.samples.clear()
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert (facts.activity, facts.windows, facts.sample_windows) == (None, (), ())


def test_score_refuses_percent():
    with pytest.raises(ValueError, match=r"expected an activity in 0\.\.1, got 25\. Divide"):
        window_score(100, 25)


def test_command_prints_text_and_json(tmp_path: Path):
    path = two_phases().write(tmp_path / "trace.parquet")
    run = CliRunner()
    text = run.invoke(app, ["windows", str(path)], env={"COLUMNS": "160"})
    assert text.exit_code == 0, text.output
    assert "SM activity, from pm-sampling on cuda:0" in text.stdout
    ranked, _, rest = text.stdout.partition("why, and what helps")
    runs = rest.partition("longest runs of samples below 50%")[2]
    assert [line.split()[:2] for line in ranked.splitlines() if "iteration/" in line] == [
        ["1", "iteration/low"],
        ["2", "iteration/middle"],
        ["-", "iteration/busy"],
    ]
    assert "iteration/low" in runs
    data = json.loads(run.invoke(app, ["windows", str(path), "--format", "json"]).stdout)
    assert [window["target"] for window in data["windows"]] == [
        "iteration/low",
        "iteration/middle",
        "iteration/busy",
    ]


def test_command_refuses_what_is_no_trace(tmp_path: Path):
    result = CliRunner().invoke(app, ["windows", str(tmp_path / "missing.parquet")])
    assert result.exit_code == 3
    assert "expected a trace, got no such file" in result.stderr
    assert result.stdout == ""
