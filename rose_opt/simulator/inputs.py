"""Which tasks make the inputs of a task: the recorded data edges, instance by instance.

Paper: §4.2 (data references), §4.3.1.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rose_opt.facts import Facts
from rose_opt.graph import GraphNode
from rose_opt.phases import steps

Place = tuple[int, ...]
"""Iterations of the loops around a task, outermost first."""


@dataclass(frozen=True, slots=True)
class _Need:
    """One data edge between units."""

    producer: str
    loop: str
    distance: int
    all_iterations: bool
    alignment: int | None


class Inputs:
    """Made values so far, by unit and place.

    Args:
        facts: What the trace says.
        is_unit: Whether one task runs all of a node.
    """

    def __init__(self, facts: Facts, is_unit: Callable[[GraphNode], bool]) -> None:
        self._graph = facts.graph
        self._counts = {
            str(loop.path): max(round(steps(facts, loop.path)), 1) for loop in facts.graph.loops()
        }
        self._loops: dict[str, tuple[str, ...]] = {}
        self._needs: defaultdict[str, list[_Need]] = defaultdict(list)
        self._made: dict[tuple[str, Place], tuple[str | None, list[tuple[int, int]]]] = {}
        unit = {node.path: self._unit(node, is_unit) for node in facts.graph.nodes}
        for edge in facts.graph.edges:
            producer, consumer = unit[edge.producer], unit[edge.consumer]
            if producer is None or consumer is None or (producer == consumer and not edge.distance):
                continue
            need = _Need(producer, edge.loop, edge.distance, edge.all_iterations, edge.alignment)
            if need not in self._needs[consumer]:
                self._needs[consumer].append(need)

    def _unit(self, node: GraphNode, is_unit: Callable[[GraphNode], bool]) -> str | None:
        """The outermost unit at or around a node; none for loops."""
        chain = [*reversed(list(self._graph.ancestors(node.path))), node]
        return next((item.path for item in chain if is_unit(item)), None)

    def of(self, path: str, at: Mapping[str, int], group: tuple[str, int] | None) -> Iterator[int]:
        """Yield the tasks that make what a unit takes.

        Args:
            path: The unit.
            at: Iteration of every loop around it.
            group: Split loop and number of the group that it runs in; of what the same group made
                it needs that alone, of anything else all fragments.

        Yields:
            Positions of tasks.
        """
        for need in self._needs[path]:
            for place in self._places(path, need, at):
                split, tasks = self._made.get((need.producer, place), (None, []))
                own = group is not None and split == group[0]
                yield from (t for number, t in tasks if not own or (group and number == group[1]))

    def made(
        self,
        path: str,
        at: Mapping[str, int],
        tasks: Sequence[tuple[int, int]],
        split: str | None,
    ) -> None:
        """Remember the fragments (group, task) of an invocation."""
        place = tuple(at[loop] for loop in self._around(path))
        known = self._made.setdefault((path, place), (split, []))
        known[1].extend(tasks)

    def _around(self, path: str) -> tuple[str, ...]:
        if path not in self._loops:
            self._loops[path] = tuple(n.path for n in self._graph.enclosing_loops(path))
        return self._loops[path]

    def _places(self, path: str, need: _Need, at: Mapping[str, int]) -> Iterator[Place]:
        """Iterations of the producer's loops that are meant."""
        loops, ours = self._around(need.producer), self._around(path)
        shared = loops.index(need.loop)
        sibling = ours[shared + 1 : shared + 2]  # the consumer's loop beside the producer's
        choices: list[Sequence[int]] = []
        for depth, loop in enumerate(loops):
            beside = depth == shared + 1
            if depth <= shared:
                choices.append((at[loop] - (need.distance if depth == shared else 0),))
            elif beside and need.all_iterations:
                choices.append(range(self._counts[loop]))
            elif beside and need.alignment is not None and sibling:
                choices.append((at[sibling[0]] + need.alignment,))
            else:
                choices.append((self._counts[loop] - 1,))
        return itertools.product(*choices)
