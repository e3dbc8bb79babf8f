"""Feasible(G, v): what may be tried about a target, in the order of the paper.

::

  Feasible(G, v):                                    P = parent(v)
    if P is a loop:
      for w in internal(P), for s in splits:         s, interleave v of one group with w of another
        splits: every free loop from P outwards, in chains; without one that fits, P by rows
        (beyond the paper P by rows is tried after all else where chains fit, too)
      for other movable loops w of internal(parent(P)):             rewire P and w
      for splittable downstream consumers w that are no loops:      split w, rewire
      for other nodes w that are no loops:                          rewire P and w
    else:
      rewire v beside what comes before it; rewire what comes after it beside v
      if nothing of that is feasible: the same for P among its siblings

The root is no loop here: its iterations stay in order. In ``Rewire(v, w)`` it is the later of the two that
moves. The position in this enumeration breaks ties.

Paper: §4.3.2, "Generating alternatives".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rose_opt.graph import Graph, GraphNode
from rose_opt.plan import temporal_refusal
from rose_opt.transforms import (
    Composition,
    Interleave,
    Merge,
    Rewire,
    SpatialSplit,
    Subject,
    TemporalSplit,
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something to try about a target.

    Attributes:
        target: The target, v.
        partner: What is to run beside it, w.
        composition: The transforms.
        mismatch_ns: Difference of their durations, delta [ns].
        extra: Whether the paper, having a temporal split here, would not try it; kept beside its own.
    """

    target: str
    partner: str
    composition: Composition
    mismatch_ns: int = 0
    extra: bool = False


@dataclass(frozen=True, slots=True)
class Enumeration:
    """What the enumeration asks about the program.

    Attributes:
        subject: The graph.
        max_groups: Most groups of a split.
        fits: Whether a temporal split fits the memory M.
        works: Whether a candidate is applicable, legal and fits.
        apart: Whether the groups of a split have different engines for a node.
        free: Whether the trace, too, showed no iteration of a loop that inherits anything.
        copied: The program with storages copied that may be; ``None`` for as it is.
    """

    subject: Subject
    max_groups: int
    fits: Callable[[TemporalSplit], bool]
    works: Callable[[Candidate], bool]
    apart: Callable[[SpatialSplit | TemporalSplit, str], bool]
    free: Callable[[str], bool] = lambda _: True
    copied: Subject | None = None


def feasible(ask: Enumeration, target: str) -> Iterator[Candidate]:
    """Candidates for a target, in order; not all of them are legal.

    Args:
        ask: What is known about the program.
        target: Path of the target, v.

    Yields:
        Candidates without their mismatch.
    """
    graph = ask.subject.graph
    parent = graph.node(target).parent
    if parent is None:
        return
    if graph.node(parent).kind == "loop":
        yield from _in_loop(ask, target, graph.node(parent))
        return
    found = False
    for candidate in _in_body(graph, target, parent):
        found = found or ask.works(candidate)
        yield candidate
    if not found:
        for candidate in feasible(ask, parent):
            yield replace(candidate, target=target)


def free_loops(subject: Subject, target: str) -> tuple[str, ...]:
    """Free loops around a target, nearest first."""
    return tuple(
        loop.path
        for loop in subject.graph.ancestors(target)
        if loop.kind == "loop" and temporal_refusal(subject.hierarchy, loop.path, 2) is None
    )


def _in_loop(ask: Enumeration, target: str, parent: GraphNode) -> Iterator[Candidate]:
    graph = ask.subject.graph
    counts = range(2, ask.max_groups + 1)
    temporal = [
        TemporalSplit(loop, k)
        for loop in free_loops(ask.copied or ask.subject, target)
        for k in counts
        if ask.free(loop) and k <= (graph.node(loop).count or 0)
    ]
    spatial = [SpatialSplit(parent.path, k) for k in counts]
    enough = any(map(ask.fits, temporal))
    yield from _split(ask, target, parent, temporal if enough else [*temporal, *spatial])
    if parent.parent is not None:
        yield from _beside(ask, target, parent, graph.children(parent.parent))
    if enough:  # ours: groups of half the rows may share cores where whole chains cannot
        for candidate in _split(ask, target, parent, spatial):
            yield replace(candidate, extra=True)


def _split(
    ask: Enumeration,
    target: str,
    parent: GraphNode,
    splits: Sequence[SpatialSplit | TemporalSplit],
) -> Iterator[Candidate]:
    """The target of one group beside every node of another, by every split."""
    for partner in ask.subject.graph.children(parent.path):
        for split in splits:
            if partner.path != target or ask.apart(split, target):
                composition = (split, Interleave(split.loop), Merge(split.loop))
                yield Candidate(target, partner.path, composition)


def _beside(
    ask: Enumeration, target: str, parent: GraphNode, siblings: tuple[GraphNode, ...]
) -> Iterator[Candidate]:
    """The loop around the target beside its siblings: loops, consumers by rows, and the rest."""
    graph = ask.subject.graph
    order: list[str] = [node.path for node in siblings]
    others = [node for node in siblings if node.path != parent.path]

    def pair(other: GraphNode) -> Rewire:
        earlier, later = sorted((parent.path, other.path), key=order.index)
        return Rewire(later, earlier)

    for other in others:
        if other.kind == "loop" and other.rewritable:
            yield Candidate(target, other.path, (pair(other),))
    consumers = [
        other
        for other in others
        if other.kind == "exec"
        and order.index(other.path) > order.index(parent.path)
        and bool(other.declaration.rows)
        and graph.data_edges(parent.path, other.path)
    ]
    for other in consumers:
        for groups in range(2, ask.max_groups + 1):
            yield Candidate(
                target,
                other.path,
                (SpatialSplit(other.path, groups), Rewire(other.path, parent.path)),
            )
    for other in others:
        if other.kind == "exec" and other not in consumers:
            yield Candidate(target, other.path, (pair(other),))


def _in_body(graph: Graph, target: str, parent: str) -> Iterator[Candidate]:
    """A node of a body that is no loop: move it, nearest first, then what comes after it."""
    siblings: list[str] = [node.path for node in graph.children(parent)]
    at = siblings.index(target)
    for earlier in reversed(siblings[:at]):
        yield Candidate(target, earlier, (Rewire(target, earlier),))
    for later in siblings[at + 1 :]:
        yield Candidate(target, later, (Rewire(later, target),))
