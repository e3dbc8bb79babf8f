"""The sanitizer of a session: runs its tasks one by one, looks before and after, and says what was wrong.

Glue does not run while a body does, so what changes in between was changed by that body. Every check is
made from what was seen and from the declarations; whether two accesses collided in time does not matter.

Paper: §4.3.1; docs/sanitizer.md says what cannot be seen.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rose_exec import streams, wire
from rose_exec.native import observer
from rose_exec.policies import RandomOrder, in_program_order
from rose_exec.readiness import StrandId, Submission, TaskId
from rose_exec.sanitizer import messages
from rose_exec.sanitizer.blame import Blame
from rose_exec.sanitizer.body import Body, invocation_of
from rose_exec.sanitizer.findings import Checks, Finding, SanitizerError, SanitizerWarning
from rose_exec.sanitizer.handed import Handed, deferred_values
from rose_exec.sanitizer.inputs import Inputs
from rose_exec.sanitizer.kept import Kept
from rose_exec.sanitizer.order import Order
from rose_exec.sanitizer.reads import AttributeReads, memory_reads
from rose_exec.sanitizer.touches import Touch
from rose_exec.sanitizer.trials import Inconclusive, RefreshTrial, RowsTrial, Trials
from rose_exec.sanitizer.verdicts import Verdicts
from rose_exec.stepper import Stepper
from rose_exec.tasks import Task
from rose_exec.workers import Job
from rose_trace.node import ExecutionNode


@dataclass(slots=True)
class _Iteration:
    """What was seen of one iteration."""

    order: Order = field(default_factory=Order)
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
        self._kept = Kept(settings.full_bytes)
        self._verdicts = Verdicts(self._kept)
        self._blame = Blame(self._kept, self._verdicts)
        self._trials = Trials(settings.trials)
        self._attributes = AttributeReads(self._read_attribute)
        self._now = _Iteration()
        self._task: tuple[Task, Submission] | None = None
        self._trying = False
        self._listening = False
        self._thread_id = 0
        self.notes: dict[str, str] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything found so far, each kind once per node and state."""
        return tuple(self._verdicts.findings.values())

    def report(self, raising: bool) -> None:
        """End the session: put everything back and say what was found.

        Args:
            raising: Whether an error of its own would hide nothing.

        Raises:
            SanitizerError: If something was found and the settings ask for it.
        """
        self.close()
        self._attributes.close()
        if not self._verdicts.findings or not raising:
            return
        if self._settings.fail:
            raise SanitizerError(self.findings)
        for finding in self.findings:
            warnings.warn(str(finding), SanitizerWarning, stacklevel=4)

    # What the session tells ---------------------------------------------------------------------

    def built(self, label: str, component: Any) -> None:
        """Watch a component."""
        name = self._kept.add(label, component)
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
        self._now.names[submission.id] = task.job.path, invocation_of(task)

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
        self._kept.watch.add_code(entry, path)

    def let_be(self, path: str) -> None:
        """What a coroutine or generator does is not looked at, nor what glue does meanwhile."""
        self._blame.unwatched = True
        self.notes.setdefault(path, "a coroutine or generator runs beside the program, unwatched")

    def begun(self) -> None:
        """What the program did between iterations is its own affair."""
        self._kept.look()

    def ended(self, result: Any) -> None:
        """Look at the last glue, and at all pairs of the iteration."""
        self._blame.glue("the end of the iteration")
        now, self._now = self._now, _Iteration()
        touches = self._blame.next_iteration()
        now.handed.used(None, deferred_values(result))
        clocks = now.order.clocks()
        kinds = {path: leaf.kind for path, leaf in self._kept.seen.items()}
        for pair in touches.pairs(clocks, kinds):
            self._verdicts.judge(pair)
        for earlier, later in clocks.broken(touches.ran):
            self._verdicts.add(messages.out_of_order(now.names[earlier], now.names[later]))
        self._verdicts.complete_pairs(touches)
        for item in now.handed.overwritten(clocks, touches.places):
            self._verdicts.add(messages.overwritten(item, now.names))
        self.notes |= {k: f"cannot look into {v}" for k, v in self._kept.watch.unseen.items()}
        self.notes |= self._trials.notes
        super().ended(result)

    # Bodies -------------------------------------------------------------------------------------

    def run(self, task: Task, submission: Submission, execute: Callable[[Job], Any]) -> Any:
        """Run a task's body under observation."""
        self._task = task, submission
        self._thread_id = threading.get_ident()
        self._blame.touches.ran[submission.id] = len(self._blame.touches.ran)
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
        self._now.handed.out(task, result, self._kept.regions)

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
        if streams.capturing():  # the node that captures answers for what is recorded
            self._captured(node, args)
            return run()
        outer, self._listening = self._listening, False
        try:
            return self._observed(node, args, kwargs, run)
        finally:
            self._listening = outer

    def _captured(self, node: ExecutionNode, args: tuple[Any, ...]) -> None:
        """Let a node be that runs while its caller captures a CUDA graph."""
        name = node.full_name(node.instance_of(args))
        bodies = self._blame.bodies
        path = f"{bodies[-1].path}/{name}" if bodies else name
        self.notes.setdefault(path, "runs while a CUDA graph is captured, unwatched")

    def _observed(
        self,
        node: ExecutionNode,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        assert self._task is not None
        task, submission = self._task
        body = self._blame.enter(task, node, args, submission.id)
        inputs = Inputs.of(node, args, kwargs, self._kept.regions, self._settings.full_bytes)
        rows = self._trials.rows(body.path, node, args, kwargs)
        refresh = self._refresh_trial(body, args, kwargs)
        outermost = self._settings.reads and len(self._blame.bodies) == 1
        try:
            with memory_reads(self._read_memory) if outermost else contextlib.nullcontext():
                self._listening = True
                try:
                    result = run()
                finally:
                    self._listening = False
        finally:
            self._blame.leave(body)
        self._compare_inputs(body, inputs)
        if rows is not None or refresh is not None:
            self._try(body, args, result, rows, refresh)
        return result

    # Reads --------------------------------------------------------------------------------------

    def _reader(self) -> Body | None:
        return self._blame.bodies[-1] if self._listening else None

    def _read_attribute(self, component: Any, name: str) -> None:
        if threading.get_ident() != self._thread_id:  # glue may go on meanwhile
            return
        body = self._reader()
        label = self._kept.labels.get(id(component))
        if body is None or label is None:
            return
        touch = Touch(body.task, body.path, body.invocation, False)
        place = f"{label}.{name}"
        if name not in component.__dict__:
            for cls in type(component).__mro__:
                if name in vars(cls):
                    place = f"{cls.__qualname__.replace('<locals>.', '')}.{name}"
                    break
        self._blame.touches.add_attribute(place, touch)

    def _read_memory(self, start: int, stop: int) -> None:
        """An operation of the body: autograd runs those of a device in a thread of its own."""
        body = self._reader()
        if body is None:
            return
        touch = Touch(body.task, body.path, body.invocation, False)
        for path in self._kept.regions.at(start, stop):
            self._blame.touches.add(path, touch)

    # Arguments and trials -----------------------------------------------------------------------

    def _compare_inputs(self, body: Body, inputs: Inputs) -> None:
        for name in inputs.written():
            assert self._task is not None
            producers = [
                self._now.names[r.id][1]
                for value in self._task[0].values
                for r in value.results()
                if r.id in self._now.names
            ]
            self._verdicts.add(messages.input_written(body.path, body.invocation, name, producers))

    def _refresh_trial(
        self, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RefreshTrial | None:
        if body.instance is None or not body.node.declaration.refreshes:
            return None
        label = self._kept.labels.get(id(args[0]))
        if label is None:
            return None
        refreshed = {a.state for a in body.accesses if a.mode.value == "refresh"}
        own = {
            p: o for p, (o, _) in self._verdicts.owners.items() if self._kept.root_of(p) == label
        }
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
            self._kept.watch.roots[self._kept.root_of(p)].kind != "component"
            for p in body.wrote
            if p in self._kept.seen
        ):
            return  # it would count twice
        entry = body.node.entry
        self._trying = True
        try:
            if rows is not None:
                differing = rows.outcome(lambda a, k: entry(*a, **k))
                if differing is not None:
                    self._verdicts.add(
                        messages.rows_interfere(body.path, body.invocation, differing, rows.kept)
                    )
            if refresh is not None:
                inherits = refresh.outcome(lambda a, k: entry(*a, **k), result, args[0])
                if inherits is not None:
                    states = [a.state for a in body.accesses if a.mode.value == "refresh"]
                    self._verdicts.add(
                        messages.inherits(body.path, body.invocation, states, inherits)
                    )
        except Inconclusive as reason:
            self.notes[body.path] = f"no trial: {reason}"
            self._trials.notes[body.path] = str(reason)
        finally:
            self._trying = False
        changed, drawn = self._kept.look()
        if changed or drawn:
            what = ", ".join([*(p for p, _ in changed[:3]), *drawn])
            self._trials.notes[body.path] = f"a trial changed {what}: no more trials"


def _top(path: str, label: str) -> str:
    return path[len(label) + 1 :].partition(".")[0].partition("[")[0]
