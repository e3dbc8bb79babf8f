from __future__ import annotations

from dataclasses import replace

import pytest

from rose_opt.graph import DataEdge, Graph, GraphError, GraphNode, NodeKind
from rose_opt.text import graph_text
from rose_trace.legality import AccessSet, RowRange
from rose_trace.records import Declaration, NodePath


def node(
    path: str, kind: NodeKind = "exec", count: int | None = None, reads: str = ""
) -> GraphNode:
    parent, _, name = path.rpartition("/")
    declaration = Declaration(reads=(reads,)) if reads else Declaration(pure=kind == "exec")
    return GraphNode(
        path=NodePath(path),
        name=name,
        key=f"program:{name}",
        kind=kind,
        parent=NodePath(parent) if parent else None,
        declaration=declaration,
        accesses=AccessSet(declaration.accesses("policy"), rows=RowRange(0, 2) if reads else None),
        fingerprint="f" * 16,
        count=count,
    )


def edge(producer: str, consumer: str, loop: str, distance: int = 0) -> DataEdge:
    return DataEdge(NodePath(producer), NodePath(consumer), NodePath(loop), distance)


ROOT = node("it", "iteration")
NODES = (
    ROOT,
    node("it/rollout", "loop", 4),
    node("it/rollout/policy.act", reads="weights"),
    node("it/rollout/step"),
    node("it/learn", "loop"),
    node("it/learn/update"),
)
EDGES = (
    edge("it/rollout/policy.act", "it/rollout/step", "it/rollout"),
    edge("it/rollout/step", "it/rollout/policy.act", "it/rollout", 1),
    edge("it/rollout/step", "it/learn/update", "it"),
)
GRAPH = Graph(NODES, EDGES)


def test_places():
    GRAPH.verify()
    assert GRAPH.root is ROOT
    assert [item.path for item in GRAPH.children("it")] == ["it/rollout", "it/learn"]
    assert [item.path for item in GRAPH.leaves("it/rollout")] == [
        "it/rollout/policy.act",
        "it/rollout/step",
    ]
    assert [item.path for item in GRAPH.enclosing_loops("it/learn/update")] == ["it", "it/learn"]
    assert GRAPH.common_loop("it/rollout/step", "it/learn/update").path == "it"
    assert GRAPH.data_edges("it/rollout", "it/learn") == EDGES[2:]
    with pytest.raises(KeyError, match="expected a node of this graph, got 'it/none'"):
        GRAPH.node("it/none")


def test_text():
    assert graph_text(GRAPH, {"it/rollout": "free"}, data=True) == "\n".join(
        (
            "iteration it",
            "  loop it/rollout count=4 free",
            "    node policy.act read policy.weights",
            "    node step pure",
            "  loop it/learn count=varies",
            "    node update pure",
            "data it/rollout/policy.act -> it/rollout/step in it/rollout",
            "data it/rollout/step -> it/rollout/policy.act in it/rollout distance=1",
            "data it/rollout/step -> it/learn/update in it",
        )
    )


def test_json_is_canonical_and_complete():
    again = Graph.from_json(GRAPH.to_json())
    assert again == GRAPH
    assert again.to_json() == GRAPH.to_json()
    assert again.fingerprint() == GRAPH.fingerprint()
    changed = Graph((*NODES[:-1], replace(NODES[-1], fingerprint="0" * 16)), EDGES)
    assert changed.fingerprint() != GRAPH.fingerprint()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            Graph(()),
            "Graph: expected the iteration root as its first node, got none. Record an iteration.",
        ),
        (
            Graph((*NODES, NODES[3])),
            "Graph node it/rollout/step: expected one node per path, got a second one. Give it another "
            "name.",
        ),
        (
            Graph((ROOT, NODES[2])),
            "Graph node it/rollout/policy.act: expected its parent it/rollout before it, got none. "
            "Order parents first.",
        ),
        (
            Graph((ROOT, node("it/a"), node("it/a/b"))),
            "Graph node it/a/b: expected a loop or composite as parent, got leaf it/a. Mark it "
            "composite.",
        ),
        (
            Graph((ROOT, replace(node("it/a"), declaration=Declaration()))),
            "Graph node it/a: expected an undeclared leaf to be opaque, got declared accesses. Declare "
            "them.",
        ),
        (
            Graph((ROOT, node("it/a", count=2))),
            "Graph node it/a: expected a count >= 0 of a loop, got 2 of kind exec. Drop it.",
        ),
        (
            Graph(NODES, (edge("it/rollout/step", "it/gone", "it"),)),
            "Data edge it/rollout/step -> it/gone: expected nodes of the graph, got it/gone. Rewrite "
            "the edge with its nodes.",
        ),
        (
            Graph(NODES, (edge("it/rollout/step", "it/learn/update", "it/rollout"),)),
            "Data edge it/rollout/step -> it/learn/update: expected a loop around both, got "
            "it/rollout. Use their innermost common loop.",
        ),
        (
            Graph(NODES, (edge("it/rollout/step", "it/rollout/step", "it/rollout", -1),)),
            "Data edge it/rollout/step -> it/rollout/step: expected a distance >= 0, got -1. Values "
            "cannot flow back.",
        ),
    ],
)
def test_contradictions_are_named(graph: Graph, message: str):
    with pytest.raises(GraphError) as error:
        graph.verify()
    assert str(error.value) == message
