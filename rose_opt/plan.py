"""The plan: data that asks for overlap. Free of solver and database, so that the executor can load it.

A plan is JSON with a JSON Schema (``schemas/plan.schema.json``), the same bytes for the same trace and
settings. It never overrides legality: `verify` rechecks it, and the executor enforces every dependency
while it runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rose_trace.legality import AccessSet, RowRange, first_conflict, partition, union_all
from rose_trace.records import Access, StateAccess

PLAN_VERSION = 1


class PlanError(ValueError):
    """A plan that cannot be read: wrong file, wrong version, or broken content."""


class PlanRefused(ValueError):
    """A plan that must not run: an illegal overlap, or code that it was not made for."""


@dataclass(frozen=True, slots=True)
class Transformation:
    """One transform in its text form, e.g. ``split-spatial{loop=iteration/rollout/interact groups=2}``.

    Attributes:
        name: Transform name.
        arguments: Argument names and values, in the order they are printed.
    """

    name: str
    arguments: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        return f"{self.name}{{{' '.join(f'{key}={value}' for key, value in self.arguments)}}}"

    def __getitem__(self, key: str) -> str:
        for name, value in self.arguments:
            if name == key:
                return value
        raise PlanError(
            f"{self}: expected argument {key}, got {', '.join(k for k, _ in self.arguments) or 'none'}."
        )

    @staticmethod
    def parse(text: str) -> Transformation:
        """Inverse of ``str``.

        >>> str(Transformation.parse("rewire{node=iteration/learn beside=iteration/rollout}"))
        'rewire{node=iteration/learn beside=iteration/rollout}'
        """
        match = re.fullmatch(r"([a-z-]+)(?:\{([^{}]*)\})?", text.strip())
        if match is None:
            raise PlanError(
                f"Transform {text!r}: expected name{{key=value …}}, got something else. See docs/plan.md."
            )
        pairs = [item.partition("=") for item in (match[2] or "").split()]
        return Transformation(match[1], tuple((key, value) for key, _, value in pairs))


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One node of the execution hierarchy, as the plan relies on it.

    Attributes:
        path: Node path.
        name: Name with its component, e.g. ``policy.act``.
        key: Definition, ``module:qualname``.
        kind: ``exec``, ``loop`` or ``iteration``.
        fingerprint: Fingerprint of the definition.
        component: Instance name; empty for a function.
        composite: Whether its body calls other nodes.
        rows: As declared.
        accesses: Own declared accesses.
        opaque: A leaf without a declaration, or one seen to touch more than it declared.
        generators: Process-wide random generators it was seen to draw from (they are states).
        structure: JSON of the result's structure; ``None`` where it varied, then the value is waited for.
        count: Iterations of a loop; ``None`` where it varied.
    """

    path: str
    name: str
    key: str
    kind: str
    fingerprint: str
    component: str = ""
    composite: bool = False
    rows: bool | tuple[str, ...] = False
    accesses: tuple[Access, ...] = ()
    opaque: bool = False
    generators: tuple[str, ...] = ()
    structure: str | None = None
    count: int | None = None

    @property
    def access_set(self) -> AccessSet:
        """Own accesses, including generators."""
        extra = tuple(Access(f"generator.{name}", StateAccess.UPDATE) for name in self.generators)
        return AccessSet(self.accesses + extra, self.opaque)


@dataclass(frozen=True, slots=True)
class PlanComponent:
    """A component instance and how it was declared.

    Attributes:
        name: Instance name.
        key: ``module:qualname`` of the class.
        batch_states: States of which one row belongs to one row of the batch.
        shardable: Whether it can be built as shards.
        shards: Shards it is built as in this plan; 1 for whole.
    """

    name: str
    key: str
    batch_states: tuple[str, ...] = ()
    shardable: bool = False
    shards: int = 1


