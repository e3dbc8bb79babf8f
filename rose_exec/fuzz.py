"""Schedule fuzzing: the same program in other orders that its declarations allow must give the same bits.

The real driver and the real state machine run the program; only who may start next is a random choice
among what they allow. Nothing runs while glue can go on, so every linear extension of the dependencies
can come up, and a seed gives the same order again.

Paper: §4.3.1 (what may be reordered); docs/sanitizer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rose_exec import wire
from rose_exec.digest import digest
from rose_exec.observed import Digests, Observation, Place, observe, output_digests
from rose_exec.policies import RandomOrder
from rose_exec.readiness import Submission, TaskId
from rose_exec.sanitizer.watch import Watch
from rose_exec.stepper import Stepper
from rose_exec.tasks import Task
from rose_exec.workers import Job
from rose_opt.plan import Plan
from rose_trace import generators

PART = "result for its rows"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that came out otherwise than natively.

    Attributes:
        seed: Seed of the order.
        subject: The invocation or the state, e.g. ``iteration/rollout/policy.act[0,2]``.
        order: Paths and iterations of the tasks that overtook an earlier one until then.
        what: What differed.
    """

    seed: int
    subject: str
    order: tuple[str, ...]
    what: str

    def __str__(self) -> str:
        beside = f" after {', '.join(self.order[-3:])} came early" if self.order else ""
        cause = (
            "Some node touches a state that it does not declare: run the program with check=True."
        )
        if self.what == PART:
            cause = f"Its kernels may depend on the size of the batch: drop the split, or {cause[0].lower()}{cause[1:]}"
        return (
            f"{self.subject}: expected the native {self.what}, got another (seed {self.seed}){beside}. "
            f"{cause}"
        )


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """What a fuzzing run found.

    Attributes:
        seeds: Seeds that were run.
        orders: Number of different orders among them.
        overtakings: Tasks that ran before one that is earlier in the program, over all seeds.
        differences: First difference of each seed that has one.
    """

    seeds: tuple[int, ...]
    orders: int
    overtakings: int
    differences: tuple[Difference, ...] = ()


@dataclass(slots=True)
class _Seen:
    """What the bodies of one run did."""

    watch: Watch = field(default_factory=Watch)
    outputs: dict[Place, list[tuple[Submission, Digests]]] = field(
        default_factory=dict[Place, list[tuple[Submission, Digests]]]
    )
    order: list[Place] = field(default_factory=list[Place])
    early: list[tuple[int, Place]] = field(default_factory=list[tuple[int, Place]])
    latest: tuple[int, ...] = ()
    _places: dict[TaskId, tuple[Place, Submission]] = field(
        default_factory=dict[TaskId, tuple[Place, Submission]]
    )

    def built(self, label: str, component: Any) -> None:
        """A component is there."""
        self.watch.add_component(label, component)

    def run(self, task: Task, submission: Submission, execute: Callable[[Job], Any]) -> Any:
        """Run a body and note when it came."""
        frame = task.job.frame
        place = task.job.path, frame.iteration, next(iter(frame.calls.values()), 0)
        self._places[submission.id] = place, submission
        self.order.append(place)
        if submission.position < self.latest:
            self.early.append((len(self.order), self.order[-2]))
        self.latest = max(self.latest, submission.position)
        return execute(task.job)

    def answered(self, task: TaskId, result: Any, leaves: Sequence[wire.Wire]) -> None:
        """Note a result."""
        place, submission = self._places.pop(task)
        self.outputs.setdefault(place, []).append((submission, output_digests(result)))


def fuzz(
    build: Callable[[], Any],
    run: Callable[[Any, int], Any] | None = None,
    *,
    plan: Plan | None = None,
    seeds: Iterable[int] = range(8),
    iterations: int = 2,
) -> Fuzzed:
    """Run a program in random orders and compare everything with its native run.

    Args:
        build: Builds the program; called once per seed and once natively.
        run: Runs iteration k of what was built; calls it without arguments by default.
        plan: Plan to run under; by default every overlap that the declared accesses allow between
            nodes and neighbouring loops, in one process.
        seeds: One random order each.
        iterations: RL iterations per run.

    Returns:
        What differed. Results of every invocation are compared, and after each run the results of the
        iterations, the state of every component that is whole, and the process-wide generators.

    Paper: §4.3.1.
    """
    go = run or _call
    before = generators.capture()
    native = observe(build, go, iterations)
    expected = _states(native)
    plan = plan or native.plan()
    differences: list[Difference] = []
    orders: set[tuple[Place, ...]] = set()
    overtakings = 0
    tried = tuple(seeds)
    for seed in tried:
        generators.restore(before)
        seen = _Seen()
        found = _planned(plan, build, go, iterations, seed, seen)
        orders.add(tuple(seen.order))
        overtakings += len(seen.early)
        difference = _compare(seed, native, expected, seen, found)
        if difference is not None:
            differences.append(difference)
    return Fuzzed(tried, len(orders), overtakings, tuple(differences))


