"""Random programs, in random orders of completion, end as they end natively.

The real driver runs them with its threads. Its workers finish jobs only when a conductor says so: it
looks out for further jobs for a random number of moments, then finishes one of those in flight, so jobs
overtake each other in every way that the plan allows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import rose_trace as rose
from rose_exec.code import accesses
from rose_exec.native import UnannouncedAccess
from rose_exec.placement import Placement
from rose_exec.readiness import OrderViolation
from rose_exec.replay import replay
from rose_exec.workers import Answer, InlineWorker, Job, ProcessWorker
from rose_opt.plan import Plan, PlanNode, PlanRefused, verify
from rose_trace import pytree
from rose_trace.component import Instance, program, rebuild
from rose_trace.legality import AccessSet
from tests.properties import examples
from tests.rose_exec.observe import observed_plan

ROWS = 4
SPLIT = "split-spatial{{loop=root/outer/inner groups={}}}"
CHAINS = "split-temporal{{loop=root/outer groups={}}}"
REWIRE = "rewire{node=root/consume beside=root/outer}"
PRIVATE = "privatise{state=model.weights readers=root/outer}"


class Conductor:
    """Runs one job at a time, chosen at random among those in flight."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        self._changed = threading.Condition()
        self._flying: list[Callable[[], None]] = []
        self._ended = False
        self._thread = threading.Thread(target=self._conduct, daemon=True)
        self._thread.start()

    def offer(self, finish: Callable[[], None]) -> None:
        with self._changed:
            self._flying.append(finish)
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def _conduct(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._flying or self._ended)
                if not self._flying:
                    return
                # More jobs may be on their way: how long to look out for them is a random choice too.
                for _ in range(self._draw.randint(0, 3)):
                    self._changed.wait(0.0005)
                finish = self._flying.pop(self._draw.randrange(len(self._flying)))
            finish()


class ConductedWorker(ProcessWorker):
    """Has components of its own, like a process, and finishes its jobs when told."""

    def __init__(self, name: str, composites: frozenset[str], conductor: Conductor) -> None:
        self.name = name
        self._inner = InlineWorker(name, composites)
        self._conductor = conductor

    def build(self, resident: str, instance: Instance, shard: int, shards: int) -> Future[Any]:
        from rose_trace import generators

        self._inner.adopt(resident, rebuild(instance, shard, shards))
        done: Future[Any] = Future()
        done.set_result(generators.capture())
        return done

    def run(self, job: Job) -> Future[Answer]:
        future: Future[Answer] = Future()

        def finish() -> None:
            try:
                future.set_result(self._inner._run(job))
            except BaseException as error:
                future.set_exception(error)

        self._conductor.offer(finish)
        return future

    @property
    def ended(self) -> bool:
        return False

    def close(self) -> None:
        self._inner.close()


@rose.component(batch_states=["episode"])
class World:
    def __init__(self, rows: int, first: int = 0) -> None:
        self.rows, self.first = rows, first
        self.state = np.zeros((rows, 2))

    @classmethod
    def shard(cls, index: int, count: int, rows: int, first: int = 0) -> tuple[int, int]:
        start, stop = rows * index // count, rows * (index + 1) // count
        return stop - start, first + start

    @rose.node(refreshes="episode", rows=True)
    def start(self, k: int) -> Any:
        ids = np.arange(self.first, self.first + self.rows)
        self.state = np.stack([np.sin(ids + k), np.cos(ids - k)], axis=1)
        return self.state.copy()

    @rose.node(updates="episode", rows=True)
    def move(self, action: Any) -> Any:
        self.state = np.tanh(self.state + action)
        return {"seen": self.state.copy(), "score": self.state[:, 0].copy()}

    @rose.node(reads="episode", rows=True)
    def look(self) -> Any:
        return self.state.copy()

    @rose.node(updates="episode", rows=True)
    def push(self, action: Any) -> Any:
        """Has accesses of its own, before and after it calls a node."""
        self.state = np.sin(self.state - action)
        seen = self.look()
        self.state = self.state + 0.25 * seen
        return self.state.copy()


@rose.component
class Model:
    """Every result tells the version that was read."""

    def __init__(self, seed: float) -> None:
        self.weights = np.array([seed, 1.0])
        self.version = 0

    @rose.node(reads="weights", rows=True)
    def infer(self, seen: Any) -> Any:
        versions = np.full(len(seen), self.version)
        return {"action": seen * self.weights, "version": versions}

    @rose.node(updates="weights")
    def fit(self, data: Any) -> Any:
        self.version += 1
        self.weights = np.cos(self.weights * self.version + np.sum(data))
        return np.array([self.version, self.weights[0]])

    @rose.node(refreshes="weights")
    def load(self, weights: Any) -> None:
        self.version += 100
        self.weights = np.array(weights)

    @rose.node(reads="weights")
    def export(self) -> Any:
        return self.weights

    @rose.node(updates="weights", rows=True)
    def adapt(self, seen: Any) -> Any:
        """Has accesses of its own, before and after it calls a node."""
        self.version += 1
        made = self.infer(seen)
        self.weights = np.sin(self.weights + np.sum(made["action"]))
        return made


