from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_opt.schedule.contention import (
    Observation,
    anchors,
    fit_contention,
    nonnegative_least_squares,
)

TRUE = {("S", "V"): 0.83, ("S", "D"): 0.05, ("V", "S"): 0.0}
SOLO = {"S": 289e6, "V": 178e6}


def observed(seed: int, noise: float, rows: int = 200) -> list[Observation]:
    rng = np.random.default_rng(seed)
    made: list[Observation] = []
    for _ in range(rows):
        for phase, solo in SOLO.items():
            partners = sorted(w for v, w in TRUE if v == phase)
            overlap = {w: int(rng.uniform(0, 0.4) * solo) for w in partners}
            extra = sum(TRUE[phase, w] * ns for w, ns in overlap.items())
            made.append(Observation(phase, int((solo + extra) * rng.normal(1, noise)), overlap))
    return made


def test_anchored_kappa_is_recovered_without_noise() -> None:
    fit = fit_contention(observed(0, 0.0), SOLO)
    assert {pair: round(k, 6) for pair, k in fit.kappa.items()} == TRUE
    assert max(abs(r) for r in fit.residual_ns) < 2.0
    assert fit.trusted(1e-6)


def test_anchored_kappa_is_close_with_noise_and_never_negative() -> None:
    fit = fit_contention(observed(1, 0.03), SOLO)
    for pair, kappa in fit.kappa.items():
        assert kappa >= 0
        assert abs(kappa - TRUE[pair]) < 0.05
    assert 0.02 < fit.residual_fraction["S"] < 0.06
    assert fit.trusted()
    assert not fit.trusted(0.01)


def test_a_missing_anchor_names_the_phase() -> None:
    with pytest.raises(ValueError, match="expected a serial duration of 'S', got None") as error:
        fit_contention([Observation("S", 5, {"V": 1})], {"V": 1.0})
    assert str(error.value).endswith("Record one iteration in native order first.")


def test_pairs_never_seen_together_are_left_out_and_show_as_residual() -> None:
    fit = fit_contention([Observation("S", 120, {"V": 0}), Observation("S", 80)], {"S": 100.0})
    assert fit.kappa == {}
    assert fit.residual_ns == (20.0, -20.0)
    assert fit.residual_fraction["S"] == pytest.approx(0.2)


def test_anchors_are_medians() -> None:
    assert anchors([("S", 70), ("V", 5), ("S", 900), ("S", 71)]) == {"S": 71, "V": 5}


@given(
    st.integers(0, 10**6),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from([1.0, 1e9]),
    st.booleans(),
)
def test_least_squares_meets_the_optimality_conditions(
    seed: int, rows: int, unknowns: int, scale: float, twin: bool
) -> None:
    rng = np.random.default_rng(seed)
    design = rng.random((rows, unknowns)) * scale
    if twin and unknowns > 1:
        design[:, 1] = design[:, 0]
    target = rng.normal(size=rows) * scale
    solution = nonnegative_least_squares(design, target)
    gradient = (design / np.linalg.norm(design, axis=0)).T @ (target - design @ solution)
    limit = 1e-6 * float(np.linalg.norm(target))
    assert (solution >= 0).all()
    assert gradient.max() <= limit
    assert np.abs(gradient[solution > 0]).max(initial=0.0) <= limit
