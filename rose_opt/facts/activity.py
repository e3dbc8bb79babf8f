"""Where activity comes from: the source, its devices, and how fine it is.

A number never claims to be finer than its source.

Paper: §4.2, "SM activity".
"""

from __future__ import annotations

from dataclasses import dataclass

from rose_opt.facts.hierarchy import FactsError
from rose_opt.facts.store import Store

SOURCES = ("pm-sampling", "kernels", "gpm", "nvml-utilisation", "cpu")
"""Sources from best to worst; the best one that was recorded is used."""

FLOOR_NS = {"gpm": 100_000_000, "nvml-utilisation": 100_000_000}
"""How often the counters behind a source refresh at most, however often they are read [ns]."""

MEANING = {
    "pm-sampling": "SM activity",
    "kernels": "SM activity estimated from kernel grids",
    "gpm": "SM activity",
    "nvml-utilisation": "share of time with any kernel running, not SM activity",
    "cpu": "share of all CPU cores that are busy",
}


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity samples that windows are judged by.

    Attributes:
        source: Name of the source.
        devices: Devices sampled.
        sample_ns: Median length of a sample [ns].
        resolution_ns: Shortest time that one value describes [ns].
        estimate: Whether values are derived rather than measured.
        samples: Number of samples.
    """

    source: str
    devices: tuple[str, ...]
    sample_ns: int
    resolution_ns: int
    estimate: bool
    samples: int

    @property
    def meaning(self) -> str:
        """What the values are, in words."""
        return MEANING.get(self.source, self.source)


def load_activity(store: Store, source: str | None = None) -> Activity | None:
    """Load the samples of one source and say which device each process uses.

    Args:
        store: Database with the hierarchy loaded; gets the tables ``track``, ``measured`` (its view
            ``sample`` is activity alone) and ``process_device``.
        source: Source to use; by default the best one recorded.

    Returns:
        What was loaded; ``None`` where the trace has no samples.

    Raises:
        FactsError: If the source asked for was not recorded.
    """
    file = store.beside("activity")
    rows = [] if file is None else store.run("activity", activity=str(file))
    recorded = {row["source"] for row in rows}
    if source is not None and source not in recorded:
        raise FactsError(
            f"{store.spans}: expected samples of {source!r}, got {', '.join(sorted(recorded)) or 'none'}. "
            "Choose a recorded source."
        )
    if not rows:
        return None
    order = {name: rank for rank, name in enumerate(SOURCES)}
    chosen = source or min(recorded, key=lambda name: (order.get(name, len(order)), name))
    rows = [row for row in rows if row["source"] == chosen]
    devices = tuple(row["device"] for row in rows)
    store.run("samples", source=chosen)
    store.fill(
        "process_device", "process_id INTEGER, device VARCHAR", _process_devices(store, devices)
    )
    sample_ns = max(row["sample_ns"] for row in rows)
    return Activity(
        source=chosen,
        devices=devices,
        sample_ns=sample_ns,
        resolution_ns=max(sample_ns, FLOOR_NS.get(chosen, 0)),
        estimate=any(row["estimate"] for row in rows),
        samples=sum(row["samples"] for row in rows),
    )


def _process_devices(store: Store, devices: tuple[str, ...]) -> list[tuple[int, str]]:
    """The sampled device that most results of each process live on; the first where none does."""
    used: dict[int, str] = {}
    first = min(devices)
    if len(devices) > 1:
        for row in store.run("process_devices"):
            if row["device"] in devices:
                used.setdefault(row["process_id"], row["device"])
    return [
        (row["process_id"], used.get(row["process_id"], first)) for row in store.run("processes")
    ]
