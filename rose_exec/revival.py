"""After a worker has ended: its components are built again, and what only they knew is refused.

A state that a node refreshes is whole again from there on, since it inherits nothing. Everything else
that the component had learned is gone, and using it would change what is trained.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rose_trace.legality import AccessSet
from rose_trace.records import GENERATOR, StateAccess


class StateLost(RuntimeError):
    """A node needs a state that ended with its worker."""


@dataclass(slots=True)
class Revival:
    """States that are lost.

    Attributes:
        lost: Component and worker that a state was lost with, by state.
    """

    lost: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    def built_again(self, component: str, worker: str, states: AccessSet) -> None:
        """A component is as its constructor left it.

        Args:
            component: Its name.
            worker: Worker that ended.
            states: All that its nodes touch.
        """
        for access in states.accesses:
            self.lost[access.state] = component, worker
        if states.opaque:
            self.lost[f"{component}."] = component, worker

    def admit(self, path: str, component: str, touched: AccessSet) -> None:
        """A node is about to run, in program order: what it refreshes is there again.

        Args:
            path: The node.
            component: Its component, empty for a function.
            touched: What it may touch.

        Raises:
            StateLost: If it needs a state that is lost.
        """
        if not self.lost:
            return
        for access in touched.accesses:
            if access.mode is not StateAccess.REFRESH:
                self._need(path, component, access.state)
        if touched.opaque:
            for state in self.lost:
                self._need(path, component, state)
        for access in touched.accesses:
            self.lost.pop(access.state, None)

    def _need(self, path: str, component: str, state: str) -> None:
        if state not in self.lost:
            return
        owner, worker = self.lost[state]
        if state.startswith(GENERATOR) and component != owner:
            return  # every process has generators of its own
        what = "everything it knew" if state.endswith(".") else f"state '{state}'"
        raise StateLost(
            f"{path}: expected {what} of {owner} as it was, got a component built again because worker {worker} "
            "ended. Refresh it before, or start again from a checkpoint."
        )
