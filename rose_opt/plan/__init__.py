"""The plan: the contract between optimizer and executor, free of solver and database."""

from rose_opt.plan.codec import PLAN_VERSION
from rose_opt.plan.errors import PlanError, PlanRefused
from rose_opt.plan.hierarchy import (
    AccessesOf,
    Hierarchy,
    PlanComponent,
    PlanEdge,
    PlanNode,
    inside,
    own_accesses,
    subtree_accesses,
    touching,
)
from rose_opt.plan.lane_rules import lane_refusal, opened
from rose_opt.plan.legality import KNOWN_TRANSFORMS, verify
from rose_opt.plan.order_rules import order_refusal
from rose_opt.plan.record import AlternativeRecord, Plan, Predicted
from rose_opt.plan.refusal import Refusal, declare, unlock
from rose_opt.plan.rewire_rules import between, rewire_refusal
from rose_opt.plan.split_rules import merge_refusal, sharded_components, split_refusal
from rose_opt.plan.temporal_rules import (
    live_out_instance,
    renamed_states,
    replicated_components,
    temporal_refusal,
)
from rose_opt.plan.transformation import Transformation
from rose_opt.plan.whole import anchored, runs_whole
from rose_opt.plan.workers import Lane, Order, OrderStep, PhaseThreads, Resident, WorkerSpec

__all__ = [
    "KNOWN_TRANSFORMS",
    "PLAN_VERSION",
    "AccessesOf",
    "AlternativeRecord",
    "Hierarchy",
    "Lane",
    "Order",
    "OrderStep",
    "PhaseThreads",
    "Plan",
    "PlanComponent",
    "PlanEdge",
    "PlanError",
    "PlanNode",
    "PlanRefused",
    "Predicted",
    "Refusal",
    "Resident",
    "Transformation",
    "WorkerSpec",
    "anchored",
    "between",
    "declare",
    "inside",
    "lane_refusal",
    "live_out_instance",
    "merge_refusal",
    "opened",
    "order_refusal",
    "own_accesses",
    "renamed_states",
    "replicated_components",
    "rewire_refusal",
    "runs_whole",
    "sharded_components",
    "split_refusal",
    "subtree_accesses",
    "temporal_refusal",
    "touching",
    "unlock",
    "verify",
]
