"""A plan made by watching one native iteration: what the optimizer does, without times or choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from rose_opt.plan import (
    Hierarchy,
    Plan,
    PlanComponent,
    PlanNode,
    Preparations,
    Resident,
    Transformation,
    WorkerSpec,
    replicated_components,
)
from rose_trace import frames, hooks, pytree
from rose_trace.component import Instance, LocalComponents, program
from rose_trace.frames import Frame
from rose_trace.node import ExecutionNode


class Observer(LocalComponents):
    """Runs everything natively and notes each node once."""

    def __init__(self) -> None:
        self.nodes: dict[str, PlanNode] = {}
        self.components: dict[str, Instance] = {}
        self.counts: dict[str, set[int]] = {}

    def _note(self, node: ExecutionNode, instance: Instance | None, frame: Frame) -> Frame:
        name = node.full_name(instance)
        path = frame.child_path(name)
        parent = self.nodes.get(frame.path)
        if parent is not None and parent.kind == "exec" and not parent.composite:
            self.nodes[frame.path] = dataclasses.replace(parent, composite=True, opaque=False)
        if path not in self.nodes:
            access = node.accesses(instance)
            self.nodes[path] = PlanNode(
                path,
                name,
                node.key,
                node.kind,
                node.fingerprint,
                instance.name if instance else "",
                rows=node.declaration.rows,
                accesses=access.accesses if node.kind == "exec" else (),
                opaque=access.opaque and node.kind == "exec",
            )
        return Frame(path, frame.iteration)

    def _result(self, path: str, result: Any) -> None:
        text = pytree.flatten(result)[1].to_json()
        self.nodes[path] = dataclasses.replace(self.nodes[path], structure=text)

    def invoke(self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        frame = self._note(node, node.instance_of(args), frames.current.get() or Frame())
        with frames.entered(frame):
            result = node.entry(*args, **kwargs)
        if not node.is_async and not node.is_generator:
            self._result(frame.path, result)
        return result

    run_iteration = invoke

    def run_loop(self, loop: Any, carry: Any, items: Iterable[Any]) -> tuple[Any, Any]:
        frame = self._note(loop, loop.instance, frames.current.get() or Frame())
        items = list(items)
        with frames.entered(frame):
            carry, outputs = loop.run(carry, items)
        self._result(frame.path, carry)
        counts = self.counts.setdefault(frame.path, set())
        counts.add(len(items))
        count = len(items) if len(counts) == 1 else None
        self.nodes[frame.path] = dataclasses.replace(self.nodes[frame.path], count=count)
        return carry, outputs

    def iterate(self, name: str, items: Iterable[Any]) -> Iterable[Any]:
        frame = frames.current.get() or Frame()
        path = frame.child_path(name)
        self.nodes.setdefault(path, PlanNode(path, name, "", "loop", "", rewritable=False))
        for item in items:
            with frames.entered(Frame(path)):
                yield item

    def construct(
        self, instance: Instance, component: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.components[instance.name] = instance
        super().construct(instance, component, args, kwargs)


def observed_plan(
    build: Callable[[], Callable[[], Any]],
    *transforms: str,
    rows: int = 0,
    processes: Iterable[str] = (),
    cores: float = 0.0,
    **changes: Any,
) -> Plan:
    """Watch one native iteration of ``build()()`` and ask for `transforms`.

    Components whose keyed state is written below a split loop become shards in processes of their own.
    """
    watcher = Observer()
    hooks.install_executor(watcher)
    try:
        with program():
            build()()
    finally:
        hooks.install_executor(None)
    parsed = tuple(Transformation.parse(text) for text in transforms)
    splits = {t["loop"]: int(t["groups"]) for t in parsed if t.name == "split-spatial"}
    chains = {t["loop"]: int(t["groups"]) for t in parsed if t.name == "split-temporal"}
    found = Hierarchy(
        tuple(watcher.nodes.values()), tuple(PlanComponent(n, "") for n in watcher.components)
    )
    replicated = {
        name: groups
        for loop, groups in chains.items()
        if found.find(loop)
        for name in replicated_components(found, loop)
    }
    sharded: dict[str, int] = {}
    for node in watcher.nodes.values():
        for loop, groups in splits.items():
            if node.path.startswith(loop) and any(a.keyed and a.mode.writes for a in node.accesses):
                sharded[node.component] = groups
    workers = [
        WorkerSpec(f"{name}-{k}", "process", (Resident(name, k, groups),))
        for name, groups in sharded.items()
        for k in range(groups)
    ]
    workers += [
        WorkerSpec(f"{name}@{k}/{groups}", "process", (Resident(name, replica=k, replicas=groups),))
        for name, groups in replicated.items()
        for k in range(groups)
    ]
    workers += [
        WorkerSpec(name, "process", (Resident(name),))
        for name in processes
        if name not in replicated
    ]
    for copy in Preparations.of(parsed).copies(found):
        resident = Resident(copy.component, private=copy.readers)
        workers.append(WorkerSpec(copy.label, "process", (resident,)))
    components = tuple(
        PlanComponent(
            i.name,
            i.declared.key,
            i.batch_states,
            i.declared.shardable,
            sharded.get(i.name, 1),
            replicated.get(i.name, 1),
        )
        for i in watcher.components.values()
    )
    return Plan(
        rose_version="0",
        graph_fingerprint="0",
        nodes=tuple(watcher.nodes.values()),
        components=components,
        transforms=parsed,
        rows=dict.fromkeys(splits, rows),
        workers=tuple(workers),
        cores=cores,
        **changes,
    )
