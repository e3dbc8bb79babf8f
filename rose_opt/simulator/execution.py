"""A machine that nobody has to own: plans run on the simulator instead of the executor.

It answers what the searches ask (`rose_opt.measure`), from a trace, contention and a description of the
machine, so that one can plan for hardware one does not have. The answers are predictions: live, the
same searches measure.

Paper: §4.3.3 (Alg. 1 on predictions).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rose_opt.facts import Facts
from rose_opt.measure import IterationMeasurement, QuotaLevel, TrialFailed
from rose_opt.plan import Plan, Resident, WorkerSpec
from rose_opt.simulator.engine import DoesNotFit, Machine, Task, Timeline, simulate
from rose_opt.simulator.overlap import mean_activity
from rose_opt.simulator.program import CannotSimulate, Solo, solo_ns, unroll
from rose_opt.simulator.rates import Rates, full_speed
from rose_opt.ways import native_iteration_ns


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
            TrialFailed: If a task does not fit the memory, or the simulator does not know the plan.
        """
        try:
            tasks = unroll(self.facts, plan, body_of, self.solo)
        except CannotSimulate as error:
            raise TrialFailed(str(error)) from None
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


@dataclass(frozen=True, slots=True)
class SimulatedQuota:
    """Implements `rose_opt.measure.QuotaMeasurer` for one worker of a plan.

    Attributes:
        plan: The plan whose overlap is tuned.
        comparison_graph: Node whose body is the short workload.
        machine_at: The machine with the worker limited to a level: solo times and contention there.
    """

    plan: Plan
    comparison_graph: str
    machine_at: Callable[[QuotaLevel], SimulatedExecution]

    def completion_ns(self, level: QuotaLevel) -> int:
        """The short workload at a level; raises `TrialFailed` if it does not fit."""
        return self.machine_at(level).local_ns(self.plan, self.comparison_graph)

    def iteration_ns(self, level: QuotaLevel) -> int:
        """One iteration at a level; raises `TrialFailed` if it does not fit."""
        return self.machine_at(level).iteration(self.plan).duration_ns
