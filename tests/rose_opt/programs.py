"""Graphs and facts written by hand, for tests of the planner."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rose_opt.facts import Facts, IterationTiming, Probe, Timing
from rose_opt.graph import DataEdge, Graph, GraphNode, NodeKind
from rose_opt.transforms import Subject
from rose_trace.legality import AccessSet
from rose_trace.records import Declaration, NodePath

ROWS = 64


def tensor(*shape: int) -> str:
    """Structure of a result that is one tensor."""
    return json.dumps(["leaf", "tensor", "float32", list(shape)], separators=(",", ":"))


@dataclass
class Author:
    """Writes a graph node by node.

    Attributes:
        batch_states: Batch states by component.
        shardable: Components that can be built as shards.
    """

    batch_states: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    shardable: Sequence[str] = ()
    nodes: list[GraphNode] = field(default_factory=list[GraphNode])
    edges: list[DataEdge] = field(default_factory=list[DataEdge])

    def add(
        self,
        path: str,
        kind: NodeKind = "exec",
        *,
        count: int | None = None,
        composite: bool = False,
        structure: str | None = None,
        rewritable: bool = True,
        **declared: object,
    ) -> None:
        """Add a node; states as in `rose.node`."""
        parent, _, name = path.rpartition("/")
        words = {
            key: (value,) if isinstance(value, str) else value for key, value in declared.items()
        }
        if words.get("rows") == (True,):
            words["rows"] = True
        declaration = Declaration(**words)  # pyright: ignore[reportArgumentType]
        component = name.partition(".")[0] if "." in name else None
        silent = kind == "exec" and not composite and declaration.silent
        accesses = declaration.accesses(component, self.batch_states.get(component or "", ()))
        self.nodes.append(
            GraphNode(
                path=NodePath(path),
                name=name,
                key=f"program:{name}",
                kind=kind,
                parent=NodePath(parent) if parent else None,
                declaration=declaration,
                accesses=AccessSet(accesses, silent),
                fingerprint=f"f-{name}",
                count=count,
                component=component,
                component_class=None if component is None else f"program:{component.title()}",
                shardable=component in self.shardable,
                composite=composite,
                structure=structure,
                rewritable=rewritable,
            )
        )

    def flow(
        self,
        producer: str,
        consumer: str,
        loop: str,
        *,
        distance: int = 0,
        all_iterations: bool = False,
        alignment: int | None = None,
    ) -> None:
        """Add a data edge."""
        self.edges.append(
            DataEdge(
                NodePath(producer),
                NodePath(consumer),
                NodePath(loop),
                distance,
                all_iterations,
                alignment,
            )
        )

    def graph(self) -> Graph:
        """The verified graph."""
        made = Graph(tuple(self.nodes), tuple(self.edges))
        made.verify()
        return made


def ppo(
    *,
    epochs: int = 3,
    steps: int = 4,
    shared_module: bool = False,
    learn_from: str = "epoch",
    step: Mapping[str, object] | None = None,
    extra: Mapping[str, object] | None = None,
    batch_states: Sequence[str] = ("episode",),
    shardable: Sequence[str] = ("sim",),
    result: str | None = None,
) -> Graph:
    """PPO as in the reference program, and the ways to write it that forbid an overlap.

    Args:
        epochs: Rollout epochs.
        steps: Steps of an epoch.
        shared_module: Whether learning updates the weights that rollout reads.
        learn_from: ``epoch``, or ``all`` for advantages and shuffles over all epochs.
        step: Declaration of ``sim.step``.
        extra: Declaration of one more node in the interaction loop.
        batch_states: Batch states of the simulator.
        shardable: Components that can be built as shards.
        result: Structure of what ``sim.step`` returns.
    """
    weights = "policy.weights" if shared_module else "weights"
    it, ro = "iteration", "iteration/rollout"
    inner, learn = f"{ro}/interact", f"{it}/learn"
    author = Author({"sim": batch_states}, shardable)
    rows = tensor(ROWS, 4)
    author.add(it, "iteration")
    author.add(ro, "loop", count=epochs, structure='["none",[],"",[]]')
    author.add(f"{ro}/sim.reset", refreshes="episode", rows=True, structure=rows)
    author.add(inner, "loop", count=steps, structure=rows)
    act = f"{inner}/policy.act"
    author.add(act, composite=True, rows=True, structure=rows)
    author.add(f"{act}/policy.encode", reads="weights", rows=True, structure=rows)
    author.add(f"{act}/policy.denoise", reads="weights", rows=True, structure=rows)
    declared = {"updates": "episode", "rows": True} if step is None else dict(step)
    author.add(f"{inner}/sim.step", structure=result or rows, **declared)  # pyright: ignore
    if extra is not None:
        author.add(f"{inner}/stats.observe", structure='["none",[],"",[]]', **extra)  # pyright: ignore
    author.add(f"{ro}/policy.value", reads="weights", rows=True, structure=tensor(ROWS))
    author.add(learn, "loop", count=epochs, structure='["none",[],"",[]]')
    author.add(f"{learn}/trainer.update", updates=weights)
    author.add(f"{it}/trainer.weights", reads=weights)
    author.add(f"{it}/policy.load", refreshes="weights")
    author.flow(f"{ro}/sim.reset", f"{act}/policy.encode", ro)
    author.flow(f"{act}/policy.encode", f"{act}/policy.denoise", inner)
    author.flow(f"{act}/policy.denoise", f"{inner}/sim.step", inner)
    author.flow(f"{inner}/sim.step", f"{act}/policy.encode", inner, distance=1)
    if extra is not None:
        author.flow(f"{inner}/sim.step", f"{inner}/stats.observe", inner)
    author.flow(f"{inner}/sim.step", f"{ro}/policy.value", ro)
    for producer in (f"{act}/policy.denoise", f"{inner}/sim.step", f"{ro}/policy.value"):
        author.flow(
            producer,
            f"{learn}/trainer.update",
            it,
            all_iterations=learn_from == "all",
            alignment=0 if learn_from == "epoch" else None,
        )
    author.flow(f"{it}/trainer.weights", f"{it}/policy.load", it)
    return author.graph()


INTERACT = "iteration/rollout/interact"
ACT = f"{INTERACT}/policy.act"
STEP = f"{INTERACT}/sim.step"
UPDATE = "iteration/learn/trainer.update"


def batch(graph: Graph, rows: int | None = ROWS) -> Subject:
    """The subject of a graph whose loops all work on one batch."""
    sizes = {} if rows is None else {str(loop.path): rows for loop in graph.loops()}
    return Subject(graph, sizes)


@dataclass(frozen=True)
class Took:
    """How long one call of a leaf took natively.

    Attributes:
        ms: Duration [ms].
        cores: Cores it kept busy.
        threads: Intra-op threads.
    """

    ms: float
    cores: float = 1.0
    threads: int = 2


def measured(
    graph: Graph,
    took: Mapping[str, Took],
    probes: Sequence[Probe] = (),
    rows: int = ROWS,
    glue_ms: float = 0.0,
) -> Facts:
    """Facts of one recorded iteration.

    Args:
        graph: The graph; its loops have fixed counts.
        took: Durations of leaves by path; leaves that are absent take 0.1 ms.
        probes: Measured variants.
        rows: Batch size.
        glue_ms: Glue of the iteration [ms].
    """
    timings: dict[str, Timing] = {}

    def runs(path: str) -> int:
        total = 1
        for loop in graph.enclosing_loops(path):
            total *= loop.count or 1
        return total

    def total(path: str) -> tuple[int, int, int]:
        node = graph.node(path)
        if node.kind == "exec" and not node.composite:
            it = took.get(path, Took(0.1))
            each = round(it.ms * 1e6)
            return each * runs(path), round(each * it.cores) * runs(path), it.threads
        parts = [total(child.path) for child in graph.children(path)]
        return sum(p[0] for p in parts), sum(p[1] for p in parts), max(p[2] for p in parts)

    for node in graph.nodes:
        wall, cpu, threads = total(node.path)
        count = runs(node.path)
        if node is graph.root:
            wall += round(glue_ms * 1e6)
        timings[node.path] = Timing(
            node.path,
            count,
            wall,
            wall // count,
            wall // count,
            0,
            cpu // count,
            cpu / wall,
            threads,
        )
    whole = timings[graph.root.path].mean_ns
    return Facts(
        graph=graph,
        loops={},
        iteration=IterationTiming(1, 1, whole, round(glue_ms * 1e6)),
        timings=timings,
        rows={loop.path: rows for loop in graph.loops()},
        probes=tuple(probes),
    )


def probe(
    path: str,
    ms: float,
    *,
    groups: int = 2,
    threads: int = 1,
    variant: str = "part",
    cores: float | None = None,
    identical: bool | None = True,
) -> Probe:
    """One measured way of running a node on a part of the rows."""
    duration = round(ms * 1e6)
    return Probe(
        NodePath(path),
        variant,  # pyright: ignore[reportArgumentType]
        groups,
        threads,
        1,
        duration,
        round(duration * (threads if cores is None else cores)),
        identical,
    )