@dataclass(frozen=True, slots=True)
class Resident:
    """A component, or one shard of it, in a worker."""

    component: str
    shard: int = 0
    shards: int = 1

    def __str__(self) -> str:
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
    """

    name: str
    kind: str
    residents: tuple[Resident, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the models expect; measurement decides.

    Attributes:
        native_ns: Native iteration [ns].
        iteration_ns: Planned iteration [ns].
        lower_bound_ns: No legal plan with these workers can be faster [ns].
        gap: ``1 - lower_bound_ns / iteration_ns`` [fraction].
    """

    native_ns: int
    iteration_ns: int
    lower_bound_ns: int
    gap: float


@dataclass(frozen=True, slots=True)
class RefusalRecord:
    """A refused overlap: what was asked, why not, and what would unlock it."""

    transform: str
    subject: str
    reason: str
    unlock: str = ""


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
        transforms: Transforms in order, in text form.
        rows: Batch rows of each split loop, by path.
        workers: Workers and their residents.
        threads: Intra-op threads where they differ from the native count.
        cores: CPU cores the plan may use at once; 0 for no limit.
        core_demand: Cores one invocation occupies, by path; 1 where absent.
        orders: Cyclic order per worker.
        predicted: Expected times.
        alternatives: Ranked compositions, best first.
        refusals: What was refused and why.
        settings: Settings of the search.
        kept_native: Whether the native order is the plan.
        reason: Why the native order was kept, or what is gained.
        equivalence: ``exact`` or ``reassociated`` (equal up to floating-point reassociation).
    """

    rose_version: str
    graph_fingerprint: str
    nodes: tuple[PlanNode, ...]
    components: tuple[PlanComponent, ...] = ()
    transforms: tuple[Transformation, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    workers: tuple[WorkerSpec, ...] = ()
    threads: tuple[PhaseThreads, ...] = ()
    cores: float = 0.0
    core_demand: Mapping[str, float] = field(default_factory=dict[str, float])
    orders: tuple[Order, ...] = ()
    predicted: Predicted = field(default_factory=lambda: Predicted(0, 0, 0, 0.0))
    alternatives: tuple[AlternativeRecord, ...] = ()
    refusals: tuple[RefusalRecord, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    kept_native: bool = False
    reason: str = ""
    equivalence: str = "exact"

    def node(self, path: str) -> PlanNode:
        """The node at `path`.

        Raises:
            PlanRefused: If the plan has none.
        """
        for item in self.nodes:
            if item.path == path:
                return item
        raise PlanRefused(
            f"Plan: expected a node at '{path}', got none. Record a new trace and plan again."
        )

    def component(self, name: str) -> PlanComponent | None:
        """The component instance called `name`, if the plan knows it."""
        return next((item for item in self.components if item.name == name), None)

    def subtree(self, path: str) -> tuple[PlanNode, ...]:
        """The node at `path` and everything below it."""
        return tuple(n for n in self.nodes if n.path == path or n.path.startswith(f"{path}/"))

    def splits(self) -> dict[str, int]:
        """Number of groups of every spatially split loop, by path."""
        return {t["loop"]: int(t["groups"]) for t in self.transforms if t.name == "split-spatial"}

    def rewires(self) -> tuple[tuple[str, str], ...]:
        """Pairs ``(node, beside)``: `node` may run while the earlier `beside` still does."""
        return tuple((t["node"], t["beside"]) for t in self.transforms if t.name == "rewire")

    def to_json(self) -> str:
        """Canonical JSON: the same plan gives the same bytes."""
        data = asdict(self)
        data["transforms"] = [str(item) for item in self.transforms]
        for item in data["nodes"]:
            item["accesses"] = [[a["state"], a["mode"].value, a["keyed"]] for a in item["accesses"]]
        return json.dumps({"version": PLAN_VERSION, **data}, indent=1, sort_keys=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @staticmethod
    def from_json(text: str, source: str = "plan") -> Plan:
        """Read a plan.

        Raises:
            PlanError: If the text is no plan of this version.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(
                f"{source}: expected a JSON plan, got {error}. Make one with 'rose-opt plan'."
            ) from None
        if not isinstance(data, dict) or "version" not in data:
            raise PlanError(
                f"{source}: expected a plan, got other JSON. Make one with 'rose-opt plan'."
            )
        if data["version"] != PLAN_VERSION:  # pyright: ignore[reportUnknownArgumentType]
            raise PlanError(
                f"{source}: expected plan version {PLAN_VERSION}, got {data['version']}. Plan again with this version."
            )
        try:
            return _decode(data)  # pyright: ignore[reportUnknownArgumentType]
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise PlanError(
                f"{source}: expected a complete plan, got {error!r}. Plan again."
            ) from None

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan file.

        Raises:
            PlanError: If the file is missing or no plan of this version.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(
                f"{path}: expected a plan file, got {error}. Make one with 'rose-opt plan'."
            ) from None
        return Plan.from_json(text, str(path))


