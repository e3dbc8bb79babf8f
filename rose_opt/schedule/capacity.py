"""What a phase asks of the machine, and what the machine has.

Order is semantic, capacity is not: cores, SMs and memory only forbid that too much runs at
once. The solver, the bounds and the exported orders all use the same whole units, rounded so
that a plan never asks for more than the machine has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RESOURCES = ("cores", "sms", "memory")
"""Order of the resources in every `Units` tuple: centicores, SMs, mebibytes."""

Units = tuple[int, int, int]
Limits = tuple[int | None, int | None, int | None]

_CENTICORES = 100
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of running a phase.

    Args:
        duration_ns: Duration with nothing else running [ns, >= 1].
        cores: CPU cores kept busy while it runs [cores, >= 0]; fractions are allowed.
        sms: SMs kept busy while it runs [SMs, >= 0].
        threads: Threads that the worker uses in this mode, for the plan; None keeps the worker's.
        label: Name of the mode in `explain`.
        memory_bytes: Memory held while it runs, beyond what is always resident [bytes, >= 0].

    Raises:
        ValueError: If a quantity is out of range.
    """

    duration_ns: int
    cores: float = 0.0
    sms: int = 0
    threads: int | None = None
    label: str = ""
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        if self.duration_ns < 1:
            raise ValueError(
                f"Mode({self.label!r}): expected duration_ns >= 1, got {self.duration_ns}. "
                "Leave phases that take no time out of the problem."
            )
        for name in ("cores", "sms", "memory_bytes"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(
                    f"Mode({self.label!r}): expected {name} >= 0 and finite, got {value}. "
                    "Give the demand of this phase when it runs alone."
                )

    def units(self) -> Units:
        """Return the demand in whole units, rounded up (see `RESOURCES`).

        >>> Mode(5, cores=0.333, sms=4, memory_bytes=1).units()
        (34, 4, 1)
        """
        centicores = math.ceil(round(self.cores * _CENTICORES, 6))
        return centicores, self.sms, -(-self.memory_bytes // _MEBIBYTE)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the machine has; None means that the resource is not limited.

    Args:
        cores: CPU cores [cores].
        sms: SMs of the device [SMs]. None where contention (kappa) describes co-running instead.
        memory_bytes: Memory beyond what is always resident [bytes].
    """

    cores: float | None = None
    sms: int | None = None
    memory_bytes: int | None = None

    def units(self) -> Limits:
        """Return the limits in whole units, rounded down (see `RESOURCES`).

        >>> Capacity(cores=2).units()
        (200, None, None)
        """
        return (
            None if self.cores is None else math.floor(round(self.cores * _CENTICORES, 6)),
            self.sms,
            None if self.memory_bytes is None else self.memory_bytes // _MEBIBYTE,
        )


def within(demands: list[Units], limits: Limits) -> bool:
    """Return whether all `demands` can be served at once.

    >>> within([(100, 0, 0), (150, 0, 0)], (200, None, None))
    False
    """
    return all(
        limit is None or sum(demand[axis] for demand in demands) <= limit
        for axis, limit in enumerate(limits)
    )
