"""The paper's Table 1 and Figures 10, 11, 14 and 15 on the simulator, one cell per number."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.paper_inputs import (
    COARSE,
    DEVICE_SMS,
    LEVELS,
    MPS_SPEEDUP,
    POLICY,
    POLICY_91,
    POLICY_91_ALONE,
    POLICY_100,
    QUOTA_SPEEDUP,
    SAME_PAIR,
    SERIAL,
    SIMULATOR,
    SIMULATOR_91,
    SIMULATOR_100,
    SLICED,
    Cell,
    Input,
    S,
    pair,
)
from rose_opt.measure import QuotaLevel, QuotaSearchResult, expected_levels, search_quota
from rose_opt.simulator.pair import TIME_SLICED, SimulatedPair, together


def table_1() -> Iterator[Cell]:
    """Speedups of a policy beside a simulator."""
    alone = (POLICY, SIMULATOR, SERIAL)
    yield Cell(
        "Table 1",
        "ManiSkill, MPS on: speedup",
        1.07,
        SERIAL.value * S / pair().completion_ns(1.0),
        "calibrated",
        "x",
        0.03,
        (*alone, POLICY_100, SIMULATOR_100),
    )
    yield Cell(
        "Table 1",
        "LIBERO, MPS off: speedup",
        1.36,
        None,
        "missing",
        "x",
        note="inputs not published: durations alone and beside. 1.36 needs the shorter branch to "
        "last at least 0.36 of the longer one. The 1.34 of Fig. 10 is ManiSkill at 91 %, not this cell",
    )
    point = pair()
    for percent, share in ((100, 1.0), (91, 0.91)):
        yield Cell(
            "Table 1, Fig. 10",
            f"simulator's loss per overlapped second at {percent} %",
            None,
            point.at(share).kappa_other,
            "calibrated",
            "s/s",
        )


def figure_10() -> Iterator[Cell]:
    """The quota sweep of the policy."""
    curve = pair()
    inputs = (POLICY, SIMULATOR, POLICY_100, SIMULATOR_100, POLICY_91, SIMULATOR_91)
    policy, simulator = curve.run(0.91)
    for what, paper, ours in (
        ("completion at 91 / 100", SIMULATOR_91.value, max(policy, simulator) / S),
        ("policy at 91 / 100", POLICY_91.value, policy / S),
    ):
        yield Cell(
            "Fig. 10",
            what,
            paper,
            ours,
            "calibrated",
            "s",
            0.05 * paper,
            (*inputs, POLICY_91_ALONE),
        )
    yield Cell(
        "Fig. 10",
        "speedup at 91 / 100 against one after the other",
        SERIAL.value / SIMULATOR_91.value,
        SERIAL.value * S / curve.completion_ns(0.91),
        "calibrated",
        "x",
        0.05,
        (*inputs, SERIAL),
    )
    found, machine, levels = figure_10_search()
    sweep = machine.sweep(levels)
    best = min(sweep, key=lambda k: (sweep[k], -k))
    yield Cell(
        "Fig. 10",
        "best quota of the full sweep",
        91,
        levels[best - 1].percent,
        "calibrated",
        "%",
        2,
        (*inputs, POLICY_91_ALONE, LEVELS),
        "contention is interpolated between 91 and 100 % and constant below: the turning point "
        "lies at the anchor by construction",
    )
    yield Cell(
        "Fig. 10",
        "best quota of Algorithm 2",
        levels[best - 1].percent,
        found.level.percent,
        "predicted",
        "%",
        0,
        (COARSE, LEVELS),
        f"against our own sweep; trials at {_ticks(found)} %",
    )


def figure_10_search() -> tuple[QuotaSearchResult, SimulatedPair, tuple[QuotaLevel, ...]]:
    """Algorithm 2 on the pair of Fig. 10."""
    levels = expected_levels(DEVICE_SMS)
    machine = SimulatedPair(pair(), DEVICE_SMS)
    found = search_quota(
        machine, levels, round(pair().completion_ns(1.0)), coarse_step=round(COARSE.value)
    )
    return found, machine, levels


def figure_11() -> Iterator[Cell]:
    """End-to-end speedups."""
    for policy, simulator, algorithm in itertools.product(
        ("pi0.5", "OpenVLA-OFT", "GR00T"), ("LIBERO", "ManiSkill"), ("PPO", "GRPO")
    ):
        yield Cell(
            "Fig. 11",
            f"{policy}, {simulator}, {algorithm}: speedup",
            None,
            None,
            "missing",
            "x",
            note="inputs not published (phase durations per platform); the paper's 12 cells span "
            "1.20 to 1.92",
        )


def figure_14() -> Iterator[Cell]:
    """What graph, MPS, quota and rounds contribute."""
    inputs = (MPS_SPEEDUP, QUOTA_SPEEDUP, SLICED, SAME_PAIR, POLICY, SIMULATOR)
    ours = graph_only(MPS_SPEEDUP.value, QUOTA_SPEEDUP.value)
    half = 0.005  # of the last digit printed
    rounded = [
        graph_only(MPS_SPEEDUP.value + a, QUOTA_SPEEDUP.value + b)
        for a, b in itertools.product((-half, half), repeat=2)
    ]
    yield Cell(
        "Fig. 14a",
        "graph alone (time slicing): speedup",
        1.08,
        ours,
        "predicted",
        "x",
        0.03,
        inputs,
        f"the pair's share of the iteration is inferred from the other two bars; with their rounding "
        f"{min(rounded):.3f} to {max(rounded):.3f}",
    )
    for what, value in (("graph and MPS", MPS_SPEEDUP), ("graph, MPS and quota", QUOTA_SPEEDUP)):
        yield Cell(
            "Fig. 14a",
            f"{what}: speedup",
            value.value,
            None,
            "missing",
            "x",
            note="inputs not published (the rest of the iteration); used as input above",
        )
    yield Cell(
        "Fig. 14b",
        "share of round 1 in the time saved",
        0.61,
        None,
        "missing",
        note="inputs not published; live, GraphSearchResult.gain_shares tells it",
    )


def graph_only(mps: float, quota: float) -> float:
    """Speedup with time slicing, from those with MPS and with MPS and quota.

    An iteration is the pair and a rest that no quota changes; both are known in units of the pair
    once two of the bars are.
    """
    curve = pair()
    mps_ns, quota_ns = curve.completion_ns(1.0), curve.completion_ns(0.91)
    native_ns = (mps_ns - quota_ns) / (1 / mps - 1 / quota)
    rest_ns = native_ns / mps - mps_ns
    sliced_ns = max(together(POLICY.value * S, SIMULATOR.value * S, TIME_SLICED, TIME_SLICED))
    return native_ns / (rest_ns + sliced_ns)


def figure_15() -> Iterator[Cell]:
    """The U-shape that Algorithm 2 walks."""
    levels = expected_levels(DEVICE_SMS)
    turning = Input("turning point", 95, "%", "inferred", "the ticks of Fig. 15, pi0.5")
    found = _valley(51, levels)
    ticks = (100, 95, 89, 93, 97)  # published: order and labels of the trials of pi0.5
    for tick, (paper, trial) in enumerate(
        itertools.zip_longest(ticks, (t.level.percent for t in found.trials)), 1
    ):
        yield Cell(
            "Fig. 15",
            f"pi0.5, trial {tick}",
            paper,
            trial,
            "calibrated",
            "%",
            0,
            (COARSE, LEVELS, turning),
            ""
            if tick > 1
            else "step and turning point were read from these ticks; all five follow",
        )
    worst = max((_valley(k, levels) for k in range(44, 55)), key=lambda done: len(done.trials))
    fig10, _, _ = figure_10_search()
    for what, done in (
        ("most trials for a turning point of 81 to 100 %", worst),
        ("trials on the pair of Fig. 10", fig10),
    ):
        yield Cell(
            "Fig. 15",
            what,
            10,
            len(done.trials),
            "predicted",
            "",
            0,
            (COARSE, LEVELS),
            f"found {done.best.percent} %; at most ten are asked for, the paper gives no limit",
            at_most=True,
        )


@dataclass(slots=True)
class _Valley:
    """H(k) with one turning point, steeper below it."""

    best: int

    def completion_ns(self, level: QuotaLevel) -> int:
        away = level.k - self.best
        return 1_000_000 + (away if away > 0 else -3 * away) * 10_000

    def iteration_ns(self, level: QuotaLevel) -> int:
        return self.completion_ns(level)


def _valley(best: int, levels: tuple[QuotaLevel, ...]) -> QuotaSearchResult:
    return search_quota(_Valley(best), levels, 10**12, coarse_step=round(COARSE.value))


def _ticks(found: QuotaSearchResult) -> str:
    return ", ".join(str(trial.level.percent) for trial in found.trials)
