"""Loop kind: whether iterations inherit from earlier ones, with the evidence.

A loop is dependent if any value or state is carried from one iteration to a later one, or if its
body cannot be known: it is not rewritable, or touches state that nobody declared. A refresh starts a
new live range, so what comes after it in the same iteration inherits nothing from earlier ones.

Paper: §4.2, "Loop nodes" (free and dependent loops); docs/legality.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rose_opt.facts.dependencies import ObservedEdge
from rose_opt.facts.store import Store
from rose_opt.graph import Graph, GraphNode
from rose_trace.pytree import Structure
from rose_trace.records import BUFFER, Access, NodePath, StateAccess


class LoopKind(enum.Enum):
    """Whether iterations may run in any order, given enough instances of the state they write."""

    FREE = "free"
    DEPENDENT = "dependent"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason why iterations must keep their order.

    Attributes:
        cause: What is carried: ``carry``, a ``state`` or other ``data``; or why nothing is known: a
            body that is ``opaque`` or ``fixed`` (not rewritable).
        text: What was seen, naming node, state, iteration and invocation.
        unlock: What to write so that the loop becomes free, if that is what the program means.
        distance: Iterations between making and using, at least 1.
        state: Absolute state name, for ``state``.
        reader: Path of the node that inherits, where there is one.
        writer: Path of the node that leaves something behind, where there is one.
    """

    cause: Literal["carry", "state", "data", "opaque", "fixed"]
    text: str
    unlock: str
    distance: int = 1
    state: str | None = None
    reader: NodePath | None = None
    writer: NodePath | None = None


@dataclass(frozen=True, slots=True)
class LoopFact:
    """What is known about a loop.

    Attributes:
        path: The loop.
        kind: Free or dependent.
        evidence: Why it is dependent, strongest reason first; empty for a free loop.
        distance: Iterations that may be in flight in a dependent loop, 1 for strict order; ``None``
            for a free loop.
        limited_by: States that every iteration refreshes before use: each instance of them holds
            one iteration at a time.
        instances: Iterations of a free loop that may be in flight: the instances of the states in
            `limited_by`, which is 1 in the recorded program; ``None`` without limit.
    """

    path: NodePath
    kind: LoopKind
    evidence: tuple[Evidence, ...] = ()
    distance: int | None = None
    limited_by: tuple[str, ...] = ()
    instances: int | None = None

    @property
    def free(self) -> bool:
        """Whether no iteration inherits anything from another."""
        return self.kind is LoopKind.FREE

    def __str__(self) -> str:
        if self.free:
            return "free"
        return "dependent" if self.distance == 1 else f"dependent distance={self.distance}"


def loop_facts(store: Store, graph: Graph, edges: Sequence[ObservedEdge]) -> dict[str, LoopFact]:
    """Kind of every loop, the root included.

    Args:
        store: Database with the hierarchy loaded; gets the table ``touch``.
        graph: The recorded graph.
        edges: Its data edges with the invocations that showed them.

    Returns:
        Facts by loop, in program order.
    """
    states = sorted({access.state for node in graph.nodes for access in node.accesses.accesses})
    carried = _carried(store, graph, states)
    facts: dict[str, LoopFact] = {}
    for loop in graph.loops():
        of_loop = [row for row in carried if graph.nodes[int(row["loop_path"])].path == loop.path]
        evidence = (
            *_unknown(graph, loop),
            *(_state_evidence(graph, states, row) for row in of_loop if row["inherited"]),
            *_data_evidence(loop, edges),
            *_carry_evidence(loop),
        )
        limited_by = tuple(
            sorted(states[int(row["state_id"])] for row in of_loop if not row["inherited"])
        )
        if evidence:
            distance = min(item.distance for item in evidence)
            facts[loop.path] = LoopFact(
                loop.path, LoopKind.DEPENDENT, evidence, distance, limited_by
            )
        else:
            instances = 1 if limited_by else None
            facts[loop.path] = LoopFact(
                loop.path, LoopKind.FREE, limited_by=limited_by, instances=instances
            )
    return facts