@rose.node(pure=True)
def total(values: Any) -> Any:
    return np.sum(values, axis=0)


INNER = ("infer", "move", "look", "scale", "branch on version", "push", "judge", "adapt critic")
OUTER = ("look", "value", "other model", "use", "judge")
CONSUME = ("fit", "fit twice", "total", "adapt", "judge", "fit policy")
AFTER = ("load", "use", "fit other", "second rollout", "look")


def build(draw: Random) -> Callable[[], Callable[[], Any]]:
    """A random program: which nodes its loops call, how often, and what its glue does with their values."""
    inner_steps = [*draw.choices(INNER, k=draw.randint(0, 3)), "move"]
    writes = draw.random() < 0.5
    draw.shuffle(inner_steps)
    outer_steps = draw.sample(OUTER, draw.randint(0, 2))
    consume_steps = draw.choices(CONSUME, k=draw.randint(1, 2))
    after_steps = draw.sample(AFTER, draw.randint(0, 4))
    epochs, count = draw.randint(1, 3), draw.randint(1, 3)
    carried = draw.random() < 0.3

    def make() -> Callable[[], Any]:
        world, policy, trainer, critic = World(ROWS), Model(0.5), Model(2.0), Model(3.0)
        noted = [1.0]

        @rose.node(
            reads=() if writes else "run.notes", updates="run.notes" if writes else (), rows=True
        )
        def judge(seen: Any) -> Any:
            """Has accesses of its own, and calls a node of a component."""
            before = noted[-1]
            made = critic.infer(seen)
            if writes:
                noted.append(float(np.cos(before + np.sum(made["action"]))))
            return made["action"] * noted[-1] + len(noted)

        @rose.loop
        def inner(seen: Any, t: int) -> Any:
            outputs: list[Any] = [seen]
            for step in inner_steps:
                if step == "infer":
                    made = policy.infer(seen)
                    seen = made["action"]
                    outputs.append(made)
                elif step == "move":
                    moved = world.move(seen)
                    seen = moved["seen"]
                    outputs.append(moved["score"])
                elif step == "look":
                    outputs.append(world.look())
                elif step == "push":
                    outputs.append(world.push(seen))
                elif step == "judge":
                    outputs.append(judge(seen))
                elif step == "adapt critic":
                    outputs.append(critic.adapt(seen))
                elif step == "scale":
                    seen = seen * 0.5 + t  # glue that uses the value
                else:
                    made = policy.infer(seen)
                    if made["version"][0] % 2:
                        seen = world.move(made["action"])["seen"]
                    outputs.append(made["version"])
            return seen, tuple(outputs)

        @rose.loop
        def outer(carry: Any, k: int) -> Any:
            last, outputs = inner(world.start(k), count=count)
            extra: list[Any] = []
            for step in outer_steps:
                if step == "look":
                    extra.append(world.look())
                elif step == "value":
                    extra.append(policy.infer(last)["version"])
                elif step == "other model":
                    extra.append(critic.infer(last))
                elif step == "judge":
                    extra.append(judge(last))
                else:
                    extra.append(float(np.sum(outputs[-1][0])))
            return (carry + 1 if carried else None), (outputs, last, extra)

        @rose.loop
        def consume(_: None, epoch: Any) -> Any:
            results: list[Any] = []
            for step in consume_steps:
                if step == "total":
                    results.append(total(epoch[1]))
                    continue
                if step == "adapt":
                    results.append(trainer.adapt(epoch[1])["action"])
                    continue
                if step == "judge":
                    results.append(judge(epoch[1]))
                    continue
                if step == "fit policy":
                    results.append(policy.fit(epoch[1]))
                    continue
                results.append(trainer.fit(epoch[1]))
                if step == "fit twice":
                    results.append(trainer.fit(epoch[0][0][0]))
            return None, results

        @rose.iteration(name="root")
        def iteration() -> Any:
            carry, epochs_done = outer(0 if carried else None, count=epochs)
            _, results = consume(None, over=epochs_done)
            more: list[Any] = []
            for step in after_steps:
                if step == "load":
                    policy.load(trainer.export())
                elif step == "use":
                    more.append(bool(results[0][0].sum() > 0))
                elif step == "fit other":
                    critic.fit(epochs_done[-1][1])
                elif step == "second rollout":
                    more.append(outer(carry, count=1))
                else:
                    more.append(world.look())
            final = [world.look(), policy.export(), trainer.export(), critic.export()]
            return carry, epochs_done, results, more, final

        return iteration

    return make


