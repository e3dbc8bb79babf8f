"""The watch-set: everything that a program is known to keep, looked at as a whole and compared.

Components, attributes of classes, globals and closed-over variables; `look.py` goes through each of them.

Does not handle: state of C objects that cannot be pickled (listed in `unseen`), files, sockets, devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rose_exec.digest import FULL_BYTES
from rose_exec.sanitizer.account import attributes
from rose_exec.sanitizer.look import Leaf, Look, Root
from rose_exec.sanitizer.reach import Reached, class_data, reachable


@dataclass(slots=True)
class Watch:
    """All roots of one program.

    Attributes:
        full_bytes: Contents above this size [bytes] are sampled.
        roots: By label.
        unseen: Paths that could not be looked into, with their types.
    """

    full_bytes: int = FULL_BYTES
    roots: dict[str, Root] = field(default_factory=dict[str, Root])
    unseen: dict[str, str] = field(default_factory=dict[str, str])
    _codes: set[int] = field(default_factory=set[int])

    def add_component(self, label: str, component: Any) -> None:
        """Watch a component or shard, the data of its classes, and what its methods refer to."""
        self.roots[label] = Root(label, "component", lambda: attributes(component), component)
        for cls in type(component).__mro__:
            self._add_class(cls, label)
            for member in vars(cls).values():
                self.add_code(member, label)

    def add_code(self, entry: Any, owner: str) -> None:
        """Watch the globals and closed-over variables that code refers to, calls included."""
        for reached in reachable(entry, self._codes):
            self._add_reached(reached, owner)

    def _add_class(self, cls: type, owner: str) -> None:
        if class_data(cls):
            label = cls.__qualname__.replace("<locals>.", "")
            self.roots.setdefault(label, Root(label, "class", lambda: class_data(cls), owner=owner))

    def _add_reached(self, reached: Reached, owner: str) -> None:
        if isinstance(reached.holder, type):
            self._add_class(reached.holder, owner)
            return
        label = reached.label
        self.roots.setdefault(label, Root(label, reached.kind, reached.values, owner=owner))

    def look(self) -> dict[str, Leaf]:
        """Every watched value as it is now, by path."""
        found: dict[str, Leaf] = {}
        for root in list(self.roots.values()):
            Look(root, found, self.unseen, self.full_bytes).all()
        return found
