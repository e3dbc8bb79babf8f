"""The plan: the contract between optimizer and executor, free of solver and database."""

from rose_opt.plan.codec import PLAN_VERSION
from rose_opt.plan.copy_rules import copy_refusal
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
from rose_opt.plan.legality import ADVISED_TRANSFORMS, KNOWN_TRANSFORMS, verify
from rose_opt.plan.order_rules import order_refusal
from rose_opt.plan.preparations import PREPARATIONS, Preparations, PrivateCopy, copy_of
from rose_opt.plan.private_rules import NAME as PRIVATISE
from rose_opt.plan.private_rules import (
    copy_path,
    private_components,
    private_state,
    privatise_refusal,
)
from rose_opt.plan.record import AlternativeRecord, Plan, Predicted
from rose_opt.plan.refusal import Refusal, declare, unlock
from rose_opt.plan.rewire_rules import between, rewire_refusal
from rose_opt.plan.sharing import sharing
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
    "ADVISED_TRANSFORMS",
    "KNOWN_TRANSFORMS",
    "PLAN_VERSION",
    "PREPARATIONS",
    "PRIVATISE",
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
    "Preparations",
    "PrivateCopy",
    "Refusal",
    "Resident",
    "Transformation",
    "WorkerSpec",
    "anchored",
    "between",
    "copy_of",
    "copy_path",
    "copy_refusal",
    "declare",
    "inside",
    "lane_refusal",
    "live_out_instance",
    "merge_refusal",
    "opened",
    "order_refusal",
    "own_accesses",
    "private_components",
    "private_state",
    "privatise_refusal",
    "renamed_states",
    "replicated_components",
    "rewire_refusal",
    "runs_whole",
    "sharded_components",
    "sharing",
    "split_refusal",
    "subtree_accesses",
    "temporal_refusal",
    "touching",
    "unlock",
    "verify",
]
