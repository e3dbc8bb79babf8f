"""Private copies: readers of a state run on a second instance of their component.

Right before the readers start, in program order, what the component holds is saved where it lives and
loaded into the instance that the plan keeps for these readers in a worker process. Both are tasks like
any other, so the state machine lets the copy see exactly what native order gives the readers: what was
written before, nothing that is written later.

Paper: beyond the paper; it makes way for §4.3.1, "Rewire"; docs/legality.md.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np

from rose_exec import snapshot
from rose_exec.placement import Home, Placement
from rose_exec.refs import Output, Value
from rose_exec.scope import Scope
from rose_exec.tasks import Task, Tasks
from rose_exec.workers import Job, ambient
from rose_opt.plan import (
    PRIVATISE,
    AccessesOf,
    Plan,
    PlanRefused,
    Preparations,
    PrivateCopy,
    copy_of,
    copy_path,
    verify,
)
from rose_trace import pytree
from rose_trace.legality import AccessSet

_NOTHING = pytree.flatten(((), {}))[1]
_LEAVES = 3  # of a snapshot
_SNAPSHOT = pytree.flatten((((np.zeros(1, np.uint8),) * _LEAVES,), {}))[1]


class PrivateCopies:
    """The private copies of a session.

    Args:
        placement: Workers and homes of a verified plan.
        accesses_of: Accesses of a planned node's own code in the running program.
    """

    def __init__(self, placement: Placement, accesses_of: AccessesOf) -> None:
        self._placement = placement
        hierarchy = placement.plan.hierarchy
        self.preparations = Preparations.of(placement.plan.transforms)
        self.accesses_of = self.preparations.accesses_of(accesses_of)
        """Accesses with all copies: what decides about order."""
        self.hierarchy = self.preparations.hierarchy(hierarchy, accesses_of)
        """The nodes with those that make the copies."""
        self._copies = self.preparations.copies(hierarchy, accesses_of)
        self.readers = frozenset(copy.readers for copy in self._copies)
        """Paths of the nodes before which something is copied."""
        self._workers = {
            (resident.component, resident.private): worker.name
            for worker in placement.plan.workers
            for resident in worker.residents
            if resident.private
        }

    def place(self, component: str, path: str) -> tuple[str, str] | None:
        """Worker and resident of the copy that a component's node runs on; ``None`` for itself."""
        copy = copy_of(self._copies, component, path)
        if copy is None:
            return None
        return self._workers[copy.component, copy.readers], copy.label

    def tasks(self, tasks: Tasks, here: Scope, path: str) -> None:
        """Submit what copies the components that the node at `path` reads privately.

        Args:
            tasks: Tasks in flight.
            here: The body that is about to call the node.
            path: The node.

        Raises:
            PlanRefused: If a component was built before the session, and nobody knows where.
        """
        for copy in self._copies:
            if copy.readers == path:
                self._copy(tasks, here, copy)

    def _copy(self, tasks: Tasks, here: Scope, copy: PrivateCopy) -> None:
        worker, resident = self._home(copy.component).residents[0]
        found = [a for s in copy.states for a in self._access(s, copy.readers).accesses]
        reads = AccessSet(tuple(dict.fromkeys(a for a in found if not a.mode.writes)))
        writes = AccessSet(tuple(dict.fromkeys(a for a in found if a.mode.writes)))
        saving = Job(f"{copy.label}#save", "", resident, _NOTHING, (), _frame(here), reads)
        saving.function, saving.stream = snapshot.taken, ambient.stream()
        saved = tasks.submit(_task(saving, [], here), worker)
        loading = Job(f"{copy.label}#load", "", copy.label, _SNAPSHOT, (), _frame(here), writes)
        loading.function = snapshot.put
        home = self._workers[copy.component, copy.readers]
        tasks.submit(_task(loading, [Output(saved, k) for k in range(_LEAVES)], here), home)

    def _access(self, state: str, readers: str) -> AccessSet:
        return self.hierarchy.node(copy_path(state, readers)).access_set

    def _home(self, component: str) -> Home:
        for instance, home in self._placement.homes.values():
            if instance.name == component:
                return home
        raise PlanRefused(
            f"Component {component}: expected to be built inside rose_exec.replay, got one built earlier, and the "
            "plan copies it. Build the program inside the with block, or pass build= to replay."
        )


def without_copies(plan: Plan) -> Plan:
    """The plan without private copies and without the overlap that needs them.

    A session that is checked watches readers on the component itself, where what they touch has its name.
    """
    kept = tuple(t for t in plan.transforms if t.name != PRIVATISE)
    if len(kept) == len(plan.transforms):
        return plan
    workers = tuple(
        replace(worker, residents=tuple(r for r in worker.residents if not r.private))
        for worker in plan.workers
    )
    workers = tuple(w for w in workers if w.residents or w.kind != "process")
    made = replace(
        plan, transforms=tuple(t for t in kept if t.name != "rewire"), workers=workers, orders=()
    )
    for rewire in (t for t in kept if t.name == "rewire"):
        tried = replace(made, transforms=(*made.transforms, rewire))
        with contextlib.suppress(PlanRefused):
            verify(tried)
            made = tried
    return made


def _frame(here: Scope) -> Any:
    return replace(here.frame, calls={})


def _task(job: Job, values: list[Value], here: Scope) -> Task:
    return Task(job, values, here.next_position(), here.strand, 1.0, None, False)
