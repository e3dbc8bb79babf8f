"""A program watched while it runs natively: its nodes as a plan without transforms, and digests of all it did.

The plan asks for nothing; with it the executor runs the program with every overlap that the declared
accesses allow inside one process. The digests are what another order must give, too.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rose_exec.digest import digest_rows
from rose_exec.streams import capturing
from rose_opt.plan import Plan, PlanComponent, PlanNode, PlanRefused, Transformation, verify
from rose_trace import frames, hooks, pytree
from rose_trace.component import Instance, LocalComponents, construct_natively, program
from rose_trace.frames import Frame
from rose_trace.loop import LoopNode
from rose_trace.node import ExecutionNode

Place = tuple[str, tuple[int, ...], int]
"""An invocation: path, iterations of the enclosing loops, ordinal among the calls there."""

Digests = tuple[tuple[str, tuple[str, ...]], ...]
"""Per leaf of a result: the digest of all of it, and of each entry on axis 0."""


@dataclass(slots=True)
class Observation:
    """What a native run was.

    Attributes:
        nodes: Every node, by path.
        components: Every component, by name.
        outputs: Digests of every invocation's result.
        built: What the program's factory returned.
        results: What each iteration returned.
    """

    nodes: dict[str, PlanNode] = field(default_factory=dict[str, PlanNode])
    components: dict[str, tuple[Instance, Any]] = field(
        default_factory=dict[str, tuple[Instance, Any]]
    )
    outputs: dict[Place, Digests] = field(default_factory=dict[Place, Digests])
    built: Any = None
    results: list[Any] = field(default_factory=list[Any])

    def plan(self) -> Plan:
        """The program's nodes, with every sibling loop beside the one before where that is legal."""
        plan = Plan(
            rose_version="0",
            graph_fingerprint="0",
            nodes=tuple(self.nodes.values()),
            components=tuple(
                PlanComponent(i.name, i.declared.key, i.batch_states, i.declared.shardable)
                for i, _ in self.components.values()
            ),
        )
        for earlier, later in _neighbours(plan.nodes):
            wanted = Transformation.parse(f"rewire{{node={later} beside={earlier}}}")
            tried = dataclasses.replace(plan, transforms=(*plan.transforms, wanted))
            try:
                verify(tried)
            except PlanRefused:
                continue
            plan = tried
        return plan


def observe(
    build: Callable[[], Any], run: Callable[[Any, int], Any], iterations: int
) -> Observation:
    """Build a program of its own and run it natively.

    Args:
        build: Builds it.
        run: Runs one iteration of what was built, given its number.
        iterations: How many to run.

    Returns:
        What was seen.
    """
    watcher = _Watcher()
    hooks.install_executor(watcher)
    try:
        with program():
            watcher.seen.built = build()
            for index in range(iterations):
                watcher.seen.results.append(run(watcher.seen.built, index))
    finally:
        hooks.install_executor(None)
    return watcher.seen


def output_digests(result: Any) -> Digests:
    """Digests of all leaves of a result."""
    return tuple(digest_rows(leaf) for leaf in pytree.flatten(result)[0])


class _Watcher(LocalComponents):
    """Runs everything natively and notes what it sees."""

    def __init__(self) -> None:
        self.seen = Observation()
        self._roots = 0
        self._counts: dict[str, set[int]] = {}
        self._varied: set[str] = set()

    def construct(
        self, instance: Instance, component: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note a component."""
        self.seen.components[instance.name] = instance, component
        construct_natively(instance, component)

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note one call of a node."""
        here = frames.current.get() or Frame()
        instance = node.instance_of(args)
        frame = self._note(node, instance, here)
        ordinal = here.next_ordinal(node.full_name(instance))
        with frames.entered(frame):
            result = node.entry(*args, **kwargs)
        if not node.suspends:
            self._structure(frame.path, result)
            if not capturing():  # what a graph will compute is not there yet
                self.seen.outputs[frame.path, here.iteration, ordinal] = output_digests(result)
        return result

    def run_iteration(
        self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Note one iteration."""
        frame = self._note(node, None, Frame())
        frame.iteration = (self._roots,)
        self._roots += 1
        with frames.entered(frame):
            return node.entry(*args, **kwargs)

    def run_loop(
        self, loop: LoopNode[Any, Any, Any], carry: Any, items: Iterable[Any]
    ) -> tuple[Any, Any]:
        """Note a loop and run its body in order."""
        here = frames.current.get() or Frame()
        frame = self._note(loop, loop.instance, here)
        outputs: list[Any] = []
        for index, item in enumerate(items):
            with frames.entered(Frame(frame.path, (*here.iteration, index))):
                carry, output = loop.body(carry, item)
            outputs.append(output)
        self._structure(frame.path, carry)
        known = self.seen.nodes[frame.path]
        counts = self._counts.setdefault(frame.path, set())
        counts.add(len(outputs))
        count = len(outputs) if len(counts) == 1 else None
        self.seen.nodes[frame.path] = dataclasses.replace(known, count=count)
        return carry, outputs

    def iterate(self, name: str, items: Iterable[Any]) -> Iterable[Any]:
        """Note a loop that cannot be rewritten."""
        here = frames.current.get() or Frame()
        path = here.child_path(name)
        self.seen.nodes.setdefault(path, PlanNode(path, name, "", "loop", "", rewritable=False))
        for index, item in enumerate(items):
            with frames.entered(Frame(path, (*here.iteration, index))):
                yield item

    def _note(self, node: ExecutionNode, instance: Instance | None, here: Frame) -> Frame:
        name = node.full_name(instance)
        path = here.child_path(name)
        parent = self.seen.nodes.get(here.path)
        if parent is not None and parent.kind == "exec" and not parent.composite:
            self.seen.nodes[here.path] = dataclasses.replace(parent, composite=True, opaque=False)
        if path not in self.seen.nodes:
            access = node.accesses(instance)
            leaf = node.kind == "exec"
            self.seen.nodes[path] = PlanNode(
                path,
                name,
                node.key,
                node.kind,
                node.fingerprint,
                instance.name if instance else "",
                rows=node.declaration.rows,
                accesses=access.accesses if leaf else (),
                opaque=access.opaque and leaf,
            )
        return Frame(path, here.iteration)

    def _structure(self, path: str, result: Any) -> None:
        """Note the containers of a result; none where they vary."""
        text = pytree.flatten(result)[1].to_json()
        known = self.seen.nodes[path]
        if known.structure and known.structure != text:
            one, two = map(pytree.Structure.from_json, (known.structure, text))
            if not one.matches(two):
                self._varied.add(path)
        text = "" if path in self._varied else text
        self.seen.nodes[path] = dataclasses.replace(known, structure=text)


def _neighbours(nodes: Sequence[PlanNode]) -> Iterable[tuple[str, str]]:
    """Loops of one body, each with the next, in program order."""
    loops: dict[str, list[str]] = {}
    for node in nodes:
        if node.kind == "loop" and node.rewritable:
            loops.setdefault(node.path.rpartition("/")[0], []).append(node.path)
    for siblings in loops.values():
        yield from itertools.pairwise(siblings)
