"""What a person may ask of the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Bits = Literal["exact", "any"]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a plan may occupy, M.

    A whole further instance of a component takes what is said of it. Where nothing is said, it takes at
    most what the whole native program does.

    Attributes:
        max_instances: Most whole instances of one component, at least 1: every chain of a temporal split
            has one. ``None`` for as many as the memory has room for, and 1 where that is not known.
        gpu_bytes: Memory of each GPU [bytes]; ``None`` where it does not matter.
        host_bytes: Memory of the host [bytes]; ``None`` where it does not matter.
        margin: Share of either that stays free [fraction].
        gpu_peak_bytes: Most that the native program occupies of a GPU [bytes].
        host_peak_bytes: Most that the native program occupies of the host [bytes].
        component_gpu_bytes: GPU memory of one whole instance, by component [bytes].
        component_host_bytes: Host memory of one whole instance, by component [bytes].
    """

    max_instances: int | None = None
    gpu_bytes: int | None = None
    host_bytes: int | None = None
    margin: float = 0.1  # ours
    gpu_peak_bytes: int = 0
    host_peak_bytes: int = 0
    component_gpu_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    component_host_bytes: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        if self.max_instances is not None and self.max_instances < 1:
            raise ValueError(
                f"Memory: expected max_instances >= 1, got {self.max_instances}. Use 1 for no replicas."
            )
        if not 0 <= self.margin < 1:
            raise ValueError(f"Memory: expected margin in 0..1, got {self.margin}. Use e.g. 0.1.")

    def measured(self, told: Mapping[str, int]) -> Memory:
        """The same with what a trace tells of the machine and of the native program, where nothing is said.

        Args:
            told: ``host_bytes``, ``host_peak_bytes``, ``gpu_bytes`` and ``gpu_peak_bytes``, as far as known.
        """
        return replace(
            self,
            gpu_bytes=told.get("gpu_bytes") if self.gpu_bytes is None else self.gpu_bytes,
            host_bytes=told.get("host_bytes") if self.host_bytes is None else self.host_bytes,
            gpu_peak_bytes=self.gpu_peak_bytes or told.get("gpu_peak_bytes", 0),
            host_peak_bytes=self.host_peak_bytes or told.get("host_peak_bytes", 0),
        )

    @property
    def known(self) -> bool:
        """Whether it is known what there is and what the native program takes."""
        return bool(self.host_bytes and self.host_peak_bytes)

    @property
    def most_instances(self) -> int | None:
        """Most whole instances of one component; ``None`` where memory alone decides."""
        return 1 if self.max_instances is None and not self.known else self.max_instances

    def shortage(
        self, replicas: Mapping[str, int], gpu_copies_bytes: int = 0, host_copies_bytes: int = 0
    ) -> str | None:
        """What does not fit, or nothing.

        Args:
            replicas: Number of whole instances, by component.
            gpu_copies_bytes: What private copies take of a GPU [bytes].
            host_copies_bytes: What private copies take of the host [bytes].

        Returns:
            What was expected and what is needed, in words.
        """
        gpu, host = gpu_copies_bytes, host_copies_bytes
        for what, limit, peak, sizes, copies in (
            ("GPU", self.gpu_bytes, self.gpu_peak_bytes, self.component_gpu_bytes, gpu),
            ("host", self.host_bytes, self.host_peak_bytes, self.component_host_bytes, host),
        ):
            unknown = (
                peak if self.max_instances is None else 0
            )  # who gives a number knows that it fits
            added = (sizes.get(name, unknown) * (n - 1) for name, n in replicas.items() if n > 1)
            needed = peak + sum(added) + copies
            if limit is not None and (replicas or copies) and needed > limit * (1 - self.margin):
                allowed = round(limit * (1 - self.margin))
                return f"expected at most {allowed} bytes of {what} memory, got {needed}"
        return None


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

    def measured(self, told: Mapping[str, int]) -> PlanSettings:
        """The same with what a trace tells of memory, where nothing is said; see `Memory.measured`."""
        return replace(self, memory=self.memory.measured(told))

    def to_data(self) -> dict[str, Any]:
        """Plain data for the plan."""
        return asdict(self)
