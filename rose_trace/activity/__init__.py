"""Where activity samples come from: one file per source, one protocol, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rose_trace.activity.cpu import CpuUtilisation
from rose_trace.activity.gpm import Gpm
from rose_trace.activity.kernels import ONLY_ASKED, Kernels
from rose_trace.activity.pm_sampling import PmSampling
from rose_trace.activity.utilisation import NvmlUtilisation

Sample = tuple[str, str, int, int, float, bool]
"""Source, device, start and end [Unix ns], activity [fraction, 0..1], estimate."""


class ActivitySource(Protocol):
    """Something that samples how busy a device is.

    Attributes:
        name: Name in the ``source`` column.
        resolution_ns: Its samples mean nothing finer than this [ns].
        estimate: Whether activity is derived rather than measured.
    """

    name: str
    resolution_ns: int
    estimate: bool

    def start(self, write: Callable[[Sample], None]) -> None:
        """Begin sampling; `write` may be called from any thread."""
        ...

    def stop(self) -> None:
        """Write what is left and stop."""
        ...


@dataclass(frozen=True, slots=True)
class Known:
    """A source by name.

    Attributes:
        name: Name in the ``source`` column and in ``record(activity=…)``.
        unavailable: Why it cannot work here; ``None`` where it can.
        make: Makes one.
        only_asked: Why ``auto`` passes it over; ``None`` where it does not.
    """

    name: str
    unavailable: Callable[[], str | None]
    make: Callable[[], ActivitySource]
    only_asked: str | None = None


SOURCES: tuple[Known, ...] = (
    Known("pm-sampling", PmSampling.unavailable, PmSampling),
    Known("gpm", Gpm.unavailable, Gpm),
    Known("kernels", Kernels.unavailable, Kernels, only_asked=ONLY_ASKED),
    Known("nvml-utilisation", NvmlUtilisation.unavailable, NvmlUtilisation),
    Known("cpu", CpuUtilisation.unavailable, CpuUtilisation),
)
"""Best first."""


def choose(name: str) -> tuple[ActivitySource | None, dict[str, Any]]:
    """The source to use, and what the trace says about the choice.

    Args:
        name: ``auto`` for the best that works, ``none``, or the name of one.

    Returns:
        The source, not yet started, and its description: name, resolution, estimate, and why better
        ones were rejected.

    Raises:
        ValueError: If the name is unknown, or the named source does not work here.
    """
    if name == "none":
        return None, {"source": "none", "rejected": {}}
    if name != "auto" and name not in [known.name for known in SOURCES]:
        raise ValueError(
            f"record(activity={name!r}): expected auto, none or one of "
            f"{', '.join(known.name for known in SOURCES)}, got another name. Choose one of these."
        )
    rejected: dict[str, str] = {}
    for known in SOURCES:
        if name not in ("auto", known.name):
            continue
        reason = known.only_asked if name == "auto" else None
        reason = reason or known.unavailable()
        if reason is None:
            source = known.make()
            return source, {
                "source": source.name,
                "resolution_ns": source.resolution_ns,
                "estimate": source.estimate,
                "rejected": rejected,
            }
        rejected[known.name] = reason
    if name != "auto":
        raise ValueError(
            f"record(activity={name!r}): expected a source that works here, got: {rejected[name]}. Use 'auto'."
        )
    return None, {"source": "none", "rejected": rejected}
