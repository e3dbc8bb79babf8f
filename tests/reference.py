"""A serial interpreter of graphs: what a program computes, told by hashes instead of numbers.

Every leaf invocation hashes what it is, what it was handed and what it read; row-wise ones do so row by
row. Two executions agree if all results, all final states and the version behind every read agree. A
rewritten graph is executed in random orders that its own structure allows, so it must order everything
that matters; what values an invocation takes is told by the recorded graph.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rose_opt.graph import DataEdge, Graph, GraphNode, within
from rose_opt.plan import private_state
from rose_trace.legality import RowRange
from rose_trace.records import Access, StateAccess

Instance = tuple[str, tuple[int, ...]]
"""A leaf invocation: path and indices of the loops around it, outermost first."""


def digest(*parts: object) -> str:
    """Short hash of anything printable."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def recorded(path: str) -> str:
    """The recorded path that a fragment's path stands for."""
    return re.sub(r"#(\d+|merge|draws|draw)(?=/|$)", "", path).replace("|", "/")


def logical(state: str) -> str:
    """The recorded state that an instance of it stands for."""
    return re.sub(r"(@\d+/\d+|~\w+)$", "", state)


@dataclass
class Execution:
    """What an execution left behind.

    Attributes:
        results: Result of every leaf invocation by row; row -1 where it has no rows.
        states: Final value of every state by row; row -1 where it has no rows.
        reads: Writer behind every read, by invocation, state and row.
        writers: Last writer of every state by row.
        draws: What every invocation drew, by invocation and generator.
        storage: What is in shared storages, by state and row; the last value stays there by chance.
    """

    results: dict[tuple[Instance, int], str] = field(
        default_factory=dict[tuple[Instance, int], str]
    )
    states: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    reads: dict[tuple[Instance, str, int], str] = field(
        default_factory=dict[tuple[Instance, str, int], str]
    )
    writers: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    draws: dict[tuple[Instance, str], str] = field(default_factory=dict[tuple[Instance, str], str])
    storage: dict[tuple[str, int], str] = field(
        default_factory=dict[tuple[str, int], str], compare=False
    )