def _call(built: Any, index: int) -> Any:
    return built()


@dataclass(frozen=True, slots=True)
class _Ended:
    results: tuple[str, ...]
    states: dict[str, str]
    error: BaseException | None = None


def _states(native: Observation) -> _Ended:
    watch = Watch()
    for name, (_, component) in native.components.items():
        watch.add_component(name, component)
    return _Ended(_results(native.results), _digests(watch))


def _digests(watch: Watch) -> dict[str, str]:
    # What C objects say of themselves may contain memory that was never written.
    found = {path: leaf.digest for path, leaf in watch.look().items() if leaf.kind != "account"}
    drawn = generators.capture()
    for name in ("python", "numpy", "torch"):
        state = getattr(drawn, name)
        if state is not None:
            found[f"generator.{name}"] = digest(repr(_bits(state)))
    return found


def _bits(state: Any) -> Any:
    if isinstance(state, tuple):
        return [_bits(item) for item in cast("tuple[Any, ...]", state)]
    return state.tobytes() if hasattr(state, "tobytes") else state


def _results(results: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str([whole for whole, _ in output_digests(result)]) for result in results)


def _planned(
    plan: Plan,
    build: Callable[[], Any],
    run: Callable[[Any, int], Any],
    iterations: int,
    seed: int,
    seen: _Seen,
) -> _Ended:
    from rose_exec.replay import Replay

    results: list[Any] = []
    error: BaseException | None = None
    stepper = Stepper(RandomOrder(seed), seen)
    try:
        with Replay(plan, build, strict=True, conductor=stepper) as session:
            try:
                for index in range(iterations):
                    results.append(run(session.built, index))
            except Exception as raised:  # a wrong order may also break the program
                error = raised
            states = _digests(seen.watch)
    finally:
        stepper.close()
    return _Ended(_results(results), states, error)


def _compare(
    seed: int, native: Observation, expected: _Ended, seen: _Seen, found: _Ended
) -> Difference | None:
    """The first difference: invocations in the order they ran, then results, then states."""
    early = tuple(_name(place) for _, place in seen.early)
    compared: dict[Place, int] = {}
    for count, place in enumerate(seen.order, 1):
        parts = seen.outputs.get(place, [])
        index = compared.get(place, 0)
        compared[place] = index + 1
        known = native.outputs.get(place)
        if known is None or index >= len(parts):
            continue
        submission, digests = parts[index]
        if not _same(known, digests, submission):
            before = tuple(_name(other) for at, other in seen.early if at <= count)
            part = submission.access.rows is not None
            return Difference(seed, _name(place), before, PART if part else "result")
    if found.error is not None:
        text = f"result instead of {type(found.error).__name__} ({found.error})"
        return Difference(seed, "program", early, text)
    for index, pair in enumerate(zip(expected.results, found.results, strict=True)):
        if pair[0] != pair[1]:
            return Difference(seed, f"iteration {index}", early, "result")
    for path, value in expected.states.items():
        if path in found.states and found.states[path] != value:
            return Difference(seed, path, early, "final value")
    return None


def _same(whole: Digests, part: Digests, submission: Submission) -> bool:
    """Whether a result, or the rows of one fragment, has the native bits."""
    rows = submission.access.rows
    if len(whole) != len(part):
        return False
    for (native, native_rows), (found, rows_found) in zip(whole, part, strict=True):
        fragment = rows is not None and len(rows_found) == len(rows) < len(native_rows)
        if fragment:
            assert rows is not None
            if native_rows[rows.start : rows.stop] != rows_found:
                return False
        elif native != found:
            return False
    return True


def _name(place: Place) -> str:
    path, iteration, ordinal = place
    return f"{path}[{','.join(map(str, iteration))}]" + (f"#{ordinal}" if ordinal else "")
