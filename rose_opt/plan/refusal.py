"""Why an overlap is refused, and the annotation that would unlock it."""

from __future__ import annotations

from dataclasses import dataclass

from rose_opt.plan.hierarchy import PlanNode
from rose_trace.legality import AccessSet, first_conflict
from rose_trace.records import BUFFER


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused overlap: what was asked, why not, and what would unlock it.

    Attributes:
        transform: Transform name.
        subject: What it was asked for.
        reason: ``expected <condition>, got <fact>``.
        unlock: The annotation or change that would allow it.
        nodes: Paths of the nodes that stand against it.
        witness: An invocation that shows it; empty without a trace.
    """

    transform: str
    subject: str
    reason: str
    unlock: str = ""
    nodes: tuple[str, ...] = ()
    witness: str = ""

    def __str__(self) -> str:
        shown = f" ({self.witness})" if self.witness else ""
        return f"{self.transform}({self.subject}): {self.reason}{shown}. {self.unlock}".rstrip()


def unlock(first: PlanNode, a: AccessSet, second: PlanNode, b: AccessSet) -> str:
    """The annotation that would let two conflicting nodes run side by side."""
    silent = [n for n, s in ((first, a), (second, b)) if s.opaque]
    if silent:
        return declare(*silent)
    conflict = first_conflict(a, b)
    shared = conflict.earlier.state if conflict is not None and conflict.earlier else ""
    if shared.startswith(BUFFER):
        return f"Let {shared.removeprefix(BUFFER)} return a copy: it hands the same storage out each time."
    return (
        f"Keep the native order, or let {second.name} work on a state of its own that a later node "
        "copies over."
    )


def declare(*nodes: PlanNode) -> str:
    """The declaration that undeclared nodes lack."""
    names = " and ".join(dict.fromkeys(node.name for node in nodes))
    return f"Declare what {names} touches: reads=, updates=, refreshes= or pure=True."
