"""Verdicts: what was seen against what was declared, one finding for each thing that is wrong."""

from __future__ import annotations

from dataclasses import replace

from rose_exec.sanitizer import messages
from rose_exec.sanitizer.body import Body
from rose_exec.sanitizer.findings import Finding
from rose_exec.sanitizer.kept import Kept
from rose_exec.sanitizer.look import Leaf
from rose_exec.sanitizer.memory import Regions
from rose_exec.sanitizer.touches import Pair, Touch, Touches

Key = tuple[str, str, str]
"""Kind, node and state of a finding."""


class Verdicts:
    """Findings of a session.

    Args:
        kept: What the program keeps.

    Attributes:
        findings: The first of each kind for a node and a state.
        owners: States that each written value can belong to, and who wrote it first.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.findings: dict[Key, Finding] = {}
        self.owners: dict[str, tuple[set[str], str]] = {}
        self._pairless: dict[Key, str] = {}

    def write(
        self,
        body: Body,
        path: str,
        in_place: bool,
        old: dict[str, Leaf],
        before: Regions,
        touches: Touches,
    ) -> None:
        """A body has written a value: is it one that it declares?"""
        leaf = self._kept.seen.get(path) or old[path]
        root = self._kept.watch.roots[leaf.root]
        aliases = [p for p in before.at(leaf.start, leaf.stop) if p != path] if leaf.stop else []
        states: tuple[str, ...] = ()
        if root.kind == "component":
            names = {self._kept.component_of(p) for p in (path, *aliases)}
            states = tuple(s for name in sorted(names) for s in body.writes(name))
        else:
            known = self._kept.components()
            states = tuple(
                a.state
                for a in body.accesses
                if a.mode.writes and a.state.partition(".")[0] not in known | {"generator"}
            )
        touches.add(
            path,
            Touch(body.task, body.path, body.invocation, True, in_place, states, bool(states)),
        )
        if states:
            self._own(body, path, states)
            return
        partner = next((p for p in aliases if self._kept.root_of(p) != leaf.root), "")
        finding = (
            messages.shared(body.path, body.invocation, path, partner)
            if partner
            else messages.writes(
                body.path,
                body.invocation,
                path,
                leaf.kind,
                root.kind,
                tuple(map(str, body.accesses)),
                body.node.declaration.pure,
            )
        )
        self.add(finding)
        self._pairless[finding.kind, finding.node, finding.state] = path

    def _own(self, body: Body, path: str, states: tuple[str, ...]) -> None:
        """Which states a value can belong to: those that everybody declares who writes it."""
        owners, first = self.owners.get(path, (set(states), body.invocation))
        if not owners & set(states):
            self.add(
                messages.two_states(body.path, body.invocation, first, path, sorted(owners), states)
            )
            return
        self.owners[path] = owners & set(states), first

    def judge(self, pair: Pair) -> None:
        """A pair that nothing orders."""
        earlier, later = pair.earlier, pair.later
        writer, other = (earlier, later) if earlier.writes else (later, earlier)
        for touch in (earlier, later):
            if touch.writes and not touch.allowed:
                return  # the undeclared write is the cause, and is told with its pair
        if any(f.kind == "two states" and f.state == pair.place for f in self.findings.values()):
            return
        leaf = self._kept.seen.get(pair.place)
        names = [
            pair.place,
            *(self._kept.regions.at(leaf.start, leaf.stop) if leaf and leaf.stop else ()),
        ]
        roots = {self._kept.root_of(name): name for name in names}
        if len(roots) > 1:
            own = next(
                (n for r, n in roots.items() if writer.declared[:1] and self._names(writer, r)),
                pair.place,
            )
            partner = next(name for root, name in roots.items() if root != self._kept.root_of(own))
            finding = messages.shared(writer.node, writer.invocation, own, partner)
            self.add(replace(finding, other=other.invocation), "memory")
            return
        state = (writer.declared or (pair.place,))[0]
        self.add(messages.unordered(pair, writer, other), state)

    def _names(self, writer: Touch, root: str) -> bool:
        """Whether a write was declared under a component's name."""
        name = self._kept.component_of(f"{root}.")
        return any(state.startswith(f"{name}.") for state in writer.declared)

    def complete_pairs(self, touches: Touches) -> None:
        """Give each undeclared write another invocation that touches the same."""
        for key, path in list(self._pairless.items()):
            finding = self.findings.get(key)
            kind = self._kept.seen[path].kind if path in self._kept.seen else "plain"
            others = [
                t
                for t in touches.of(path, kind)
                if t.invocation != getattr(finding, "invocation", "")
            ]
            if finding is not None and not finding.other and others:
                conflicting = [t for t in others if t.node != finding.node] or others
                self.findings[key] = replace(finding, other=conflicting[0].invocation)
                del self._pairless[key]

    def add(self, finding: Finding, state: str = "") -> None:
        """Keep a finding, the first of its kind for a node and a state."""
        self.findings.setdefault((finding.kind, finding.node, state or finding.state), finding)
