"""What a plan copies, so that an overlap becomes legal: components for their readers, and storages.

A plan names these preparations among its transforms. Everything that is decided from accesses, by the
optimizer or by the executor, is decided from the accesses as they are with the copies.

Paper: beyond the paper; docs/legality.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rose_opt.plan import copy_rules, private_rules
from rose_opt.plan.copy_rules import without_storages
from rose_opt.plan.hierarchy import AccessesOf, Hierarchy, PlanNode, inside, own_accesses
from rose_opt.plan.private_rules import copying, on_copies, private_components, private_state
from rose_opt.plan.transformation import Transformation
from rose_trace.legality import AccessSet

PREPARATIONS = (private_rules.NAME, copy_rules.NAME)
"""Names of the transforms that make way for others."""


@dataclass(frozen=True, slots=True)
class PrivateCopy:
    """One copy of a component for the nodes below a path.

    Attributes:
        component: Instance name.
        readers: Path of the node below which its nodes run on the copy.
        states: States that are read there instead of the component's own.
    """

    component: str
    readers: str
    states: tuple[str, ...]

    @property
    def label(self) -> str:
        """What the copy is called, as a resident and as a worker."""
        return private_state(self.component, self.readers)


@dataclass(frozen=True, slots=True)
class Preparations:
    """The preparations of one plan.

    Attributes:
        private: State and readers of each private copy, in the plan's order.
        storages: Storages that are copied when a value is handed out.
    """

    private: tuple[tuple[str, str], ...] = ()
    storages: frozenset[str] = frozenset()

    @staticmethod
    def of(transforms: Sequence[Transformation]) -> Preparations:
        """Those among a plan's transforms."""
        return Preparations(
            tuple((t["state"], t["readers"]) for t in transforms if t.name == private_rules.NAME),
            frozenset(t["state"] for t in transforms if t.name == copy_rules.NAME),
        )

    def __bool__(self) -> bool:
        return bool(self.private or self.storages)

    def bound(self, path: str, access: AccessSet) -> AccessSet:
        """Accesses of the node at `path`, each on what it touches with the copies."""
        if not self:
            return access
        names = {
            s: private_state(s, readers) for s, readers in self.private if inside(path, readers)
        }
        return without_storages(on_copies(access, names), self.storages)

    def accesses_of(self, of: AccessesOf = own_accesses) -> AccessesOf:
        """Accesses of a node's own code with the copies, given those without."""
        return lambda node: self.bound(node.path, of(node))

    def hierarchy(self, hierarchy: Hierarchy, of: AccessesOf = own_accesses) -> Hierarchy:
        """The nodes with those that make private copies, each right before its readers."""
        nodes: list[PlanNode] = []
        for node in hierarchy.nodes:
            nodes += [
                copying(hierarchy, state, readers, of)
                for state, readers in self.private
                if readers == node.path
            ]
            nodes.append(node)
        return replace(hierarchy, nodes=tuple(nodes))

    def copies(
        self, hierarchy: Hierarchy, of: AccessesOf = own_accesses
    ) -> tuple[PrivateCopy, ...]:
        """The private copies that are made: one per component and readers, whatever states it is for."""
        found: dict[tuple[str, str], list[str]] = {}
        for state, readers in self.private:
            for component in private_components(hierarchy, state, readers, of):
                found.setdefault((component, readers), []).append(state)
        return tuple(PrivateCopy(c, r, tuple(states)) for (c, r), states in found.items())


def copy_of(copies: Sequence[PrivateCopy], component: str, path: str) -> PrivateCopy | None:
    """The copy that a component's node at `path` runs on, the innermost where there are several."""
    mine = [c for c in copies if c.component == component and inside(path, c.readers)]
    return max(mine, key=lambda copy: len(copy.readers), default=None)
