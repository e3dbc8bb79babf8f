"""What a person may ask of the planner."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Bits = Literal["exact", "any"]


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Settings of the search; the same settings and trace give the same plan.

    Attributes:
        cores: CPU cores the program may use at once [cores]; ``None`` for those of this machine.
        max_groups: Most groups of a split, at least 2.
        min_gain: Predicted gain below which the native order is kept, epsilon [fraction].
        bits: ``exact`` refuses splits whose rows were seen to differ from the whole batch; ``any``
            accepts results that are equal up to floating-point reassociation.
        dispatch_ns: Cost of handing one invocation to a worker process [ns].
        transforms: A composition to use instead of searching, in text form; still checked.
    """

    cores: float | None = None
    max_groups: int = 4  # ours
    min_gain: float = 0.05  # ours
    bits: Bits = "exact"
    dispatch_ns: int = 300_000  # ours: a resident tensor to a worker process and its result back
    transforms: str | None = None

    def __post_init__(self) -> None:
        if self.cores is not None and self.cores <= 0:
            raise ValueError(
                f"PlanSettings: expected cores > 0, got {self.cores}. Give the machine's core count."
            )
        if self.max_groups < 2:
            raise ValueError(
                f"PlanSettings: expected max_groups >= 2, got {self.max_groups}. Use 2 or more."
            )
        if not 0 <= self.min_gain < 1:
            raise ValueError(
                f"PlanSettings: expected min_gain in 0..1, got {self.min_gain}. Use e.g. 0.05."
            )
        if self.dispatch_ns < 0:
            raise ValueError(
                f"PlanSettings: expected dispatch_ns >= 0, got {self.dispatch_ns}. Use e.g. 300000."
            )

    def to_data(self) -> dict[str, Any]:
        """Plain data for the plan."""
        return asdict(self)
