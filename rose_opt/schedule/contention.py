"""How much phases slow each other down, fitted from what was observed.

T_obs(v) = T_solo(v) + sum over w of kappa(v, w) * overlap(v, w), kappa >= 0. T_solo comes from
a serial reference and is never fitted: fitted together, the two trade places and kappa comes
out several times too large.

Does not handle: speedups from co-running (a negative kappa is fitted as 0 and stays in the
residual), overlaps of three phases that cost more than their pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

_TOLERANCE = 1e-10  # ours: relative, below which a gradient counts as zero


@dataclass(frozen=True, slots=True)
class Observation:
    """One invocation of a phase and what ran beside it.

    Args:
        phase: The phase, v.
        observed_ns: Its duration, T_obs [ns].
        overlap_ns: Time that each other phase w ran beside it [ns]; may sum to more than
            `observed_ns` where several did at once.
    """

    phase: str
    observed_ns: int
    overlap_ns: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class ContentionFit:
    """Fitted contention and how well it explains the observations.

    Args:
        kappa: Progress that v loses per second beside w, by (v, w) [fraction, >= 0]; only pairs
            that were seen together.
        solo_ns: The anchors, T_solo [ns].
        residual_ns: Per observation, T_obs less the fit [ns], in the order given.
        residual_fraction: Per phase, root mean square residual over T_solo [fraction].
    """

    kappa: Mapping[tuple[str, str], float]
    solo_ns: Mapping[str, float]
    residual_ns: tuple[float, ...]
    residual_fraction: Mapping[str, float]

    def trusted(self, limit: float = 0.1) -> bool:
        """Return whether every phase is explained within `limit` of its duration [fraction]."""
        return all(fraction <= limit for fraction in self.residual_fraction.values())


def anchors(serial: Iterable[tuple[str, int]]) -> dict[str, float]:
    """Return T_solo per phase: the median over the invocations of a serial reference.

    Args:
        serial: Phase and duration [ns] of every invocation while nothing else ran.

    >>> anchors([("S", 70), ("S", 90), ("S", 71)])
    {'S': 71}
    """
    durations: defaultdict[str, list[int]] = defaultdict(list)
    for phase, duration_ns in serial:
        durations[phase].append(duration_ns)
    return {phase: median(values) for phase, values in sorted(durations.items())}


def fit_contention(
    observations: Sequence[Observation], solo_ns: Mapping[str, float]
) -> ContentionFit:
    """Fit kappa by non-negative least squares, one phase at a time.

    Args:
        observations: Invocations with overlaps; those without any only enter the residuals.
        solo_ns: T_solo per phase, from `anchors` [ns].

    Returns:
        The fit.

    Raises:
        ValueError: If a phase has no anchor.
    """
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for number, observation in enumerate(observations):
        if solo_ns.get(observation.phase, 0) <= 0:
            raise ValueError(
                f"fit_contention: expected a serial duration of {observation.phase!r}, got "
                f"{solo_ns.get(observation.phase)}. Record one iteration in native order first."
            )
        rows[observation.phase].append(number)
    kappa: dict[tuple[str, str], float] = {}
    residual = [0.0] * len(observations)
    fraction: dict[str, float] = {}
    for phase, numbers in sorted(rows.items()):
        mine = [observations[number] for number in numbers]
        partners = sorted({w for o in mine for w, overlap in o.overlap_ns.items() if overlap > 0})
        overlap = np.array([[o.overlap_ns.get(w, 0) for w in partners] for o in mine], dtype=float)
        overlap = overlap.reshape(len(mine), len(partners))
        extra = np.array([o.observed_ns - solo_ns[phase] for o in mine], dtype=float)
        fitted = nonnegative_least_squares(overlap, extra)
        kappa.update({(phase, w): float(k) for w, k in zip(partners, fitted, strict=True)})
        left = extra - overlap @ fitted
        for number, value in zip(numbers, left, strict=True):
            residual[number] = float(value)
        fraction[phase] = float(np.sqrt(np.mean(left**2)) / solo_ns[phase])
    return ContentionFit(kappa, dict(solo_ns), tuple(residual), fraction)


def nonnegative_least_squares(
    design: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return x >= 0 that minimises |design @ x - target| (Lawson and Hanson's active set).

    Args:
        design: Shape: (observations, unknowns).
        target: Shape: (observations,).

    Returns:
        Shape: (unknowns,).
    """
    unknowns = design.shape[1]
    solution = np.zeros(unknowns)
    if not unknowns or not target.size:
        return solution
    scale = np.linalg.norm(design, axis=0)
    scaled = design / np.where(scale > 0, scale, 1.0)
    passive = np.zeros(unknowns, dtype=bool)
    floor = _TOLERANCE * max(float(np.linalg.norm(target)), 1e-300)
    for _ in range(3 * unknowns + 10):
        gradient = scaled.T @ (target - scaled @ solution)
        gradient[passive] = -np.inf
        if passive.all() or gradient.max() <= floor:
            break
        passive[int(np.argmax(gradient))] = True
        solution = _inner(scaled, target, solution, passive)
    return solution / np.where(scale > 0, scale, 1.0)


def _inner(
    design: NDArray[np.float64],
    target: NDArray[np.float64],
    solution: NDArray[np.float64],
    passive: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Least squares over the passive set, which shrinks (in place) until all of it is positive."""
    while passive.any():
        trial = np.zeros_like(solution)
        trial[passive] = np.linalg.lstsq(design[:, passive], target, rcond=None)[0]
        blocked = passive & (trial <= 0)
        if not blocked.any():
            return trial
        steps = solution[blocked] / np.maximum(solution[blocked] - trial[blocked], 1e-300)
        solution = solution + float(steps.min()) * (trial - solution)
        passive[blocked & (solution <= _TOLERANCE * max(1e-300, float(np.abs(trial).max())))] = (
            False
        )
        solution[~passive] = 0.0
    return np.zeros_like(solution)
