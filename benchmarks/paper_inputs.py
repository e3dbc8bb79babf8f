"""What the simulated figures start from, and what a simulated number is.

A cell is *predicted* if the paper's number enters none of its inputs, *calibrated* if contention or a
parameter was taken from the very run that it repeats (then it only shows that the model can hold the
run), and *missing* where the inputs were not published: nothing is made up for those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rose_opt.simulator.pair import TIME_SLICED, PairCurve, side_by_side

S = 1e9
DEVICE_SMS = 108  # published: A800

Provenance = Literal["published", "inferred", "measured by us"]
Kind = Literal["predicted", "calibrated", "missing"]


@dataclass(frozen=True, slots=True)
class Input:
    """One number that a cell starts from."""

    name: str
    value: float
    unit: str
    provenance: Provenance
    source: str


POLICY = Input("policy alone", 2.632, "s", "published", "Table 1, ManiSkill")
SIMULATOR = Input("simulator alone", 4.981, "s", "published", "Table 1, ManiSkill")
SERIAL = Input("one after the other", 7.673, "s", "published", "Table 1, ManiSkill")
POLICY_100 = Input("policy beside, no quota", 2.661, "s", "published", "Table 1, ManiSkill, MPS")
SIMULATOR_100 = Input(
    "simulator beside, no quota", 7.192, "s", "published", "Table 1, ManiSkill, MPS"
)
POLICY_91 = Input("policy beside at 91 %", 5.563, "s", "published", "Fig. 10")
SIMULATOR_91 = Input("simulator beside at 91 %", 5.716, "s", "published", "Fig. 10")
POLICY_91_ALONE = Input(
    "policy alone at 91 %", 2.632 / 0.91, "s", "inferred", "slows down with its share of SMs"
)
COARSE = Input("coarse step", 3, "levels", "inferred", "fits the ticks of Fig. 15")
LEVELS = Input("levels", 54, "", "inferred", "108 SMs, handed out in twos")
SLICED = Input("loss while taking turns", TIME_SLICED, "", "published", "Fig. 4: 1 - share")
MPS_SPEEDUP = Input("speedup, graph and MPS", 1.12, "", "published", "Fig. 14a")
QUOTA_SPEEDUP = Input("speedup, graph, MPS and quota", 1.29, "", "published", "Fig. 14a")
SAME_PAIR = Input("pair of Fig. 14a", 1, "", "inferred", "the pair of Table 1 and Fig. 10")


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of the paper beside ours.

    Attributes:
        where: Table or figure.
        what: The quantity.
        paper: The paper's number; ``None`` where it gives none.
        ours: Ours; ``None`` where the inputs are missing.
        kind: How ours came about.
        unit: Unit of both.
        tolerance: Largest accepted difference, absolute; ``None`` for no comparison.
        at_most: Whether `paper` is a limit that ours must keep instead.
        inputs: What it starts from.
        note: What to know.
    """

    where: str
    what: str
    paper: float | None
    ours: float | None
    kind: Kind
    unit: str = ""
    tolerance: float | None = None
    inputs: tuple[Input, ...] = ()
    note: str = ""
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether ours is close enough; ``None`` without a comparison."""
        if self.paper is None or self.ours is None or self.tolerance is None:
            return None
        if self.at_most:
            return self.ours <= self.paper
        return abs(self.paper - self.ours) <= self.tolerance


def pair() -> PairCurve:
    """The policy under a quota beside the simulator of Table 1 and Fig. 10."""
    at_91 = side_by_side(
        0.91,
        POLICY_91_ALONE.value * S,
        SIMULATOR.value * S,
        POLICY_91.value * S,
        SIMULATOR_91.value * S,
    )
    at_100 = side_by_side(
        1.0, POLICY.value * S, SIMULATOR.value * S, POLICY_100.value * S, SIMULATOR_100.value * S
    )
    return PairCurve(SIMULATOR.value * S, (at_91, at_100))