def bits(value: Any) -> list[Any]:
    leaves, structure = pytree.flatten(value)
    return [structure, *((type(leaf), np.asarray(leaf).tobytes()) for leaf in leaves)]


def conducted(monkeypatch: pytest.MonkeyPatch, conductor: Conductor) -> None:
    def start(placement: Placement) -> None:
        composites = frozenset(node.key for node in placement.plan.nodes if node.composite)
        placement.workers["inline"] = InlineWorker("inline", composites)
        for spec in placement.plan.workers:
            placement.workers[spec.name] = ConductedWorker(spec.name, composites, conductor)

    monkeypatch.setattr(Placement, "start", start)


def taken_for_glue(plan: Plan, planned: PlanNode) -> AccessSet:
    """Forgets that a composite may have accesses of its own."""
    return AccessSet() if planned.composite else accesses(plan, planned)


def legal_plan(make: Callable[[], Callable[[], Any]], draw: Random) -> Plan:
    """A random plan for the program; transforms that are not legal for it are dropped."""
    split = draw.choice([SPLIT, CHAINS]).format(draw.choice([2, 3]))
    wanted = [split, PRIVATE, REWIRE]
    chosen = [text for text in wanted if draw.random() < 0.8]
    homes = [name for name in ("world", "model", "model#1", "model#2") if draw.random() < 0.7]
    cores = draw.choice([0.0, 2.0])
    while True:
        grouped = any(text.startswith("split") for text in chosen)
        processes = [name for name in homes if not (grouped and name == "world")]
        plan = observed_plan(make, *chosen, rows=ROWS, processes=processes, cores=cores)
        try:
            verify(plan)
        except PlanRefused as refusal:
            named = str(refusal).partition("(")[0]
            if named == "worker":
                homes = [name for name in homes if not str(refusal).startswith(f"worker({name})")]
            chosen = [text for text in chosen if text.partition("{")[0] != named]
            if str(refusal).startswith("merge"):
                chosen = [text for text in chosen if not text.startswith("split")]
        else:
            return plan


def compare(seed: int, order: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Run one program both ways; returns the names of the transforms that its plan has."""
    draw = Random(seed)
    make = build(draw)
    with program():
        iteration = make()
        expected = [iteration() for _ in range(2)]
    plan = legal_plan(make, draw)
    conductor = Conductor(order)
    with monkeypatch.context() as patch:
        conducted(patch, conductor)
        with replay(plan, build=make, strict=True) as session:
            found = [session.built() for _ in range(2)]
    conductor.end()
    assert list(map(bits, found)) == list(map(bits, expected))
    return tuple(t.name for t in plan.transforms)


@examples(40, 12, HealthCheck.function_scoped_fixture)
@given(seed=st.integers(0, 2**32), order=st.integers(0, 2**32))
def test_any_program_under_any_plan_and_any_order_of_completion(
    seed: int, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(seed, order, monkeypatch)


@pytest.mark.slow
def test_the_programs_reach_every_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = [compare(seed, seed, monkeypatch) for seed in range(90)]
    for wanted in (
        {"split-spatial"},
        {"split-temporal"},
        {"rewire"},
        {"split-spatial", "rewire"},
        {"privatise", "rewire"},
        {"privatise", "split-spatial", "rewire"},
        set[str](),
    ):
        assert wanted in [set(names) for names in reached]


def test_a_driver_that_takes_every_composite_for_glue_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rose_exec.code.accesses", taken_for_glue)
    differing = 0
    for seed in range(12):
        try:
            compare(seed, seed, monkeypatch)
        except (AssertionError, AttributeError, OrderViolation, UnannouncedAccess):
            differing += 1
    assert differing > 0


@pytest.mark.parametrize("broken", ["data", "states"])
def test_a_driver_that_forgets_dependencies_is_found(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rose_exec.readiness import Command, Readiness, Submission, TaskId
    from rose_trace.legality import AccessSet

    submit = Readiness.submit

    def forgetful(machine: Readiness, submission: Submission) -> list[Command]:
        import dataclasses

        if broken == "data":
            submission = dataclasses.replace(submission, inputs=frozenset[TaskId]())
        else:
            submission = dataclasses.replace(submission, access=AccessSet())
        return submit(machine, submission)

    monkeypatch.setattr(Readiness, "submit", forgetful)
    differing = 0
    for seed in range(12):
        try:
            compare(seed, seed, monkeypatch)
        except (AssertionError, IndexError):
            differing += 1
    assert differing > 0
