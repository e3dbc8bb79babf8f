"""A machine that nobody has to own: plans run on the simulator instead of the executor.

It answers what the searches ask (`rose_opt.measure`), from a trace, contention and a description of the
machine, so that one can plan for hardware one does not have. The answers are predictions: live, the
same searches measure.

Paper: §4.3.3 (Alg. 1 on predictions).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rose_opt.facts import Facts
from rose_opt.measure import IterationMeasurement, TrialFailed
from rose_opt.phases import native_iteration_ns
from rose_opt.plan import Plan, Resident, WorkerSpec
from rose_opt.simulator.engine import DoesNotFit, Machine, Task, Timeline, simulate
from rose_opt.simulator.program import Solo, solo_ns, unroll
from rose_opt.simulator.rates import Rates, full_speed


@dataclass(frozen=True, slots=True)
class SimulatedExecution:
    """Implements `rose_opt.measure.Measurer`.

    Attributes:
        facts: What the trace says.
        rates: How tasks slow each other down; not at all by default.
        machine: What tasks share; the plan's cores where its own are not given.
        solo: How solo durations and memory differ from the recorded machine.
        sm_activity: Activity of the device while a node runs alone, by path [fraction]; taken from
            the trace's windows where absent.
    """

    facts: Facts
    rates: Rates = full_speed
    machine: Machine = field(default_factory=Machine)
    solo: Solo = field(default_factory=Solo)
    sm_activity: Mapping[str, float] = field(default_factory=dict[str, float])

    def iteration(self, plan: Plan) -> IterationMeasurement:
        """One iteration under a plan; raises `TrialFailed` if it does not fit the memory."""
        tasks, timeline = self.timeline(plan)
        duration = round(timeline.makespan_ns + self._uncovered_ns(plan))
        return IterationMeasurement(max(duration, 1), self._activity(tasks, timeline))

    def local_ns(self, plan: Plan, comparison_graph: str) -> int:
        """The body of one node, once; raises `TrialFailed` if it does not fit the memory."""
        _, timeline = self.timeline(plan, comparison_graph)
        return max(round(timeline.makespan_ns), 1)

    def timeline(self, plan: Plan, body_of: str | None = None) -> tuple[tuple[Task, ...], Timeline]:
        """When every task of an iteration, or of the body of one node, runs.

        Raises:
            TrialFailed: If a task does not fit the memory.
        """
        tasks = unroll(self.facts, plan, body_of, self.solo)
        cores = self.machine.cores or plan.cores or None
        try:
            return tasks, simulate(tasks, Machine(cores, self.machine.memory_bytes), self.rates)
        except DoesNotFit as error:
            raise TrialFailed(str(error)) from None

    def _uncovered_ns(self, plan: Plan) -> float:
        """What an iteration takes beside its tasks, as recorded [ns]."""
        cores = plan.cores or float(plan.settings.get("cores") or 1e9)
        native = Plan(
            plan.rose_version,
            plan.graph_fingerprint,
            plan.nodes,
            workers=(
                WorkerSpec("inline", "inline", tuple(Resident(c.name) for c in plan.components)),
            ),
            cores=plan.cores,
            settings={"cores": cores},
        )
        covered = solo_ns(unroll(self.facts, native))
        return max(native_iteration_ns(self.facts, cores) - covered, 0.0)

    def _activity(self, tasks: Sequence[Task], timeline: Timeline) -> dict[str, float]:
        """Mean device activity while each node ran; empty where nothing is known about any."""
        alone = {w.target: w.sm_activity for w in self.facts.windows if w.sm_activity is not None}
        alone = {str(path): value for path, value in alone.items()} | dict(self.sm_activity)
        return mean_activity(tasks, timeline, alone) if alone else {}


def mean_activity(
    tasks: Sequence[Task], timeline: Timeline, alone: Mapping[str, float]
) -> dict[str, float]:
    """Time-weighted activity of the device while tasks of each name run.

    Args:
        tasks: The tasks.
        timeline: When they ran.
        alone: Activity of each by name while it runs alone [fraction]; 0 where absent.

    Returns:
        Activity by name [fraction]; what runs together adds up, to at most 1.
    """
    events = sorted(
        [(start, 1, index) for index, start in enumerate(timeline.start_ns)]
        + [(end, 0, index) for index, end in enumerate(timeline.end_ns)]
    )
    weighted: defaultdict[str, float] = defaultdict(float)
    lasted: defaultdict[str, float] = defaultdict(float)
    running: set[int] = set()
    before = 0.0
    for now, starts, index in events:
        if now > before:
            busy = min(sum(alone.get(tasks[i].name, 0.0) for i in running), 1.0)
            for name in {tasks[i].name for i in running}:
                weighted[name] += busy * (now - before)
                lasted[name] += now - before
        before = now
        (running.add if starts else running.discard)(index)
    return {name: weighted[name] / lasted[name] for name in lasted}


def share_below(
    tasks: Sequence[Task], timeline: Timeline, alone: Mapping[str, float], threshold: float = 0.5
) -> float:
    """Share of the makespan in which the device is less active than `threshold` [fraction].

    Paper: Fig. 3, Fig. 12.
    """
    events = sorted(
        [(start, 1, index) for index, start in enumerate(timeline.start_ns)]
        + [(end, 0, index) for index, end in enumerate(timeline.end_ns)]
    )
    below, before = 0.0, 0.0
    running: set[int] = set()
    for now, starts, index in events:
        busy = min(sum(alone.get(tasks[i].name, 0.0) for i in running), 1.0)
        if busy < threshold:
            below += now - before
        before = now
        (running.add if starts else running.discard)(index)
    return below / timeline.makespan_ns if timeline.makespan_ns else 0.0