def _carried(store: Store, graph: Graph, states: Sequence[str]) -> list[dict[str, Any]]:
    number = {state: index for index, state in enumerate(states)}
    store.fill(
        "access",
        "path_id INTEGER, state_id INTEGER, mode VARCHAR",
        [
            (path_id, number[access.state], _mode(graph, node, access).value)
            for path_id, node in enumerate(graph.nodes)
            for access in node.accesses.accesses
        ],
    )
    store.run("accesses")
    deepest = max((len(graph.enclosing_loops(node.path)) for node in graph.nodes), default=1)
    for depth in range(deepest, 1, -1):
        store.run("accesses_fold", depth=depth)
    return store.run("carried")


def _mode(graph: Graph, node: GraphNode, access: Access) -> StateAccess:
    """How a node touches a state; which of a composite and what it calls comes first is not known."""
    if access.mode is not StateAccess.REFRESH or not node.composite:
        return access.mode
    below = (n for n in graph.subtree(node.path) if n.path != node.path)
    same = (a for n in below for a in n.accesses.accesses if a.state == access.state)
    inherits = any(a.mode is not StateAccess.REFRESH for a in same)
    return StateAccess.UPDATE if inherits else access.mode


def _unknown(graph: Graph, loop: GraphNode) -> Iterator[Evidence]:
    if loop.kind == "iteration":
        yield Evidence(
            "fixed",
            "the program between two iterations is not recorded",
            "Nothing: the root's iterations stay in order.",
        )
    elif not loop.rewritable:
        yield Evidence(
            "fixed",
            "its body is not written as carry, output = body(carry, item)",
            "Write it with rose.loop if iterations share nothing but the carry.",
        )
    for node in graph.subtree(loop.path):
        if node.accesses.opaque:
            yield Evidence(
                "opaque",
                f"'{node.name}' declares nothing, so it may touch any state",
                f"Declare the states of '{node.name}' (reads, updates, refreshes), or pure=True.",
                reader=node.path,
                writer=node.path,
            )


def _state_evidence(graph: Graph, states: Sequence[str], row: Mapping[str, Any]) -> Evidence:
    state = states[int(row["state_id"])]
    reader, writer = graph.nodes[int(row["reader_path"])], graph.nodes[int(row["writer_path"])]
    reads = "reads" if row["reader_mode"] == StateAccess.READ.value else "updates"
    written = "updated" if row["writer_mode"] == StateAccess.UPDATE.value else "refreshed"
    if row["recorded"]:
        text = (
            f"iteration {row['reader_idx']} {reads} '{state}' (node '{reader.name}', invocation "
            f"{row['reader_seq']}) {written} by iteration {row['writer_idx']} (node '{writer.name}', "
            f"invocation {row['writer_seq']})"
        )
    else:
        text = (
            f"every iteration {reads} '{state}' (node '{reader.name}', invocation "
            f"{row['reader_seq']}), which the one before it has {written} (node '{writer.name}', "
            f"invocation {row['writer_seq']})"
        )
    unlock = f"If '{reader.name}' does not inherit '{state}', annotate the access as refresh."
    if state.startswith(BUFFER):
        unlock = f"Let '{writer.name}' return a copy: it hands the same storage out each time."
    return Evidence(
        "state",
        text,
        unlock,
        state=state,
        reader=reader.path,
        writer=writer.path,
    )


def _data_evidence(loop: GraphNode, edges: Sequence[ObservedEdge]) -> Iterator[Evidence]:
    for item in edges:
        edge = item.edge
        if edge.loop == loop.path and edge.distance > 0:
            yield Evidence(
                "data",
                f"'{edge.consumer}' takes a value that '{edge.producer}' made {edge.distance} "
                f"iteration{'s' if edge.distance > 1 else ''} earlier (invocation {item.invocation})",
                "Make the value inside the iteration that uses it.",
                edge.distance,
                reader=edge.consumer,
                writer=edge.producer,
            )


def _carry_evidence(loop: GraphNode) -> Iterator[Evidence]:
    if loop.kind == "loop" and loop.rewritable and loop.count != 0 and not _empty(loop.structure):
        yield Evidence(
            "carry",
            "its body returns a carry that is not None",
            "Return None as carry if the next iteration does not need it.",
        )


def _empty(structure: str | None) -> bool:
    """Whether a recorded structure holds no value at all, only None and empty containers."""
    return structure is not None and not list(Structure.from_json(structure).leaves())
