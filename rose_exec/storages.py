"""Copied storages: every value is used before its storage is filled again, or the iteration stops.

Natively a value that lies in a storage changes when the storage is filled again. Copies do not, so a call
that takes such a value too late would compute something else than natively. A trace does not show such a
call: it knows a storage by its last filling. The order of the program does, so it is checked for every call.

Does not handle: code between nodes that looks at a value too late.

Paper: beyond the paper; docs/legality.md.
"""

from __future__ import annotations

import bisect
import threading
from collections import defaultdict
from collections.abc import Iterable

from rose_exec.readiness import OrderViolation, Position
from rose_exec.refs import Value
from rose_opt.plan import AccessesOf, Plan, touching


class Storages:
    """What fills the copied storages of a session and takes values out of them.

    Args:
        plan: A verified plan.
        copied: The storages that it copies, as states.
        accesses_of: Accesses of a planned node's own code, those to storages included.
    """

    def __init__(self, plan: Plan, copied: frozenset[str], accesses_of: AccessesOf) -> None:
        self._fills: dict[str, set[str]] = {}
        self._takes: dict[str, set[str]] = {}
        for node, access in touching(plan.nodes, accesses_of) if copied else ():
            for item in access.accesses:
                if item.state in copied:
                    known = self._fills if item.mode.writes else self._takes
                    known.setdefault(node.path, set()).add(item.state)
        self._filled: defaultdict[str, list[Position]] = defaultdict(list)
        self._taken: defaultdict[str, list[tuple[Position, Position, str]]] = defaultdict(list)
        self._lock = threading.Lock()

    def touch(self, path: str, position: Position, values: Iterable[Value]) -> None:
        """A call fills storages, or takes values out of them.

        Args:
            path: Node path.
            position: Its place in the native program order.
            values: Its arguments.

        Raises:
            OrderViolation: If natively it would have found what a later filling left, or if this is that.
        """
        if path not in self._fills and path not in self._takes:
            return
        with self._lock:
            for state in self._takes.get(path, ()):
                for made in {r for v in values for r in _places(v, state, self._fills)}:
                    filled = self._filled[state]
                    at = bisect.bisect_right(filled, made)
                    if at < len(filled) and filled[at] < position:
                        raise OrderViolation(_too_late(path, state))
                    bisect.insort(self._taken[state], (position, made, path))
            for state in self._fills.get(path, ()):
                taken = self._taken[state]
                for place, made, reader in taken[bisect.bisect_right(taken, (position,)) :]:
                    if made < position < place:
                        raise OrderViolation(_too_late(reader, state))
                bisect.insort(self._filled[state], position)

    def forget(self) -> None:
        """An iteration has ended."""
        with self._lock:
            self._filled.clear()
            self._taken.clear()


def _places(value: Value, state: str, fills: dict[str, set[str]]) -> Iterable[Position]:
    """Where the program filled the storage that a value may lie in."""
    return (r.position for r in value.results() if state in fills.get(r.path, ()))


def _too_late(path: str, state: str) -> str:
    return (
        f"{path}: expected values that are used before '{state}' is filled again, got one from before that, which "
        f"natively changes with it. Let {state.removeprefix('buffer.')} return a copy, record again and plan again."
    )
