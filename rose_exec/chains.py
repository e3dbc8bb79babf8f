"""Temporal split: which instance of a state an invocation touches, and that iterations inherit nothing.

Every chain has a whole instance of each component that its iterations write. Live range k lives in
instance k mod groups, bound in native order; what touches the state outside the loop finds the instance of
the last iteration. The plan says that every iteration refreshes such a state before anything else touches
it, and this is checked again for every call: a plan that is wrong about it stops the iteration instead of
reading what another iteration left.

Paper: §4.3.1, "Split" (temporal).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rose_exec.readiness import OrderViolation, StrandId
from rose_exec.scope import Scope
from rose_opt.plan import (
    Plan,
    PlanNode,
    live_out_instance,
    renamed_states,
    replicated_components,
)
from rose_trace import pytree
from rose_trace.legality import AccessSet
from rose_trace.records import StateAccess


class Chains:
    """Instances of a session's replicated states.

    Args:
        plan: A verified plan.
        accesses_of: Accesses of a planned leaf in the running code.
    """

    def __init__(self, plan: Plan, accesses_of: Callable[[PlanNode], AccessSet]) -> None:
        self._last: dict[str, tuple[int, int]] = {}
        self._components: dict[str, int] = {}
        for loop, groups in plan.chains().items():
            last = live_out_instance(plan.node(loop).count or 1, groups)
            for state in renamed_states(plan.hierarchy, loop, accesses_of):
                self._last[state] = last, groups
            for name in replicated_components(plan.hierarchy, loop, accesses_of):
                self._components[name] = last
        self._fresh: dict[StrandId, set[str]] = {}
        self._lock = threading.Lock()

    @staticmethod
    def chain(here: Scope) -> int | None:
        """The chain that a body belongs to; ``None`` outside any."""
        alone = here.rows is None and here.frame.group >= 0
        return here.frame.group if alone else None

    def instance(self, component: str, here: Scope | None) -> int:
        """Replica of a component that a call from `here` runs on."""
        chain = None if here is None else self.chain(here)
        return self._components.get(component, 0) if chain is None else chain

    def bound(self, access: AccessSet, chain: int | None) -> AccessSet:
        """The same accesses, each on the instance that it touches."""
        if not self._last:
            return access

        def name(state: str) -> str:
            if state not in self._last:
                return state
            last, groups = self._last[state]
            return f"{state}@{last if chain is None else chain}/{groups}"

        return replace(
            access, accesses=tuple(replace(a, state=name(a.state)) for a in access.accesses)
        )

    def begin(self, strand: StrandId) -> None:
        """A chain begins an iteration: its instances hold nothing that may be read."""
        with self._lock:
            self._fresh[strand] = set()

    def end(self, strand: StrandId) -> None:
        """A chain has ended."""
        with self._lock:
            self._fresh.pop(strand, None)

    def touch(self, strand: StrandId, path: str, access: AccessSet) -> None:
        """A call of a chain touches states.

        Raises:
            OrderViolation: If it inherits what an earlier iteration left.
        """
        with self._lock:
            fresh = self._fresh.get(strand)
            if fresh is None:
                return
            fresh.update(a.state for a in access.accesses if a.mode is StateAccess.REFRESH)
            for item in access.accesses:
                if item.state in self._last and item.state not in fresh:
                    raise OrderViolation(
                        f"{path}: expected '{item.state}' to be refreshed first in every iteration of a loop in "
                        f"chains, got {item.mode.value}. Record a new trace that covers this path and plan again."
                    )


def require_nothing(path: str, carry: Any) -> None:
    """Stop where an iteration of a chain hands a value on: the next one is in another chain.

    Raises:
        OrderViolation: If the carry holds any value.
    """
    found = pytree.flatten(carry)[1]
    if list(found.leaves()):
        raise OrderViolation(
            f"split-temporal({path}): expected iterations that return the recorded carry without a value, got "
            f"{found.to_json()}. Record a new trace that covers this case and plan again."
        )