class Interpreter:
    """Executes a recorded graph and its rewrites.

    Args:
        native: The recorded graph; it tells which values an invocation takes.
        rows: Rows of the batch.
    """

    def __init__(self, native: Graph, rows: int) -> None:
        self.native = native
        self.rows = rows
        self.states = sorted({a.state for n in native.nodes for a in n.accesses.accesses})
        self.keyed = {a.state for n in native.nodes for a in n.accesses.accesses if a.keyed}
        self.copies: list[_Copy] = []

    def _native_instance(self, graph: Graph, path: str, indices: tuple[int, ...]) -> Instance:
        """The recorded invocation that an invocation of a rewritten graph stands for."""
        loops = graph.enclosing_loops(path)
        turns = [(0, 1) if loop.turns is None else loop.turns for loop in loops]
        native = tuple(
            first + step * index for (first, step), index in zip(turns, indices, strict=True)
        )
        return recorded(path), native

    def run_native(self) -> Execution:
        """Execute the recorded graph in program order."""
        tasks, _ = order(self.native)
        return self.run(self.native, tasks)

    def run_shuffled(self, graph: Graph, randomness: random.Random) -> Execution:
        """Execute a rewritten graph in some order that it allows."""
        tasks, before = order(graph)
        return self.run(graph, linear_extension(tasks, before, randomness))

    def run(self, graph: Graph, tasks: Sequence[Instance]) -> Execution:
        """Execute leaf invocations in the given order."""
        done = Execution()
        for state in self.states:
            for row in self._rows_of(state):
                done.states[state, row] = digest("initial", state, row)
        self.copies = list(_copies(graph))
        physical = {a.state for n in graph.nodes for a in n.accesses.accesses} - set(self.states)
        physical |= {
            f"{a.state}~{copy.name}"
            for copy in self.copies
            for a in copy.node.accesses.accesses
            if not a.mode.writes
        }
        for name in physical:
            for row in self._rows_of(logical(name)):
                done.states[name, row] = digest("initial", logical(name), row)
        for path, indices in tasks:
            if path.endswith("#merge"):
                continue
            node = graph.node(path)
            if path.endswith("#copy"):
                self._copy(node, done)
                continue
            instance = self._native_instance(graph, path, indices)
            if path.endswith("#draw"):
                for access in node.accesses.accesses:
                    self._draw(access.state, instance, done)
                continue
            self._invoke(node, instance, done)
        return self._as_recorded(graph, done, physical)

    def _as_recorded(self, graph: Graph, done: Execution, physical: set[str]) -> Execution:
        """What is left of states with several instances: the one that the last live range is in."""
        last: dict[str, str] = {}
        for loop in graph.loops():
            if loop.turns is None or loop.turns[0]:
                continue
            groups = loop.turns[1]
            chains = [f"{recorded(loop.path)}#{group}" for group in range(groups)]
            count = sum(graph.node(chain).count or 0 for chain in chains)
            for name in physical:
                if name.endswith(f"@{(count - 1) % groups}/{groups}"):
                    last[logical(name)] = name
        for table in (done.states, done.writers):
            for state, row in list(table):
                if state in last:
                    del table[state, row]
            for state, row in list(table):
                if last.get(logical(state)) == state:
                    table[logical(state), row] = table.pop((state, row))
                elif state in physical:
                    del table[state, row]
        return done

    def _rows_of(self, state: str) -> range:
        return range(self.rows) if logical(state) in self.keyed else range(-1, 0)

    def _copy(self, node: GraphNode, done: Execution) -> None:
        """Copy all that a component holds, with everything that is known about it."""
        (copy,) = (item for item in self.copies if item.node == node)
        for source in (a.state for a in node.accesses.accesses if a.mode is StateAccess.READ):
            private = f"{source}~{copy.name}"
            for row in self._rows_of(source):
                done.states[private, row] = done.states[source, row]
                done.writers.pop((private, row), None)
                if (source, row) in done.writers:
                    done.writers[private, row] = done.writers[source, row]

    def _draw(self, state: str, instance: Instance, done: Execution) -> None:
        """Take the next value of a generator; what is drawn does not depend on what it is used for."""
        done.draws[instance, state] = done.states[state, -1]
        done.reads[instance, state, -1] = done.writers.get((state, -1), "start")
        done.states[state, -1] = digest("draw", instance, done.states[state, -1])
        done.writers[state, -1] = digest(instance)

    def _invoke(self, node: GraphNode, instance: Instance, done: Execution) -> None:
        accesses = [(a.state, a.mode, a.keyed) for a in node.accesses.accesses]
        if node.accesses.opaque:
            accesses = [(state, StateAccess.UPDATE, False) for state in self.states]
        drawn = [a.state for a in self.native.node(instance[0]).accesses.accesses if _is_draw(a)]
        for state, mode, _ in accesses:
            if state in drawn and mode is StateAccess.UPDATE:
                self._draw(state, instance, done)
        stored = [a for a in accesses if a[0].startswith("buffer.")]
        accesses = [
            (self._touched(node, state, done), mode, keyed)
            for state, mode, keyed in accesses
            if state not in drawn and (state, mode, keyed) not in stored
        ]
        confined = node.accesses.rows or RowRange(0, self.rows)
        by_row = bool(node.declaration.rows)
        made: dict[int, str] = {}
        for row in range(confined.start, confined.stop) if by_row else (-1,):
            seen: list[str] = [done.draws[instance, state] for state in drawn]
            for state, mode, keyed in accesses:
                for place in self._places(state, keyed, row, confined):
                    if mode is StateAccess.REFRESH:
                        continue  # it takes the place of the old value, whoever made that
                    writer = done.writers.get((state, place), "start")
                    done.reads[instance, logical(state), place] = writer
                    seen.append(done.states[state, place])
            storages = frozenset(state for state, _, _ in stored)
            inputs = list(self._inputs(instance, row, done, storages))
            made[row] = digest(instance, row, seen, inputs)
        for row, value in made.items():
            done.results[instance, row] = value
            for state, mode, _ in stored:
                if mode.writes:
                    done.storage[state, row] = value
        for state, mode, keyed in accesses:
            if mode is StateAccess.READ:
                continue
            for row in made:
                for place in self._places(state, keyed, row, confined):
                    old = done.states[state, place] if mode is StateAccess.UPDATE else ""
                    done.states[state, place] = digest(mode.value, instance, old, made[row])
                    done.writers[state, place] = digest(instance)

    def _touched(self, node: GraphNode, state: str, done: Execution) -> str:
        """The state as the instance has it that a node runs on: a copy holds all of its component."""
        for copy in self.copies:
            held = f"{state}~{copy.name}"
            mine = node.component in copy.components and within(node.path, copy.readers)
            if mine and any(key[0] == held for key in done.states):
                return held
        return state

    def _carried(self, edge: DataEdge, instance: Instance) -> bool:
        """Whether a loop hands on its own value in place of the one in the same storage that entered it."""
        loops = [loop.path for loop in self.native.enclosing_loops(instance[0])]
        return any(
            e.consumer == edge.consumer
            and e.distance == 1
            and within(e.loop, edge.loop)
            and e.loop != edge.loop
            and instance[1][loops.index(e.loop)] > 0
            and self._storage(e.producer) & self._storage(edge.producer)
            for e in self.native.edges
        )

    def _storage(self, producer: str) -> frozenset[str]:
        """Shared storages that the values of a recorded node are in."""
        accesses = self.native.node(producer).accesses.accesses
        return frozenset(
            a.state for a in accesses if a.state.startswith("buffer.") and a.mode.writes
        )

    def _places(self, state: str, keyed: bool, row: int, confined: RowRange) -> Iterator[int]:
        """Rows of a state that one row of an invocation touches."""
        if logical(state) not in self.keyed:
            yield -1
        elif keyed:
            yield from (row,) if row >= 0 else range(confined.start, confined.stop)
        else:
            yield from range(self.rows)

    def _inputs(
        self, instance: Instance, row: int, done: Execution, storages: frozenset[str]
    ) -> Iterator[str]:
        """Values taken; those in a storage that is shared are what is in it by now."""
        for edge in self.native.edges:
            if edge.consumer != instance[0]:
                continue
            for producer in producers(self.native, edge, instance[1]):
                if self._carried(edge, instance):
                    continue
                by_row = bool(self.native.node(producer[0]).declaration.rows)
                places = ((row,) if row >= 0 else range(self.rows)) if by_row else (-1,)
                shared = self._storage(producer[0]) & storages
                for place in places:
                    if shared:
                        yield done.storage.get((min(shared), place), "not there")
                        continue
                    yield done.results.get((producer, place), "not there")


