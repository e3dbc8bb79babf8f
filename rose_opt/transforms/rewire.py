"""Rewire: a node starts while an earlier sibling still runs.

::

  loop iter/rollout count=8                         ->  loop iter/rollout count=8
    node policy.act      read policy.weights              node policy.act      read policy.weights
  loop iter/learn count=8                               loop iter/learn count=8 beside iter/rollout
    node trainer.update  update trainer.weights           node trainer.update  update trainer.weights

Learning takes each epoch as it finishes, beside the rollout of later ones; the reset of the next epoch
then runs beside learning, too. Values are still waited for, and whatever conflicts keeps its order.

Does not handle: moving a node before one that it follows without overlap.

Paper: §4.3.1, "Rewire".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from rose_opt.graph import Graph
from rose_opt.plan import Refusal, Transformation, between, rewire_refusal
from rose_opt.transforms.base import Rewritten, Subject, require
from rose_trace.records import NodePath

if TYPE_CHECKING:
    from rose_opt.facts import Facts


@dataclass(frozen=True, slots=True)
class Rewire:
    """Let a node start while an earlier sibling still runs.

    Attributes:
        node: Path of the later sibling.
        beside: Path of the loop that runs in a branch of its own meanwhile.
    """

    name: ClassVar[str] = "rewire"
    node: str
    beside: str

    @classmethod
    def candidates(cls, subject: Subject, target: str, max_groups: int) -> Iterator[Self]:
        """Later sibling loops beside the loops around the target, nearest loop first."""
        del max_groups
        graph = subject.graph
        around = [
            n.path for n in (graph.node(target), *graph.ancestors(target)) if n.kind == "loop"
        ]
        for loop in around:
            parent = graph.node(loop).parent
            siblings = graph.children(parent or "")
            position = [node.path for node in siblings].index(loop)
            for later in siblings[position + 1 :]:
                if later.kind == "loop":
                    yield cls(later.path, loop)

    @classmethod
    def parse(cls, text: Transformation) -> Self:
        """Inverse of `text`."""
        return cls(text["node"], text["beside"])

    @property
    def text(self) -> Transformation:
        """Text form."""
        return Transformation(self.name, (("node", self.node), ("beside", self.beside)))

    def check(self, subject: Subject) -> Refusal | None:
        """Why the two must keep their order; nothing if they may overlap."""
        for path in (self.node, self.beside):
            if path in subject.splits:
                return Refusal(
                    self.name,
                    f"{self.node} beside {self.beside}",
                    f"expected a loop that is not split, got {path} in {subject.splits[path]} groups",
                    "Split a loop inside it instead, or only one of the two.",
                    (path,),
                )
        return rewire_refusal(subject.hierarchy, self.node, self.beside)

    def apply(self, subject: Subject) -> Rewritten:
        """Drop the order between the branch and what the program goes on to, up to the node."""
        require(self.check(subject))
        passed = {n.path for n in between(subject.hierarchy, self.node, self.beside)}
        branch = NodePath(self.beside)
        nodes = tuple(
            replace(node, beside=(*node.beside, branch)) if node.path in passed else node
            for node in subject.graph.nodes
        )
        return Rewritten(replace(subject, graph=Graph(nodes, subject.graph.edges)), {})

    def inverse(self, rewritten: Rewritten) -> Subject:
        """Everything on the way to the node waits for the branch again."""
        subject = rewritten.subject
        passed = {n.path for n in between(subject.hierarchy, self.node, self.beside)}
        branch = NodePath(self.beside)
        nodes = tuple(
            replace(node, beside=tuple(path for path in node.beside if path != branch))
            if node.path in passed
            else node
            for node in subject.graph.nodes
        )
        return replace(subject, graph=Graph(nodes, subject.graph.edges))

    def estimate_ns(self, facts: Facts) -> int:
        """The node's own duration: it is moved, not changed [ns]."""
        return facts.timings[self.node].mean_ns