AccessesOf = Callable[[PlanNode], AccessSet]
"""Accesses of a leaf: from the plan, or from the code that is about to run."""


def leaf_accesses(
    plan: Plan, path: str, accesses_of: AccessesOf
) -> tuple[tuple[PlanNode, AccessSet], ...]:
    """Accesses of every leaf below `path`."""
    return tuple(
        (n, accesses_of(n)) for n in plan.subtree(path) if n.kind == "exec" and not n.composite
    )


def subtree_accesses(plan: Plan, path: str, accesses_of: AccessesOf | None = None) -> AccessSet:
    """What anything below `path` may touch: the reservation of a branch, the accesses of a composite."""
    of = accesses_of or (lambda node: node.access_set)
    return union_all(access for _, access in leaf_accesses(plan, path, of))


def verify(plan: Plan, accesses_of: AccessesOf | None = None) -> None:
    """Recheck every overlap the plan asks for, without a solver.

    Args:
        plan: The plan.
        accesses_of: Accesses of a leaf in the code that is about to run; the plan's own by default.

    Raises:
        PlanRefused: If an overlap is illegal, with the conflicting accesses, or a reference is broken.
    """
    of = accesses_of or (lambda node: node.access_set)
    known = {"split-spatial", "interleave", "merge", "rewire"}
    for transform in plan.transforms:
        if transform.name not in known:
            raise PlanRefused(
                f"{transform}: expected one of {', '.join(sorted(known))}, got '{transform.name}'. "
                "Plan again with this version."
            )
    for loop, groups in plan.splits().items():
        _verify_split(plan, loop, groups, of)
    for later, earlier in plan.rewires():
        _verify_rewire(plan, later, earlier, of)
    hosted = [r for worker in plan.workers for r in worker.residents]
    if len(set(hosted)) != len(hosted):
        raise PlanRefused(
            "Plan: expected each component or shard in one worker, got one in two. Plan again."
        )


def _verify_split(plan: Plan, loop: str, groups: int, of: AccessesOf) -> None:
    subject = f"split-spatial({loop})"
    if plan.node(loop).kind != "loop":
        raise PlanRefused(f"{subject}: expected a loop, got {plan.node(loop).kind}. Plan again.")
    rows = plan.rows.get(loop, 0)
    if not 1 < groups <= rows:
        raise PlanRefused(
            f"{subject}: expected 2 to {rows} groups for {rows} rows, got {groups}. Plan again."
        )
    parts = partition(rows, groups)
    for node, access in leaf_accesses(plan, loop, of):
        if not (node.rows or _inside_rows(plan, node)):
            raise PlanRefused(
                f"{subject}: expected every leaf to work row by row, got {node.path} without rows=True. "
                f"Declare @rose.node(rows=True) on {node.name} if its row i depends on row i alone."
            )
        halves = [
            AccessSet(access.accesses, access.opaque, RowRange(p.start, p.stop)) for p in parts[:2]
        ]
        conflict = first_conflict(halves[0], halves[1])
        if conflict is not None:
            raise PlanRefused(
                f"{subject}: expected groups without conflicts, got {conflict} ({node.path} of group 0 against "
                f"group 1). Declare batch_states on the component if one row of the state belongs to one row."
            )
        component = plan.component(node.component)
        keyed_write = any(a.keyed and a.mode.writes for a in access.accesses)
        if keyed_write and (component is None or component.shards != groups):
            got = 0 if component is None else component.shards
            raise PlanRefused(
                f"{subject}: expected {groups} shards of {node.component}, got {got}. Plan again, with a shard "
                f"classmethod on the component."
            )


