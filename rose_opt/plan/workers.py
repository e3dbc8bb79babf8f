"""Where a plan runs things: workers and their residents, threads, and the order of each worker."""

from __future__ import annotations

from dataclasses import dataclass

from rose_opt.plan.private_rules import private_state


@dataclass(frozen=True, slots=True)
class Resident:
    """A component, one shard of it, one replica of it, or a private copy of it, in a worker.

    Attributes:
        component: Instance name.
        shard: Which shard.
        shards: Shards that the component is built as; 1 for whole.
        replica: Which replica.
        replicas: Whole instances that the component is built as; 1 for one.
        private: Path of the readers that this is a private copy for; empty for the component itself.
    """

    component: str
    shard: int = 0
    shards: int = 1
    replica: int = 0
    replicas: int = 1
    private: str = ""

    def __str__(self) -> str:
        if self.private:
            return private_state(self.component, self.private)
        if self.replicas > 1:
            return f"{self.component}@{self.replica}/{self.replicas}"
        return (
            self.component if self.shards == 1 else f"{self.component}[{self.shard}/{self.shards}]"
        )


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker.

    Attributes:
        name: Unique name.
        kind: ``inline`` (a thread of the program's process) or ``process``.
        residents: What lives there.
        percent: SMs that a process may use of a GPU it shares by MPS [%, 1..100]; 0 for no limit.
    """

    name: str
    kind: str
    residents: tuple[Resident, ...] = ()
    percent: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream of its own for the device work of one node, beside the other lanes of its worker.

    Attributes:
        path: Path of a leaf that only reads states.
        name: Name; nodes of one lane run one after the other on the device.
        sms: SMs its work may use where groups overlap; 0 for all.
    """

    path: str
    name: str
    sms: int = 0


@dataclass(frozen=True, slots=True)
class PhaseThreads:
    """Intra-op threads of a node on part of the batch or on the whole of it.

    Attributes:
        path: Node path.
        threads: Intra-op threads.
        grouped: Whether this is about the node inside a split.
    """

    path: str
    threads: int
    grouped: bool


@dataclass(frozen=True, slots=True)
class OrderStep:
    """One place in a worker's cyclic order: node, group and iteration distance."""

    path: str
    group: int
    distance: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """Cyclic order of a worker in the steady state: which ready invocation goes first."""

    worker: str
    cycle: tuple[OrderStep, ...]
