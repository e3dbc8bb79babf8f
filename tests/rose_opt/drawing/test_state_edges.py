from __future__ import annotations

import itertools
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from rose_opt.drawing import StateEdge, state_edges
from rose_opt.graph import Graph
from tests.rose_opt.programs import Author


def graph(*nodes: tuple[str, str, Mapping[str, object]]) -> Graph:
    """A graph of ``(path, kind, declaration)``."""
    author = Author(batch_states={"sim": ["episode"]})
    for path, kind, declared in nodes:
        author.add(path, kind, **declared)  # pyright: ignore[reportArgumentType]
    return Graph(tuple(author.nodes))


def short(edges: tuple[StateEdge, ...]) -> set[tuple[str, str, str, str, int]]:
    """Edges with last parts of paths only."""
    return {
        (
            edge.kind,
            edge.earlier.rpartition("/")[2],
            edge.later.rpartition("/")[2],
            edge.loop.rpartition("/")[2],
            edge.distance,
        )
        for edge in edges
    }


def test_read_update_refresh() -> None:
    program = graph(
        ("i", "iteration", {}),
        ("i/c.write", "exec", {"refreshes": "s"}),
        ("i/c.look", "exec", {"reads": "s"}),
        ("i/c.change", "exec", {"updates": "s"}),
        ("i/c.again", "exec", {"refreshes": "s"}),
    )
    assert short(state_edges(program)) == {
        ("RAW", "c.write", "c.look", "i", 0),
        ("WAR", "c.look", "c.change", "i", 0),
        ("WAW", "c.change", "c.again", "i", 0),
        ("WAW", "c.again", "c.write", "i", 1),
    }


def test_a_loop_carries_its_state_at_the_innermost_level() -> None:
    program = graph(
        ("i", "iteration", {}),
        ("i/outer", "loop", {"count": 3}),
        ("i/outer/sim.reset", "exec", {"refreshes": "episode"}),
        ("i/outer/inner", "loop", {"count": 4}),
        ("i/outer/inner/sim.step", "exec", {"updates": "episode"}),
    )
    assert short(state_edges(program)) == {
        ("RAW", "sim.reset", "sim.step", "outer", 0),
        ("RAW", "sim.step", "sim.step", "inner", 1),
        ("WAW", "sim.step", "sim.reset", "outer", 1),
    }


def test_reads_alone_and_opaque_nodes_have_no_edges() -> None:
    program = graph(
        ("i", "iteration", {}),
        ("i/c.a", "exec", {"reads": "s"}),
        ("i/c.b", "exec", {"reads": "s"}),
        ("i/f", "exec", {}),
    )
    assert state_edges(program) == ()


@given(st.lists(st.sampled_from(["reads", "updates", "refreshes"]), min_size=1, max_size=8))
def test_edges_order_every_conflict_and_none_is_superfluous(modes: list[str]) -> None:
    """Their transitive closure over two iterations is that of all conflicting pairs."""
    nodes = [(f"i/c.n{k}", "exec", {mode: "s"}) for k, mode in enumerate(modes)]
    edges = state_edges(graph(("i", "iteration", {}), *nodes))
    count = len(modes)
    pairs: set[tuple[int, int]] = set()
    for edge in edges:
        a, b = (int(path.rpartition(".n")[2]) for path in (edge.earlier, edge.later))
        if edge.distance:
            pairs.add((a, b + count))
        else:
            pairs |= {(a, b), (a + count, b + count)}
    writes = [mode != "reads" for mode in modes] * 2
    conflicts = {
        (a, b) for a, b in itertools.combinations(range(2 * count), 2) if writes[a] or writes[b]
    }
    assert _closure(pairs, 2 * count) == _closure(conflicts, 2 * count)
    for edge in pairs:
        fewer = pairs - {edge}
        assert edge not in _closure(fewer, 2 * count)


def _closure(pairs: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    found = set(pairs)
    for middle in range(count):
        found |= {(a, b) for a, x in found if x == middle for y, b in found if y == middle}
    return found
