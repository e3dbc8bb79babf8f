"""What a program keeps, as it was last looked at.

Looks are taken between bodies, while nothing runs: what differs between two was changed in between.
"""

from __future__ import annotations

from typing import Any

from rose_exec import streams
from rose_exec.sanitizer.look import Leaf
from rose_exec.sanitizer.memory import Regions
from rose_exec.sanitizer.watch import Watch
from rose_trace import generators
from rose_trace.component import Instance, instance_of


class Kept:
    """The watch-set and its last values.

    Args:
        full_bytes: Contents above this size [bytes] are sampled.

    Attributes:
        watch: What is looked at.
        seen: Every value at the last look, by path.
        regions: Where the tensors and arrays among them live.
        labels: Label of each component, by its identity.
    """

    def __init__(self, full_bytes: int) -> None:
        self.watch = Watch(full_bytes)
        self.seen: dict[str, Leaf] = {}
        self.regions = Regions({})
        self.labels: dict[int, str] = {}
        self._roots: set[str] = set()
        self._drawn = generators.capture()

    def look(self) -> tuple[list[tuple[str, bool]], tuple[str, ...]]:
        """Look at everything; returns what changed, whether in place, and the generators drawn from.

        What this thread has submitted to its device is waited for: it may write host memory, too.
        """
        streams.wait()
        seen = self.watch.look()
        drawn = generators.capture()
        before = self.seen
        changed = [
            (path, _in_place(before.get(path), seen.get(path)))
            for path in dict.fromkeys((*before, *seen))
            if _value(before.get(path)) != _value(seen.get(path))
            and (seen.get(path) or before[path]).root in self._roots
        ]
        names = generators.changed(self._drawn, drawn)
        self.seen, self._drawn = seen, drawn
        self.regions = Regions(seen)
        self._roots = set(self.watch.roots)
        return changed, names

    def root_of(self, path: str) -> str:
        """Label of what a path belongs to."""
        leaf = self.seen.get(path)
        if leaf is not None:
            return leaf.root
        return next(
            (r for r in self.watch.roots if path.startswith(f"{r}.")), path.partition(".")[0]
        )

    def component_of(self, path: str) -> str:
        """Name of the component that a path belongs to; shards and replicas have their whole's."""
        root = self.watch.roots.get(path[:-1] if path.endswith(".") else self.root_of(path))
        instance = None if root is None or root.target is None else instance_of(root.target)
        return "" if instance is None else instance.name

    def components(self) -> set[str]:
        """Names of all components."""
        instances = (
            instance_of(r.target) for r in self.watch.roots.values() if r.target is not None
        )
        return {instance.name for instance in instances if instance is not None}

    def add(self, label: str, component: Any) -> str:
        """Watch a component; returns the label that its paths begin with."""
        instance: Instance | None = instance_of(component)
        name = label if instance is None or "built earlier" not in label else instance.name
        self.labels[id(component)] = name
        self.watch.add_component(name, component)
        return name


def _value(leaf: Leaf | None) -> tuple[str, int] | None:
    return None if leaf is None else (leaf.digest, leaf.version)


def _in_place(before: Leaf | None, after: Leaf | None) -> bool:
    return before is not None and after is not None and 0 < before.start == after.start
