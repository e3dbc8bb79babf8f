"""The sanitizer of a session: runs its tasks one by one, looks before and after, and says what was wrong.

Glue does not run while a body does, so what changes in between was changed by that body. Every check is
made from what was seen and from the declarations; whether two accesses collided in time does not matter.

Paper: §4.3.1; docs/sanitizer.md says what cannot be seen.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rose_exec import wire
from rose_exec.digest import digest
from rose_exec.native import observer
from rose_exec.readiness import StrandId, Submission, TaskId
from rose_exec.sanitizer import messages
from rose_exec.sanitizer.findings import Checks, Finding, SanitizerError, SanitizerWarning
from rose_exec.sanitizer.handed import Handed, deferred_values
from rose_exec.sanitizer.order import Order
from rose_exec.sanitizer.reads import AttributeReads, memory_reads
from rose_exec.sanitizer.touches import Pair, Touch, Touches
from rose_exec.sanitizer.trials import Inconclusive, RefreshTrial, RowsTrial, Trials
from rose_exec.sanitizer.watch import Leaf, Regions, Watch, memory_of
from rose_exec.stepper import RandomOrder, Stepper, in_program_order
from rose_exec.tasks import Task
from rose_exec.workers import Job
from rose_trace import generators, pytree
from rose_trace.component import Instance, instance_of
from rose_trace.node import ExecutionNode
from rose_trace.records import Access


@dataclass(slots=True)
class Body:
    """One open invocation.

    Attributes:
        task: Task it belongs to.
        node: Its definition.
        instance: Its component.
        path: Node path.
        invocation: Path with iterations.
        accesses: What it declares, and what its trace has seen it draw.
        children: Calls of other nodes so far.
        wrote: Paths that it, or what it called, has written.
        pending: Changes of a node that declares nothing, until it is known whether it calls others.
    """

    task: TaskId
    node: ExecutionNode
    instance: Instance | None
    path: str
    invocation: str
    accesses: tuple[Access, ...]
    children: int = 0
    wrote: set[str] = field(default_factory=set[str])
    pending: list[str] = field(default_factory=list[str])

    @property
    def silent(self) -> bool:
        """Whether it declares nothing: alone it is a fence, with children it is glue."""
        return self.node.declaration.silent

    def writes(self, component: str) -> tuple[str, ...]:
        """States of a component that it declares to write."""
        return tuple(
            a.state for a in self.accesses if a.mode.writes and a.state.startswith(f"{component}.")
        )


@dataclass(slots=True)
class _Iteration:
    """What was seen of one iteration."""

    order: Order = field(default_factory=Order)
    touches: Touches = field(default_factory=Touches)
    handed: Handed = field(default_factory=Handed)
    names: dict[TaskId, tuple[str, str]] = field(default_factory=dict[TaskId, tuple[str, str]])


class Sanitizer(Stepper):
    """Checks one session.

    Args:
        settings: What to check, and how thoroughly.

    Attributes:
        notes: What could not be looked into, and why, by path.
    """

    def __init__(self, settings: Checks) -> None:
        policy = in_program_order if settings.seed is None else RandomOrder(settings.seed)
        super().__init__(policy, self)
        self._settings = settings
        self._watch = Watch(settings.full_bytes)
        self._trials = Trials(settings.trials)
        self._attributes = AttributeReads(self._read_attribute)
        self._labels: dict[int, str] = {}
        self._seen: dict[str, Leaf] = {}
        self._regions = Regions({})
        self._roots: set[str] = set()
        self._drawn = generators.capture()
        self._owners: dict[str, tuple[set[str], str]] = {}
        self._now = _Iteration()
        self._stack: list[Body] = []
        self._task: tuple[Task, Submission] | None = None
        self._trying = False
        self._listening = False
        self._thread_id = 0
        self._unwatched = ""
        self._findings: dict[tuple[str, str, str], Finding] = {}
        self._pairless: dict[tuple[str, str, str], str] = {}
        self.notes: dict[str, str] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything found so far, each kind once per node and state."""
        return tuple(self._findings.values())

    def report(self, raising: bool) -> None:
        """End the session: put everything back and say what was found.

        Args:
            raising: Whether an error of its own would hide nothing.

        Raises:
            SanitizerError: If something was found and the settings ask for it.
        """
        self.close()
        self._attributes.close()
        if not self._findings or not raising:
            return
        if self._settings.fail:
            raise SanitizerError(self.findings)
        for finding in self.findings:
            warnings.warn(str(finding), SanitizerWarning, stacklevel=4)

    # What the session tells ---------------------------------------------------------------------

    def built(self, label: str, component: Any) -> None:
        """Watch a component."""
        instance = instance_of(component)
        name = label if instance is None or "built earlier" not in label else instance.name
        self._labels[id(component)] = name
        self._watch.add_component(name, component)
        self._trials.keep_first(name, component)
        if self._settings.reads:
            self._attributes.add(type(component))

    def submitted(self, task: Task, submission: Submission) -> None:
        """Note what the executor orders a task against."""
        super().submitted(task, submission)
        inputs = [r.id for value in task.values for r in value.results()]
        self._now.order.submitted(
            submission.id, submission.position, submission.access, inputs, submission.strand
        )
        self._now.handed.used(submission.id, iter(task.values))
        self._now.names[submission.id] = task.job.path, _invocation(task)

    def opened(self, strand: StrandId, parent: StrandId) -> None:
        """A branch begins."""
        self._now.order.opened(strand, parent)

    def joined(self, strand: StrandId, branch: StrandId) -> None:
        """A branch has ended for another."""
        self._now.order.joined(strand, branch)

    def waited(self, strand: StrandId, task: TaskId | None) -> None:
        """Glue knows that a task is done."""
        self._now.order.waited(strand, task)

    def glue(self, entry: Callable[..., Any], path: str) -> None:
        """Watch what glue refers to."""
        self._watch.add_code(entry, path)

    def let_be(self, path: str) -> None:
        """What a coroutine or generator does is not looked at, nor what glue does meanwhile."""
        self._unwatched = path
        self.notes.setdefault(path, "a coroutine or generator runs beside the program, unwatched")

    def begun(self) -> None:
        """What the program did between iterations is its own affair."""
        self._look()

    def ended(self, result: Any) -> None:
        """Look at the last glue, and at all pairs of the iteration."""
        self._blame_glue("the end of the iteration")
        now, self._now = self._now, _Iteration()
        now.handed.used(None, deferred_values(result))
        clocks = now.order.clocks()
        kinds = {path: leaf.kind for path, leaf in self._seen.items()}
        for pair in now.touches.pairs(clocks, kinds):
            self._judge(pair)
        for earlier, later in clocks.broken(now.touches.ran):
            self._add(messages.out_of_order(now.names[earlier], now.names[later]))
        self._complete_pairs(now.touches)
        for item in now.handed.overwritten(clocks, now.touches.places):
            self._add(messages.overwritten(item, now.names))
        self.notes |= {k: f"cannot look into {v}" for k, v in self._watch.unseen.items()}
        self.notes |= self._trials.notes
        super().ended(result)

    # Bodies -------------------------------------------------------------------------------------

    def run(self, task: Task, submission: Submission, execute: Callable[[Job], Any]) -> Any:
        """Run a task's body under observation."""
        self._task = task, submission
        self._thread_id = threading.get_ident()
        self._now.touches.ran[submission.id] = len(self._now.touches.ran)
        job = task.job
        function = job.function
        if function is not None and task.node is not None:
            node = task.node
            job.function = lambda *args, **kwargs: self.observe(
                node, args, kwargs, lambda: function(*args, **kwargs)
            )
        mark = observer.set(self)
        try:
            return execute(job)
        finally:
            observer.reset(mark)
            job.function = function
            self._task = None

    def answered(self, task: TaskId, result: Any, leaves: Sequence[wire.Wire]) -> None:
        """Note results that are views of something kept."""
        self._now.handed.out(task, result, self._regions)

    def observe(
        self,
        node: ExecutionNode,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        """Run one body: look, run, look, and try again where a trial is due."""
        if self._trying or self._task is None or node.suspends:
            return run()
        outer, self._listening = self._listening, False
        try:
            return self._observed(node, args, kwargs, run)
        finally:
            self._listening = outer

    def _observed(
        self,
        node: ExecutionNode,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        body = self._enter(node, args)
        inputs = self._inputs(node, args, kwargs)
        rows = self._trials.rows(body.path, node, args, kwargs)
        refresh = self._refresh_trial(body, args, kwargs)
        outermost = self._settings.reads and len(self._stack) == 1
        try:
            with memory_reads(self._read_memory) if outermost else contextlib.nullcontext():
                self._listening = True
                try:
                    result = run()
                finally:
                    self._listening = False
        finally:
            self._leave(body)
        self._compare_inputs(body, inputs)
        if rows is not None or refresh is not None:
            self._try(body, args, result, rows, refresh)
        return result

    def _enter(self, node: ExecutionNode, args: tuple[Any, ...]) -> Body:
        assert self._task is not None
        task, submission = self._task
        instance = node.instance_of(args)
        name = node.full_name(instance)
        self._watch.add_code(node.entry, name)
        if self._stack:
            outer = self._stack[-1]
            outer.children += 1
            path = f"{outer.path}/{name}"
            invocation = outer.invocation.replace(outer.path, path, 1)
            self._attribute(outer)
        else:
            path, invocation = task.job.path, _invocation(task)
            self._blame_glue(invocation)
        seen = tuple(a for a in task.job.allowed.accesses if a.state.startswith("generator."))
        body = Body(
            submission.id, node, instance, path, invocation, node.accesses(instance).accesses + seen
        )
        self._stack.append(body)
        return body

    def _leave(self, body: Body) -> None:
        self._attribute(body)
        if body.silent and body.children:
            for path in body.pending:
                self._add(messages.glue_writes(path, body.path, body.invocation))
        self._stack.pop()
        if self._stack:
            self._stack[-1].wrote |= body.wrote

    def _look(self) -> tuple[list[tuple[str, bool]], tuple[str, ...]]:
        """Look at everything; returns what changed, whether in place, and the generators drawn from."""
        seen = self._watch.look()
        drawn = generators.capture()
        before = self._seen
        changed = [
            (path, _in_place(before.get(path), seen.get(path)))
            for path in dict.fromkeys((*before, *seen))
            if _value(before.get(path)) != _value(seen.get(path))
            and (seen.get(path) or before[path]).root in self._roots
        ]
        names = generators.changed(self._drawn, drawn)
        self._seen, self._drawn = seen, drawn
        self._regions = Regions(seen)
        self._roots = set(self._watch.roots)
        return changed, names

    def _blame_glue(self, until: str) -> None:
        changed, drawn = self._look()
        if self._unwatched:
            self._unwatched = ""
            return
        for path, _ in changed:
            owner = self._watch.roots[self._root_of(path)].owner
            self._add(messages.glue_writes(path, owner or "the program's glue", f"before {until}"))
        for name in drawn:
            self._add(messages.glue_draws(name, f"before {until}"))

    def _attribute(self, body: Body) -> None:
        """Put down what changed since the last look to a body."""
        before = self._regions
        old = self._seen
        changed, drawn = self._look()
        for name in drawn:
            state = f"generator.{name}"
            body.wrote.add(state)
            if not body.silent and not any(
                a.state == state and a.mode.writes for a in body.accesses
            ):
                self._add(messages.draws(body.path, body.invocation, name))
        for path, in_place in changed:
            body.wrote.add(path)
            if body.silent:
                body.pending.append(path)
                self._now.touches.add(
                    path, Touch(body.task, body.path, body.invocation, True, in_place)
                )
                continue
            self._write(body, path, in_place, old, before)

    def _write(
        self, body: Body, path: str, in_place: bool, old: dict[str, Leaf], before: Regions
    ) -> None:
        leaf = self._seen.get(path) or old[path]
        root = self._watch.roots[leaf.root]
        aliases = [p for p in before.at(leaf.start, leaf.stop) if p != path] if leaf.stop else []
        states: tuple[str, ...] = ()
        if root.kind == "component":
            names = {self._component_of(p) for p in (path, *aliases)}
            states = tuple(s for name in sorted(names) for s in body.writes(name))
        else:
            known = {i.name for i in map(instance_of, self._components()) if i is not None}
            states = tuple(
                a.state
                for a in body.accesses
                if a.mode.writes and a.state.partition(".")[0] not in known | {"generator"}
            )
        self._now.touches.add(
            path,
            Touch(body.task, body.path, body.invocation, True, in_place, states, bool(states)),
        )
        if states:
            self._own(body, path, states)
            return
        partner = next((p for p in aliases if self._root_of(p) != leaf.root), "")
        finding = (
            messages.shared(body.path, body.invocation, path, partner)
            if partner
            else messages.writes(
                body.path,
                body.invocation,
                path,
                leaf.kind,
                root.kind,
                tuple(map(str, body.accesses)),
                body.node.declaration.pure,
            )
        )
        self._add(finding)
        self._pairless[finding.kind, finding.node, finding.state] = path

    def _own(self, body: Body, path: str, states: tuple[str, ...]) -> None:
        """Which states a value can belong to: those that everybody declares who writes it."""
        owners, first = self._owners.get(path, (set(states), body.invocation))
        if not owners & set(states):
            self._add(
                messages.two_states(body.path, body.invocation, first, path, sorted(owners), states)
            )
            return
        self._owners[path] = owners & set(states), first

    # Reads --------------------------------------------------------------------------------------

    def _reader(self) -> Body | None:
        listening = self._listening and threading.get_ident() == self._thread_id
        return self._stack[-1] if listening else None

    def _read_attribute(self, component: Any, name: str) -> None:
        body = self._reader()
        label = self._labels.get(id(component))
        if body is None or label is None:
            return
        touch = Touch(body.task, body.path, body.invocation, False)
        place = f"{label}.{name}"
        if name not in component.__dict__:
            for cls in type(component).__mro__:
                if name in vars(cls):
                    place = f"{cls.__qualname__.replace('<locals>.', '')}.{name}"
                    break
        self._now.touches.add_attribute(place, touch)

    def _read_memory(self, start: int, stop: int) -> None:
        body = self._reader()
        if body is None:
            return
        touch = Touch(body.task, body.path, body.invocation, False)
        for path in self._regions.at(start, stop):
            self._now.touches.add(path, touch)

    # Arguments and trials -----------------------------------------------------------------------

    def _inputs(
        self, node: ExecutionNode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[str, Any, str]]:
        """Arguments that could be written into: name, leaf and digest."""
        try:
            bound = inspect.signature(node.entry).bind(*args, **kwargs).arguments
        except TypeError:
            return []
        skip = next(iter(bound), None) if node.is_method else None
        found: list[tuple[str, Any, str]] = []
        for name, value in bound.items():
            if name == skip:
                continue
            for leaf in pytree.flatten(value)[0]:
                span = memory_of(leaf)
                if span is not None and not self._regions.at(*span):
                    found.append((name, leaf, digest(leaf, self._settings.full_bytes)))
        return found

    def _compare_inputs(self, body: Body, inputs: list[tuple[str, Any, str]]) -> None:
        for name, leaf, before in inputs:
            if digest(leaf, self._settings.full_bytes) != before:
                assert self._task is not None
                producers = [
                    self._now.names[r.id][1]
                    for value in self._task[0].values
                    for r in value.results()
                    if r.id in self._now.names
                ]
                self._add(messages.input_written(body.path, body.invocation, name, producers))

    def _refresh_trial(
        self, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RefreshTrial | None:
        if body.instance is None or not body.node.declaration.refreshes:
            return None
        label = self._labels.get(id(args[0]))
        if label is None:
            return None
        refreshed = {a.state for a in body.accesses if a.mode.value == "refresh"}
        own = {p: o for p, (o, _) in self._owners.items() if self._root_of(p) == label}
        changed = {_top(p, label) for p in own}
        owned = {_top(p, label) for p, states in own.items() if states & refreshed}
        if not owned:
            return None
        return self._trials.refresh(body.path, label, args, kwargs, owned, changed - owned)

    def _try(
        self,
        body: Body,
        args: tuple[Any, ...],
        result: Any,
        rows: RowsTrial | None,
        refresh: RefreshTrial | None,
    ) -> None:
        """Carry out trials on copies; nothing that the program keeps may change by it."""
        if any(
            self._watch.roots[self._root_of(p)].kind != "component"
            for p in body.wrote
            if p in self._seen
        ):
            return  # it would count twice
        entry = body.node.entry
        self._trying = True
        try:
            if rows is not None:
                differing = rows.outcome(lambda a, k: entry(*a, **k))
                if differing is not None:
                    self._add(
                        messages.rows_interfere(body.path, body.invocation, differing, rows.kept)
                    )
            if refresh is not None:
                inherits = refresh.outcome(lambda a, k: entry(*a, **k), result, args[0])
                if inherits is not None:
                    states = [a.state for a in body.accesses if a.mode.value == "refresh"]
                    self._add(messages.inherits(body.path, body.invocation, states, inherits))
        except Inconclusive as reason:
            self.notes[body.path] = f"no trial: {reason}"
            self._trials.notes[body.path] = str(reason)
        finally:
            self._trying = False
        changed, drawn = self._look()
        if changed or drawn:
            what = ", ".join([*(p for p, _ in changed[:3]), *drawn])
            self._trials.notes[body.path] = f"a trial changed {what}: no more trials"

    # Judgement ----------------------------------------------------------------------------------

    def _judge(self, pair: Pair) -> None:
        earlier, later = pair.earlier, pair.later
        writer, other = (earlier, later) if earlier.writes else (later, earlier)
        for touch in (earlier, later):
            if touch.writes and not touch.allowed:
                return  # the undeclared write is the cause, and is told with its pair
        if any(f.kind == "two states" and f.state == pair.place for f in self.findings):
            return
        leaf = self._seen.get(pair.place)
        names = [
            pair.place,
            *(self._regions.at(leaf.start, leaf.stop) if leaf and leaf.stop else ()),
        ]
        roots = {self._root_of(name): name for name in names}
        if len(roots) > 1:
            own = next(
                (n for r, n in roots.items() if writer.declared[:1] and self._names(writer, r)),
                pair.place,
            )
            partner = next(name for root, name in roots.items() if root != self._root_of(own))
            finding = messages.shared(writer.node, writer.invocation, own, partner)
            self._add(replace(finding, other=other.invocation), "memory")
            return
        state = (writer.declared or (pair.place,))[0]
        self._add(messages.unordered(pair, writer, other), state)

    def _names(self, writer: Touch, root: str) -> bool:
        """Whether a write was declared under a component's name."""
        name = self._component_of(f"{root}.")
        return any(state.startswith(f"{name}.") for state in writer.declared)

    def _complete_pairs(self, touches: Touches) -> None:
        """Give each undeclared write another invocation that touches the same."""
        for key, path in list(self._pairless.items()):
            finding = self._findings.get(key)
            kind = self._seen[path].kind if path in self._seen else "plain"
            others = [
                t
                for t in touches.of(path, kind)
                if t.invocation != getattr(finding, "invocation", "")
            ]
            if finding is not None and not finding.other and others:
                conflicting = [t for t in others if t.node != finding.node] or others
                self._findings[key] = replace(finding, other=conflicting[0].invocation)
                del self._pairless[key]

    def _add(self, finding: Finding, state: str = "") -> None:
        """Keep a finding, the first of its kind for a node and a state."""
        self._findings.setdefault((finding.kind, finding.node, state or finding.state), finding)

    def _root_of(self, path: str) -> str:
        leaf = self._seen.get(path)
        if leaf is not None:
            return leaf.root
        return next(
            (r for r in self._watch.roots if path.startswith(f"{r}.")), path.partition(".")[0]
        )

    def _component_of(self, path: str) -> str:
        """Name of the component that a path belongs to; shards and replicas have their whole's."""
        root = self._watch.roots.get(path[:-1] if path.endswith(".") else self._root_of(path))
        instance = None if root is None or root.target is None else instance_of(root.target)
        return "" if instance is None else instance.name

    def _components(self) -> list[Any]:
        return [root.target for root in self._watch.roots.values() if root.target is not None]


def _invocation(task: Task) -> str:
    frame = task.job.frame
    ordinal = next(iter(frame.calls.values()), 0)
    iteration = ",".join(map(str, frame.iteration))
    rows = "" if frame.rows is None else f" rows {frame.rows.start}..{frame.rows.stop - 1}"
    return f"{task.job.path}[{iteration}]{f'#{ordinal}' if ordinal else ''}{rows}"


def _value(leaf: Leaf | None) -> tuple[str, int] | None:
    return None if leaf is None else (leaf.digest, leaf.version)


def _in_place(before: Leaf | None, after: Leaf | None) -> bool:
    return before is not None and after is not None and 0 < before.start == after.start


def _top(path: str, label: str) -> str:
    return path[len(label) + 1 :].partition(".")[0].partition("[")[0]
