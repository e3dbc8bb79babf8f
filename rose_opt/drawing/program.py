"""What is drawn: a recorded graph, or the one that a plan makes of it, with what is known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rose_opt.drawing.state_edges import StateEdge, state_edges
from rose_opt.facts import Facts, LoopFact, LoopKind, Timing
from rose_opt.graph import DataEdge, Graph, GraphNode, within
from rose_opt.plan import Plan, PlanRefused, Refusal
from rose_opt.transforms import Subject, apply_all, parse_composition


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """A graph with times and loop kinds.

    Attributes:
        graph: The graph.
        kinds: What is known about its loops.
        timings: Recorded times by node; absent for nodes that a transform made.
        iterations: Iterations that the times are from, over all ranks.
        transforms: What made the graph of the recorded one, in text form.
    """

    graph: Graph
    kinds: Mapping[str, LoopFact]
    timings: Mapping[str, Timing]
    iterations: int
    transforms: tuple[str, ...] = ()

    @staticmethod
    def recorded(facts: Facts) -> DrawnGraph:
        """The graph of a recording."""
        return DrawnGraph(facts.graph, facts.loops, facts.timings, max(facts.iteration.used, 1))

    @staticmethod
    def planned(facts: Facts, plan: Plan) -> DrawnGraph:
        """The graph that a plan makes of a recorded one.

        Raises:
            PlanRefused: If the plan's transforms do not fit the recording.
        """
        outcome = apply_all(parse_composition(plan.transforms), Subject.of(facts))
        if isinstance(outcome, Refusal):
            raise PlanRefused(str(outcome))
        kinds = dict(facts.loops)
        for node in outcome.graph.loops():
            for loop, groups in outcome.splits.items():
                for group in range(groups):
                    if within(node.path, f"{loop}#{group}"):
                        recorded = loop + node.path.removeprefix(f"{loop}#{group}")
                        kinds[node.path] = facts.loops[recorded]
        return DrawnGraph(
            outcome.graph,
            kinds,
            facts.timings,
            max(facts.iteration.used, 1),
            tuple(map(str, plan.transforms)),
        )

    @property
    def states(self) -> tuple[StateEdge, ...]:
        """State edges of the graph."""
        return state_edges(self.graph)

    @property
    def data(self) -> tuple[DataEdge, ...]:
        """Data edges, less those into a composite whose children take the same values."""
        edges = self.graph.edges
        return tuple(
            edge
            for edge in edges
            if not any(
                other.producer == edge.producer
                and other.distance == edge.distance
                and other.consumer.startswith(f"{edge.consumer}/")
                for other in edges
            )
        )

    @property
    def fences(self) -> tuple[GraphNode, ...]:
        """Nodes that declare nothing and are ordered with everything."""
        return tuple(node for node in self.graph.nodes if node.accesses.opaque)

    def kind(self, node: GraphNode) -> str:
        """What is known about a loop: ``FREE``, ``DEPENDENT(1)``; empty for other nodes."""
        fact = self.kinds.get(node.path)
        if fact is None or not node.is_loop:
            return ""
        return "FREE" if fact.kind is LoopKind.FREE else f"DEPENDENT({fact.distance})"

    def time(self, node: GraphNode) -> str:
        """Time of a node in one iteration, e.g. ``30 x 2.500 ms = 75.000 ms``; empty if unknown."""
        timing = self.timings.get(node.path)
        if timing is None:
            return ""
        calls = timing.count / self.iterations
        total = timing.total_ns / self.iterations
        if calls == 1:
            return f"{total / 1e6:.3f} ms"
        return f"{calls:g} x {timing.mean_ns / 1e6:.3f} ms = {total / 1e6:.3f} ms"
