from __future__ import annotations

import pytest

from rose_opt.measure import QuotaLevel, TrialFailed, expected_levels, search_quota
from rose_opt.schedule.contention import Observation, fit_contention
from rose_opt.simulator.pair import (
    TIME_SLICED,
    PairCurve,
    PairPoint,
    SimulatedPair,
    side_by_side,
    together,
)

S = 1_000_000_000


def test_a_run_side_by_side_is_reproduced_by_what_it_calibrates() -> None:
    point = side_by_side(1.0, 2.0 * S, 5.0 * S, 2.5 * S, 7.0 * S)
    curve = PairCurve(5.0 * S, (point,))
    assert curve.run(1.0) == pytest.approx((2.5 * S, 7.0 * S))
    assert point.kappa_other == pytest.approx(2.0 / 2.5)


def test_calibration_agrees_with_the_fit_of_traces() -> None:
    point = side_by_side(1.0, 2 * S, 5 * S, 2.5 * S, 7 * S)
    overlap = round(2.5 * S)
    seen = [
        Observation("policy", overlap, {"simulator": overlap}),
        Observation("simulator", 7 * S, {"policy": overlap}),
    ]
    fit = fit_contention(seen, {"policy": 2 * S, "simulator": 5 * S})
    assert fit.kappa["policy", "simulator"] == pytest.approx(point.kappa_limited)
    assert fit.kappa["simulator", "policy"] == pytest.approx(point.kappa_other)


def test_a_branch_that_was_faster_beside_the_other_loses_nothing() -> None:
    assert side_by_side(1.0, 3.0, 5.0, 2.9, 5.0).kappa_limited == 0.0


def test_between_anchors_everything_is_interpolated_and_beyond_them_kappa_stays() -> None:
    curve = PairCurve(5.0, (PairPoint(0.5, 4.0, 0.4, 0.0), PairPoint(1.0, 2.0, 0.0, 0.8)))
    between = curve.at(0.75)
    assert (between.share, between.limited_ns) == (0.75, 3.0)
    assert (between.kappa_limited, between.kappa_other) == pytest.approx((0.2, 0.4))
    assert curve.at(0.25) == PairPoint(0.25, 8.0, 0.4, 0.0)
    assert curve.at(1.0) == curve.points[1]


def test_taking_turns_is_as_slow_as_one_after_the_other() -> None:
    assert max(together(2.0, 5.0, TIME_SLICED, TIME_SLICED)) == pytest.approx(7.0)


@pytest.mark.parametrize("shares", [(), (1.0, 0.5), (0.5, 0.5), (0.0, 1.0)])
def test_anchors_are_sorted_and_above_zero(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="expected anchors by increasing share above 0"):
        PairCurve(1.0, tuple(PairPoint(share, 1.0, 0.0, 0.0) for share in shares))


def pair(**options: float) -> SimulatedPair:
    anchors = (PairPoint(0.8, 2.5 * S, 0.3, 0.1), PairPoint(1.0, 2.0 * S, 0.0, 0.9))
    return SimulatedPair(PairCurve(5.0 * S, anchors), 108, **options)  # pyright: ignore


def test_a_quota_is_found_on_a_simulated_pair() -> None:
    levels = expected_levels(108)
    machine = pair(rest_ns=3.0 * S)
    start = machine.iteration_ns(levels[-1])
    found = search_quota(machine, levels, start)
    sweep = machine.sweep(levels)
    assert sweep[found.best.k] == min(sweep.values())
    assert machine.runs == len(found.trials) <= 10
    assert found.level == found.best
    assert found.iteration_ns == pytest.approx(sweep[found.best.k] + 3.0 * S)


def test_scatter_is_reproducible_and_around_the_truth() -> None:
    level = QuotaLevel(54, 108, 100)
    runs = [pair(noise=0.02).completion_ns(level) for _ in range(2)]
    assert runs[0] == runs[1]
    exact = pair().completion_ns(level)
    machine = pair(noise=0.02)
    many = [machine.completion_ns(level) for _ in range(400)]
    assert sum(many) / len(many) == pytest.approx(exact, rel=0.005)
    assert min(many) < 0.97 * exact < 1.03 * exact < max(many)


def test_too_few_sms_fail_the_trial() -> None:
    with pytest.raises(TrialFailed, match="expected at least 20 SMs, got fewer"):
        pair(smallest_sms=20).completion_ns(QuotaLevel(9, 18, 17))