def _inside_rows(plan: Plan, node: PlanNode) -> bool:
    parent = node.path.rpartition("/")[0]
    return any(n.path == parent and n.composite and bool(n.rows) for n in plan.nodes)


def _verify_rewire(plan: Plan, later: str, earlier: str, of: AccessesOf) -> None:
    subject = f"rewire({later} beside {earlier})"
    paths = [n.path for n in plan.nodes]
    for path in (later, earlier):
        plan.node(path)
    if later.rpartition("/")[0] != earlier.rpartition("/")[0] or paths.index(
        earlier
    ) >= paths.index(later):
        raise PlanRefused(
            f"{subject}: expected two children of one parent in program order, got others. Plan again."
        )
    for first, a in leaf_accesses(plan, earlier, of):
        for second, b in leaf_accesses(plan, later, of):
            conflict = first_conflict(a, b)
            if conflict is not None:
                raise PlanRefused(
                    f"{subject}: expected no conflicting access, got {conflict} ({first.path} before {second.path}). "
                    f"{unlock(first, a, second, b)}"
                )


def unlock(first: PlanNode, a: AccessSet, second: PlanNode, b: AccessSet) -> str:
    """The annotation that would let two conflicting nodes run side by side."""
    silent = [n.name for n, s in ((first, a), (second, b)) if s.opaque]
    if silent:
        return f"Declare what {' and '.join(dict.fromkeys(silent))} touches: reads=, updates=, refreshes= or pure=True."
    return f"Keep the native order, or let {second.name} work on a state of its own that a later node copies over."


def _decode(data: dict[str, Any]) -> Plan:
    def access(item: list[Any]) -> Access:
        return Access(item[0], StateAccess(item[1]), bool(item[2]))

    def rows(value: Any) -> bool | tuple[str, ...]:
        return value if isinstance(value, bool) else tuple(value)

    def words(value: Iterable[str]) -> tuple[str, ...]:
        return tuple(value)

    return Plan(
        rose_version=data["rose_version"],
        graph_fingerprint=data["graph_fingerprint"],
        nodes=tuple(
            PlanNode(
                **{
                    **item,
                    "rows": rows(item["rows"]),
                    "accesses": tuple(map(access, item["accesses"])),
                    "generators": words(item["generators"]),
                }
            )
            for item in data["nodes"]
        ),
        components=tuple(
            PlanComponent(**{**item, "batch_states": words(item["batch_states"])})
            for item in data["components"]
        ),
        transforms=tuple(map(Transformation.parse, data["transforms"])),
        rows=dict(data["rows"]),
        workers=tuple(
            WorkerSpec(item["name"], item["kind"], tuple(Resident(**r) for r in item["residents"]))
            for item in data["workers"]
        ),
        threads=tuple(PhaseThreads(**item) for item in data["threads"]),
        cores=float(data["cores"]),
        core_demand=dict(data["core_demand"]),
        orders=tuple(
            Order(item["worker"], tuple(OrderStep(**step) for step in item["cycle"]))
            for item in data["orders"]
        ),
        predicted=Predicted(**data["predicted"]),
        alternatives=tuple(
            AlternativeRecord(**{**item, "transforms": words(item["transforms"])})
            for item in data["alternatives"]
        ),
        refusals=tuple(RefusalRecord(**item) for item in data["refusals"]),
        settings=dict(data["settings"]),
        kept_native=bool(data["kept_native"]),
        reason=data["reason"],
        equivalence=data["equivalence"],
    )
