"""Measured variants of nodes: other thread counts, parts of the batch, shards.

They come from ``trace.probes.parquet``, which the executor writes when asked to try parts of the
recorded work.

Paper: §4.3.2 (estimates of split nodes, here measured).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rose_opt.facts.store import Store
from rose_trace.records import NodePath


@dataclass(frozen=True, slots=True)
class Probe:
    """One measured way of running a node.

    Attributes:
        path: The node.
        variant: ``whole``, ``part`` (1/groups of the rows on the whole component) or ``shard`` (on a
            component built with 1/groups of the rows).
        groups: Parts; 1 for the whole batch.
        threads: Intra-op threads.
        count: Measurements.
        duration_ns: Lower quartile of the durations [ns]: disturbances only add.
        cpu_ns: Lower quartile of the CPU times [ns]; ``None`` if unknown.
        identical: Whether all rows were bit-identical to the native result; ``None`` if not compared.
    """

    path: NodePath
    variant: Literal["whole", "part", "shard"]
    groups: int
    threads: int
    count: int
    duration_ns: int
    cpu_ns: int | None
    identical: bool | None

    @property
    def cores_used(self) -> float | None:
        """CPU time over duration [cores]."""
        return None if self.cpu_ns is None else self.cpu_ns / max(self.duration_ns, 1)


def read_probes(store: Store) -> tuple[Probe, ...]:
    """Probes beside the trace, by path, variant, groups and threads; empty where there are none.

    Args:
        store: Database over the trace.

    Returns:
        One probe per measured variant.
    """
    file = store.beside("probes")
    if file is None:
        return ()
    return tuple(Probe(**row) for row in store.run("probes", probes=str(file)))
