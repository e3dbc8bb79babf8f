"""The plan: data that asks for overlap. Free of solver and database, so that the executor can load it.

A plan is JSON with a JSON Schema (``schemas/plan.schema.json``), the same bytes for the same trace and
settings. It never overrides legality: `verify` rechecks it, and the executor enforces every dependency
while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rose_opt.plan import codec
from rose_opt.plan.errors import PlanError
from rose_opt.plan.hierarchy import Hierarchy, PlanComponent, PlanEdge, PlanNode
from rose_opt.plan.refusal import Refusal
from rose_opt.plan.transformation import Transformation
from rose_opt.plan.workers import Lane, Order, PhaseThreads, WorkerSpec

MAX_BYTES = 1 << 28  # ours: a larger file is no plan


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the models expect; measurement decides.

    Attributes:
        native_ns: Native iteration [ns].
        iteration_ns: Planned iteration [ns].
        lower_bound_ns: No legal plan with these workers can be faster [ns].
        gap: ``1 - lower_bound_ns / iteration_ns`` [fraction].
        bound_by: What makes the bound, in a few words, e.g. ``engine sim[0/2]``; empty where not known.
    """

    native_ns: int
    iteration_ns: int
    lower_bound_ns: int
    gap: float
    bound_by: str = ""


@dataclass(frozen=True, slots=True)
class AlternativeRecord:
    """A ranked composition of transforms and its predicted iteration time [ns]."""

    transforms: tuple[str, ...]
    predicted_ns: int
    lower_bound_ns: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the executor needs, and the evidence behind it.

    Attributes:
        rose_version: Version that made the plan.
        graph_fingerprint: Fingerprint of the recorded graph.
        nodes: Nodes in program order of first appearance.
        components: Component instances.
        edges: Data edges that the legality of a rewire rests on.
        transforms: Transforms in order, in text form.
        rows: Batch rows of each split loop, by path.
        workers: Workers and their residents.
        threads: Intra-op threads where they differ from the native count.
        cores: CPU cores the plan may use at once; 0 for no limit.
        core_demand: Cores one invocation occupies, by path; 1 where absent.
        orders: Cyclic order per worker.
        lanes: Nodes whose device work has a stream of its own; composites around them are opened.
        predicted: Expected times.
        alternatives: Ranked compositions, best first.
        refusals: What was refused and why.
        settings: Settings of the search.
        kept_native: Whether the native order is the plan.
        reason: Why the native order was kept, or what is gained.
        equivalence: ``exact`` (bit for bit), ``reassociated`` (equal up to floating-point reassociation)
            or ``unverified`` (a split whose rows were never compared with the whole batch).
        notes: What the predictions rest on, in words.
    """

    rose_version: str
    graph_fingerprint: str
    nodes: tuple[PlanNode, ...]
    components: tuple[PlanComponent, ...] = ()
    edges: tuple[PlanEdge, ...] = ()
    transforms: tuple[Transformation, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    workers: tuple[WorkerSpec, ...] = ()
    threads: tuple[PhaseThreads, ...] = ()
    cores: float = 0.0
    core_demand: Mapping[str, float] = field(default_factory=dict[str, float])
    orders: tuple[Order, ...] = ()
    lanes: tuple[Lane, ...] = ()
    predicted: Predicted = field(default_factory=lambda: Predicted(0, 0, 0, 0.0))
    alternatives: tuple[AlternativeRecord, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    kept_native: bool = False
    reason: str = ""
    equivalence: str = "exact"
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The plan in one line: its transforms and lanes."""
        lanes = " | ".join(f"{lane.name} {lane.sms or 'all'} SMs" for lane in self.lanes)
        parts = [*map(str, self.transforms), *([f"lanes({lanes})"] if lanes else [])]
        return ",".join(parts) or "native order"

    @property
    def hierarchy(self) -> Hierarchy:
        """What legality is decided from."""
        return Hierarchy(self.nodes, self.components, self.edges)

    def node(self, path: str) -> PlanNode:
        """The node at `path`; `PlanRefused` if there is none."""
        return self.hierarchy.node(path)

    def component(self, name: str) -> PlanComponent | None:
        """The component instance called `name`, if the plan knows it."""
        return self.hierarchy.component(name)

    def subtree(self, path: str) -> tuple[PlanNode, ...]:
        """The node at `path` and everything below it."""
        return self.hierarchy.subtree(path)

    def splits(self) -> dict[str, int]:
        """Number of groups of every spatially split loop, by path."""
        return {
            t["loop"]: t.integer("groups") for t in self.transforms if t.name == "split-spatial"
        }

    def chains(self) -> dict[str, int]:
        """Number of chains of every temporally split loop, by path."""
        return {
            t["loop"]: t.integer("groups") for t in self.transforms if t.name == "split-temporal"
        }

    def rewires(self) -> tuple[tuple[str, str], ...]:
        """Pairs ``(node, beside)``: `node` may run while the earlier `beside` still does."""
        return tuple((t["node"], t["beside"]) for t in self.transforms if t.name == "rewire")

    def to_json(self) -> str:
        """Canonical JSON: the same plan gives the same bytes."""
        return codec.encode(self)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @staticmethod
    def from_json(text: str, source: str = "plan") -> Plan:
        """Read a plan.

        Args:
            text: JSON.
            source: What messages call it.

        Returns:
            The plan; `PlanError` if the text is no plan of this version.
        """
        return codec.decode(text, source)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan file.

        Raises:
            PlanError: If the file is missing or no plan of this version.
        """
        try:
            size_bytes = Path(path).stat().st_size
            if size_bytes > MAX_BYTES:
                raise PlanError(
                    f"{path}: expected a plan file of at most {MAX_BYTES} bytes, got {size_bytes}. Pass what "
                    "'rose-opt plan' wrote."
                )
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(
                f"{path}: expected a plan file, got {error}. Make one with 'rose-opt plan'."
            ) from None
        return Plan.from_json(text, str(path))
