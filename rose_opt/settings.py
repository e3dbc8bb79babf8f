"""What a person may ask of the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Bits = Literal["exact", "any"]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a plan may occupy, M. A whole further instance of a component costs what the component takes.

    Attributes:
        max_instances: Most whole instances of one component, at least 1: every chain of a temporal split
            has one.
        gpu_bytes: Memory of each GPU [bytes]; ``None`` where it does not matter.
        host_bytes: Memory of the host [bytes]; ``None`` where it does not matter.
        margin: Share of either that stays free [fraction].
        gpu_peak_bytes: Most that the native program occupies of a GPU [bytes].
        host_peak_bytes: Most that the native program occupies of the host [bytes].
        component_gpu_bytes: GPU memory of one whole instance, by component [bytes].
        component_host_bytes: Host memory of one whole instance, by component [bytes].
    """

    max_instances: int = 1  # ours: nobody knows what a second simulator takes until told
    gpu_bytes: int | None = None
    host_bytes: int | None = None
    margin: float = 0.1  # ours
    gpu_peak_bytes: int = 0
    host_peak_bytes: int = 0
    component_gpu_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    component_host_bytes: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        if self.max_instances < 1:
            raise ValueError(
                f"Memory: expected max_instances >= 1, got {self.max_instances}. Use 1 for no replicas."
            )
        if not 0 <= self.margin < 1:
            raise ValueError(f"Memory: expected margin in 0..1, got {self.margin}. Use e.g. 0.1.")


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
        max_targets: Targets that candidates are generated for, K, the most promising windows first;
            ``None`` for every leaf.
        max_alternatives: Candidates kept per target, L.
        activity_slack: How much the SM activities of a target and its partner may exceed 1 together
            [fraction].
        memory: What a plan may occupy, M.
    """

    cores: float | None = None
    max_groups: int = 4  # ours
    min_gain: float = 0.05  # ours
    bits: Bits = "exact"
    dispatch_ns: int = 300_000  # ours: a resident tensor to a worker process and its result back
    transforms: str | None = None
    max_targets: int | None = None
    max_alternatives: int = 4  # ours: the paper gives no L
    activity_slack: float = 0.2  # ours
    memory: Memory = field(default_factory=Memory)

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
        if self.max_alternatives < 1 or (self.max_targets or 1) < 1:
            raise ValueError(
                f"PlanSettings: expected max_targets and max_alternatives >= 1, got {self.max_targets} and "
                f"{self.max_alternatives}. Use 1 or more."
            )
        if self.activity_slack < 0:
            raise ValueError(
                f"PlanSettings: expected activity_slack >= 0, got {self.activity_slack}. Use e.g. 0.2."
            )
        if self.dispatch_ns < 0:
            raise ValueError(
                f"PlanSettings: expected dispatch_ns >= 0, got {self.dispatch_ns}. Use e.g. 300000."
            )

    def to_data(self) -> dict[str, Any]:
        """Plain data for the plan."""
        return asdict(self)
