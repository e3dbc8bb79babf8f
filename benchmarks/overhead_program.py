"""What `executor_overhead` runs in workers, pools and actors, and as a program with a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import rose_trace as rose
from rose_opt.plan import Plan, PlanComponent, PlanNode, Resident, WorkerSpec
from rose_trace import pytree
from rose_trace.component import instance_of
from rose_trace.node import ExecutionNode


def count(value: torch.Tensor) -> int:
    """Takes a tensor, returns a number."""
    return value.shape[0]


def copied(value: torch.Tensor) -> torch.Tensor:
    """Takes a tensor, returns one of its size."""
    return value.clone()


_kept: list[torch.Tensor] = []


def keep(value: torch.Tensor) -> None:
    """Keeps a copy of a tensor in the process."""
    _kept[:] = [value.clone()]


def count_kept() -> int:
    """Takes nothing: the tensor is there."""
    return _kept[0].shape[0]


@rose.component
class Echo:
    """The component of the program."""

    @rose.node(pure=True)
    def copied(self, value: torch.Tensor) -> torch.Tensor:
        """Takes a tensor, returns one of its size."""
        return value.clone()


def build(invocations: int, nbytes: int, device: str) -> Callable[[], Any]:
    """The program: a chain of invocations, each on the result of the one before."""
    echo = Echo()

    @rose.iteration(name="chain")
    def chain() -> float:
        value = torch.ones(nbytes // 4, device=device)
        for _ in range(invocations):
            value = echo.copied(value)
        return float(value[0])

    return chain


def plan(process: bool, nbytes: int) -> Plan:
    """A plan that leaves the order alone and puts the component in a process, or does not."""
    root: Any = build(1, nbytes, "cpu")
    component = Echo()
    instance = instance_of(component)
    assert instance is not None
    root_node, node = _definition(root), _definition(Echo.copied)
    shape = torch.ones(nbytes // 4)
    nodes = (
        PlanNode(
            "chain", "chain", root_node.key, root_node.kind, root_node.fingerprint, composite=True
        ),
        PlanNode(
            "chain/echo.copied",
            "echo.copied",
            node.key,
            node.kind,
            node.fingerprint,
            "echo",
            rows=node.declaration.rows,
            structure=pytree.flatten(shape)[1].to_json(),
            calls=None,
        ),
    )
    workers = (WorkerSpec("echo", "process", (Resident("echo"),)),) if process else ()
    return Plan(
        rose_version="0",
        graph_fingerprint="0",
        nodes=nodes,
        components=(PlanComponent("echo", instance.declared.key),),
        workers=workers,
    )


def _definition(decorated: Any) -> ExecutionNode:
    return decorated.__rose_node__