@dataclass(frozen=True)
class _Copy:
    """A node that makes a private copy: for whom, of which components, and the suffix of what is copied."""

    node: GraphNode
    readers: str
    components: frozenset[str]
    name: str


def _copies(graph: Graph) -> Iterator[_Copy]:
    for node in graph.nodes:
        if not node.path.endswith("#copy"):
            continue
        (private,) = (a.state for a in node.accesses.accesses if a.mode is StateAccess.REFRESH)
        name = private.partition("~")[2]
        (readers,) = (n.path for n in graph.nodes if private_state("", n.path) == f"~{name}")
        touching = (n for n in graph.subtree(readers) if n.component and _has(n, private))
        yield _Copy(node, readers, frozenset(n.component or "" for n in touching), name)


def _has(node: GraphNode, state: str) -> bool:
    return any(a.state == state for a in node.accesses.accesses)


def _is_draw(access: Access) -> bool:
    return access.state.startswith("generator.") and access.mode is StateAccess.UPDATE


def producers(graph: Graph, edge: DataEdge, indices: tuple[int, ...]) -> Iterator[Instance]:
    """Invocations of an edge's producer whose values one invocation of its consumer takes.

    Of the producer's own loop below the common one: the aligned iteration, all of them, or the last; of
    loops further inside, all.
    """
    around = graph.enclosing_loops(edge.consumer)
    depth = [loop.path for loop in around].index(edge.loop)
    common = (*indices[:depth], indices[depth] - edge.distance)
    if common[-1] < 0:
        return
    ranges: list[Sequence[int]] = [(index,) for index in common]
    for level, loop in enumerate(graph.enclosing_loops(edge.producer)[depth + 1 :]):
        count = loop.count or 0
        if level or edge.all_iterations:
            ranges.append(range(count))
        elif edge.alignment is None:
            ranges.append((count - 1,))
        else:
            ranges.append((indices[depth + 1] + edge.alignment,))
            if not 0 <= ranges[-1][0] < count:
                return
    for combination in itertools.product(*ranges):
        yield edge.producer, combination


def order(graph: Graph) -> tuple[list[Instance], dict[Instance, set[Instance]]]:
    """Invocations that touch states in program order, and what must come before each.

    A composite with accesses of its own is one of them, before what it calls.

    A node waits for all of its earlier siblings except those it may run beside, an iteration for the one
    before it, and everything for the values that it takes.
    """
    tasks: list[Instance] = []
    before: dict[Instance, set[Instance]] = {}

    def visit(node: GraphNode, indices: tuple[int, ...], waits: set[Instance]) -> set[Instance]:
        """Add the invocations of a node; returns them."""
        mine: set[Instance] = set()
        if node.touches:
            instance: Instance = (node.path, indices)
            tasks.append(instance)
            before[instance] = set(waits)
            mine.add(instance)
        if node.kind == "exec" and not node.composite:
            return mine
        runs: Sequence[tuple[int, ...]] = [indices]
        if node.kind == "loop":
            runs = [(*indices, index) for index in range(node.count or 0)]
        elif node.kind == "iteration":
            runs = [(0,)]
        for run in runs:
            inside: dict[str, set[Instance]] = {}
            entry = waits | mine
            for child in graph.children(node.path):
                earlier = [done for path, done in inside.items() if path not in child.beside]
                inside[child.path] = visit(child, run, entry.union(*earlier))
            mine = mine.union(*inside.values())
        return mine

    visit(graph.root, (), set())
    known = set(tasks)
    for edge in graph.edges:
        for path, indices in tasks:
            if path == edge.consumer:
                before[path, indices].update(
                    p for p in producers(graph, edge, indices) if p in known
                )
    return tasks, before


def linear_extension(
    tasks: Sequence[Instance],
    before: Mapping[Instance, set[Instance]],
    randomness: random.Random,
) -> list[Instance]:
    """Some order in which everything comes after what it waits for."""
    done: set[Instance] = set()
    result: list[Instance] = []
    waiting = list(tasks)
    while waiting:
        ready = [task for task in waiting if before[task] <= done]
        assert ready, f"cycle among {waiting}"
        # Mostly go on where the last one left off, so that one strand can get far ahead.
        chosen = ready[-1] if randomness.random() < 0.5 else randomness.choice(ready)
        waiting.remove(chosen)
        done.add(chosen)
        result.append(chosen)
    return result
