"""Where a composition puts components: shards, process workers, and the program's own thread.

A component whose batch state is written inside a split loop becomes one process worker per group; one that the iterations of a loop in chains write becomes one per
chain, each whole. A component that only a rewired node uses becomes a process worker, so that it runs
beside the branch, unless a composite with accesses of its own calls it together with others, or it shares
a state with others. Where readers of a branch work on a private copy, the copy becomes a process worker,
and what only the branch uses does so, too: the rewired node keeps the program's process.
Everything else stays in the program's process.

Paper: §4.2 "Execution"; App. A.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rose_opt.plan import (
    Hierarchy,
    Preparations,
    PrivateCopy,
    Resident,
    WorkerSpec,
    anchored,
    copy_of,
    replicated_components,
    sharded_components,
    sharing,
)

INLINE = "inline"
"""The worker that runs in the program's own process."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers of a composition.

    Attributes:
        shards: Shards per component that is built as shards.
        processes: Components with a process of their own, whole.
        components: All component instances, in program order.
        replicas: Whole instances per component that has one for every chain of a loop.
        copies: Private copies of components, each for some readers.
    """

    shards: Mapping[str, int] = field(default_factory=dict[str, int])
    processes: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    replicas: Mapping[str, int] = field(default_factory=dict[str, int])
    copies: tuple[PrivateCopy, ...] = ()

    def worker(self, component: str, group: int = 0, path: str = "") -> str:
        """Name of the worker that runs a component's node.

        Args:
            component: The component; empty for a function.
            group: Group or chain that the node runs in.
            path: The node, since some run on a private copy.
        """
        copy = copy_of(self.copies, component, path)
        if copy is not None:
            return copy.label
        if component in self.replicas:
            replicas = self.replicas[component]
            return str(Resident(component, replica=group, replicas=replicas))
        if component in self.shards:
            return str(Resident(component, group, self.shards[component]))
        return component if component in self.processes else INLINE

    def remote(self, component: str, path: str = "") -> bool:
        """Whether calls of the component's node at `path` go to another process."""
        at_home = {*self.shards, *self.replicas, *self.processes}
        return component in at_home or copy_of(self.copies, component, path) is not None

    def specs(self) -> tuple[WorkerSpec, ...]:
        """The workers as the plan lists them, the program's own first."""
        inline = tuple(Resident(name) for name in self.components if not self.remote(name))
        result = [WorkerSpec(INLINE, "inline", inline)]
        for name in self.components:
            for shard in range(self.shards.get(name, 0)):
                resident = Resident(name, shard, self.shards[name])
                result.append(WorkerSpec(str(resident), "process", (resident,)))
            for replica in range(self.replicas.get(name, 0)):
                resident = Resident(name, replica=replica, replicas=self.replicas[name])
                result.append(WorkerSpec(str(resident), "process", (resident,)))
            if name in self.processes:
                result.append(WorkerSpec(name, "process", (Resident(name),)))
            for copy in self.copies:
                if copy.component == name:
                    private = Resident(name, private=copy.readers)
                    result.append(WorkerSpec(copy.label, "process", (private,)))
        return tuple(result)


def place(
    hierarchy: Hierarchy,
    splits: Mapping[str, int],
    rewires: tuple[tuple[str, str], ...],
    chains: Mapping[str, int] | None = None,
    preparations: Preparations | None = None,
) -> Workers:
    """Workers for a composition.

    Args:
        hierarchy: The recorded hierarchy.
        splits: Groups by split loop.
        rewires: Pairs ``(node, beside)``.
        chains: Chains by loop that is split into chains.
        preparations: What is copied.

    Returns:
        The workers.

    Raises:
        ValueError: If two splits want different numbers of shards or instances of one component, or one
            that is split is to be copied.
    """
    shards: dict[str, int] = {}
    for loop, groups in splits.items():
        for name in sharded_components(hierarchy, loop):
            if shards.setdefault(name, groups) != groups:
                raise ValueError(
                    f"split-spatial({loop}): expected {shards[name]} groups as in the other loop that "
                    f"uses {name}, got {groups}. Split both loops into as many groups."
                )
    replicas: dict[str, int] = {}
    for loop, groups in (chains or {}).items():
        for name in replicated_components(hierarchy, loop):
            if name in shards or name in replicas:
                raise ValueError(
                    f"split-temporal({loop}): expected {name} to be split for one loop, got two splits that both "
                    "need it apart. Split one of the loops."
                )
            replicas[name] = groups
    copies = () if preparations is None else preparations.copies(hierarchy)
    for copy in copies:
        if copy.component in shards or copy.component in replicas:
            raise ValueError(
                f"privatise({copy.states[0]} for {copy.readers}): expected {copy.component} in one piece, got it "
                "split. Drop the split or the copy."
            )
    processes: list[str] = []
    stay = {*shards, *replicas, *anchored(hierarchy), *sharing(hierarchy)}
    for node, beside in rewires:
        branch = _used(hierarchy, beside)
        moved = [name for name in _used(hierarchy, node) if name not in {*branch, *stay}]
        processes += moved
        if copies and any(leaf.component not in moved for leaf in hierarchy.leaves(node)):
            used = {*_used(hierarchy, node), *stay}
            processes += [name for name in branch if name not in used]
    components = tuple(component.name for component in hierarchy.components)
    return Workers(shards, tuple(dict.fromkeys(processes)), components, replicas, copies)


def _used(hierarchy: Hierarchy, path: str) -> tuple[str, ...]:
    """Components of the leaves at or below a path."""
    return tuple(dict.fromkeys(n.component for n in hierarchy.leaves(path) if n.component))
