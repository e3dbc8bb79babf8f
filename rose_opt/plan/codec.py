"""A plan as JSON and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rose_opt.plan.errors import PlanError
from rose_opt.plan.hierarchy import PlanComponent, PlanEdge, PlanNode
from rose_opt.plan.refusal import Refusal
from rose_opt.plan.transformation import Transformation
from rose_opt.plan.workers import Lane, Order, OrderStep, PhaseThreads, Resident, WorkerSpec
from rose_trace.records import Access, StateAccess

if TYPE_CHECKING:
    from rose_opt.plan.record import Plan

PLAN_VERSION = 1

Json = dict[str, Any]
T = TypeVar("T")


def encode(plan: Plan) -> str:
    """Canonical JSON of `plan`."""
    data = asdict(plan)
    data["transforms"] = [str(item) for item in plan.transforms]
    for item in data["nodes"]:
        item["accesses"] = [[a["state"], a["mode"].value, a["keyed"]] for a in item["accesses"]]
    return json.dumps({"version": PLAN_VERSION, **data}, indent=1, sort_keys=False) + "\n"


def decode(text: str, source: str) -> Plan:
    """Read a plan from JSON.

    Args:
        text: JSON.
        source: What messages call it.

    Returns:
        The plan.

    Raises:
        PlanError: If the text is no plan of this version.
    """
    parsed = _parse(text, source)
    if not isinstance(parsed, dict) or "version" not in parsed:
        raise PlanError(
            f"{source}: expected a plan, got other JSON. Make one with 'rose-opt plan'."
        )
    data = cast("Json", parsed)
    if data["version"] != PLAN_VERSION:
        raise PlanError(
            f"{source}: expected plan version {PLAN_VERSION}, got {data['version']!r}. "
            "Plan again with this version."
        )
    try:
        return _plan(data)
    except PlanError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"{source}: expected a complete plan, got {error!r}. Plan again.") from None


def _parse(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise PlanError(
            f"{source}: expected a JSON plan, got {error}. Make one with 'rose-opt plan'."
        ) from None


def _plan(data: Json) -> Plan:
    from rose_opt.plan.record import AlternativeRecord, Plan, Predicted

    def many(key: str, build: Callable[[Json], T]) -> tuple[T, ...]:
        return tuple(build(item) for item in data[key])

    return Plan(
        rose_version=str(data["rose_version"]),
        graph_fingerprint=str(data["graph_fingerprint"]),
        nodes=many("nodes", _node),
        components=many(
            "components",
            lambda item: PlanComponent(**_tupled(item, "batch_states")),
        ),
        edges=many("edges", lambda item: PlanEdge(**item)),
        transforms=tuple(Transformation.parse(str(text)) for text in data["transforms"]),
        rows={str(path): int(rows) for path, rows in data["rows"].items()},
        workers=many("workers", _worker),
        threads=many("threads", lambda item: PhaseThreads(**item)),
        cores=float(data["cores"]),
        core_demand={str(path): float(cores) for path, cores in data["core_demand"].items()},
        orders=many("orders", _order),
        lanes=many("lanes", lambda item: Lane(**item)),
        predicted=Predicted(**data["predicted"]),
        alternatives=many(
            "alternatives",
            lambda item: AlternativeRecord(**_tupled(item, "transforms")),
        ),
        refusals=many("refusals", lambda item: Refusal(**_tupled(item, "nodes"))),
        settings=dict(data["settings"]),
        kept_native=bool(data["kept_native"]),
        reason=str(data["reason"]),
        equivalence=str(data["equivalence"]),
        notes=tuple(str(note) for note in data["notes"]),
    )


def _tupled(item: Json, key: str) -> Json:
    """The same fields with the list at `key` as a tuple."""
    return {**item, key: tuple(item[key])}


def _node(item: Json) -> PlanNode:
    rows: Any = item["rows"]
    converted: Json = {
        "rows": rows if isinstance(rows, bool) else tuple(rows),
        "accesses": tuple(
            Access(state, StateAccess(mode), bool(keyed)) for state, mode, keyed in item["accesses"]
        ),
        "generators": tuple(item["generators"]),
    }
    return PlanNode(**{**item, **converted})


def _worker(item: Json) -> WorkerSpec:
    residents = tuple(Resident(**resident) for resident in item["residents"])
    return WorkerSpec(item["name"], item["kind"], residents, int(item["percent"]))


def _order(item: Json) -> Order:
    return Order(item["worker"], tuple(OrderStep(**step) for step in item["cycle"]))
