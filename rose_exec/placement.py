"""Which worker hosts which component or shard, and building them there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rose_exec import snapshot
from rose_exec.conductor import Conductor
from rose_exec.handover import NotCarried
from rose_exec.quota.mps import client_environment
from rose_exec.workers import InlineWorker, ProcessWorker, Worker
from rose_opt.plan import Plan, PlanRefused, Resident, WorkerSpec
from rose_trace import generators, hooks
from rose_trace.component import Instance, instance_of
from rose_trace.legality import RowRange, partition

INLINE = "inline"


@dataclass(slots=True)
class Home:
    """Where a component lives.

    Attributes:
        residents: Worker and resident name of each shard or replica, one entry for a whole component.
        remote: Whether it lives in another process.
        replicas: Whole instances, one per chain of a temporal split; 1 for one.
    """

    residents: list[tuple[str, str]]
    remote: bool
    replicas: int = 1

    @property
    def shards(self) -> int:
        """Number of shards, 1 for a whole component."""
        return len(self.residents) // self.replicas

    def ranges(self, rows: int) -> tuple[RowRange, ...]:
        """Global rows of each shard."""
        return partition(rows, self.shards)


@dataclass(slots=True)
class Placement:
    """The workers of a session and what lives in them.

    Attributes:
        plan: The plan.
        conductor: Picks what runs next in a session that is watched; all workers are then its own.
        workers: Workers by name.
        homes: Where each component lives, with its construction, by the identity of that.
        drawn: Generators when a component of a worker process was built, by the same identity.
    """

    plan: Plan
    conductor: Conductor | None = None
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    homes: dict[int, tuple[Instance, Home]] = field(
        default_factory=dict[int, tuple[Instance, Home]]
    )
    drawn: dict[int, generators.State] = field(default_factory=dict[int, generators.State])

    def start(self) -> None:
        """Start the workers; process workers come up side by side."""
        composites = self._composites()
        watched = self.conductor
        inline = InlineWorker if watched is None else watched.inline_worker
        self.workers[INLINE] = inline(INLINE, composites)
        for spec in self.plan.workers:
            if spec.kind == "process":
                self.workers[spec.name] = self._process(spec)

    def revive(self) -> list[tuple[str, str]]:
        """Start worker processes that have ended again, and build what lived there.

        Returns:
            Component and worker of each that is now as its constructor left it.
        """
        again: list[tuple[str, str]] = []
        for spec in self.plan.workers:
            ended = self.workers.get(spec.name)
            if not isinstance(ended, ProcessWorker) or not ended.ended:
                continue
            ended.close()
            worker = self.workers[spec.name] = self._process(spec)
            recorder: Any = hooks.recorder()
            if recorder is not None:
                worker.record(recorder.child_settings()).result()
            for resident in spec.residents:
                for key, (instance, _) in self.homes.items():
                    if instance.name == resident.component and key in self.drawn:
                        worker.build_again(
                            str(resident),
                            instance,
                            resident.shard,
                            resident.shards,
                            self.drawn[key],
                        ).result()
                        if not resident.private:  # a copy is made anew before it is read
                            again.append((instance.name, spec.name))
        return again

    def _process(self, spec: WorkerSpec) -> ProcessWorker:
        if self.conductor is not None:
            return self.conductor.process_worker(spec.name, self._composites())
        return ProcessWorker(spec.name, self._composites(), client_environment(spec.percent))

    def _composites(self) -> frozenset[str]:
        return frozenset(node.key for node in self.plan.nodes if node.composite)

    def record(self, recorder: Any) -> None:
        """Let the worker processes record into the trace of `recorder`, or end that with ``None``."""
        settings = None if recorder is None else recorder.child_settings()
        told = [w.record(settings) for w in self.workers.values() if isinstance(w, ProcessWorker)]
        for answer in told:
            answer.result()

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()

    def home_of(self, instance: Instance | None) -> Home | None:
        """Where an instance lives; ``None`` for a function or a component built elsewhere."""
        return self.homes[id(instance)][1] if id(instance) in self.homes else None

    def construct(self, instance: Instance, component: Any) -> None:
        """Build a component where the plan wants it.

        Raises:
            PlanRefused: If it cannot be built there without changing the program.
        """
        hosts = self._hosts(instance.name)
        before = generators.capture()
        if not hosts:
            self._inline(instance, component)
            self._build_private(instance, component, before)
            return
        _sendable(instance)
        futures = [
            (resident, worker.build(str(resident), instance, resident.shard, resident.shards))
            for worker, resident in hosts
        ]
        for resident, future in futures:
            drawn = generators.changed(before, future.result())
            if drawn and resident.shards > 1:
                raise PlanRefused(
                    f"Component {instance.name}: expected a constructor that draws from no process-wide generator, got "
                    f"draws from {', '.join(drawn)}, which shards cannot repeat. Seed a generator of its own."
                )
            if resident.shards == 1:
                generators.restore(future.result())
        residents = [(worker.name, str(resident)) for worker, resident in hosts]
        instance.home = Home(residents, True, hosts[0][1].replicas)
        self.homes[id(instance)] = instance, instance.home
        self.drawn[id(instance)] = before
        self._build_private(instance, None, before)

    def adopt(self, instance: Instance, component: Any) -> Home:
        """Take in a component that was built before the replay began: whole, in this process.

        Raises:
            PlanRefused: If the plan needs more of it.
        """
        if self._hosts(instance.name):
            raise PlanRefused(
                f"Component {instance.name}: expected to be built inside rose_exec.replay, got one built earlier, and "
                f"the plan wants it in {', '.join(w.name for w, _ in self._hosts(instance.name))}. Build the program "
                "inside the with block, or pass build= to replay."
            )
        worker = self.workers[INLINE]
        assert isinstance(worker, InlineWorker)
        resident = f"{instance.name} built earlier ({len(self.homes)})"
        worker.adopt(resident, component)
        home = Home([(INLINE, resident)], False)
        self.homes[id(instance)] = instance, home
        self._build_private(instance, component, generators.capture())
        return home

    def _build_private(self, instance: Instance, component: Any, before: generators.State) -> None:
        """Build the private instances that readers of a component have, as the component was built.

        Args:
            instance: The construction.
            component: The component where it lives in this process, else ``None``.
            before: Generators before it was built.

        Raises:
            PlanRefused: If it cannot be copied there.
        """
        hosts = self._hosts(instance.name, private=True)
        if not hosts:
            return
        _sendable(instance)
        if component is not None:
            try:
                snapshot.taken(component)
            except NotCarried as error:
                raise PlanRefused(
                    f"Component {instance.name}: expected a component that can be copied for "
                    f"{hosts[0][1].private}, got one that cannot. {error}"
                ) from error
        after = generators.capture()
        for worker, resident in hosts:
            generators.restore(before)
            worker.build(str(resident), instance, 0, 1).result()
        generators.restore(after)
        self.drawn[id(instance)] = before

    def _inline(self, instance: Instance, component: Any) -> None:
        worker = self.workers[INLINE]
        assert isinstance(worker, InlineWorker)
        worker.build(instance.name, instance, component)
        self.homes[id(instance)] = instance, Home([(INLINE, instance.name)], False)

    def _hosts(self, name: str, *, private: bool = False) -> list[tuple[ProcessWorker, Resident]]:
        hosts: list[tuple[ProcessWorker, Resident]] = []
        for spec in self.plan.workers:
            worker = self.workers.get(spec.name)
            if isinstance(worker, ProcessWorker):
                hosts += [
                    (worker, resident)
                    for resident in spec.residents
                    if resident.component == name and bool(resident.private) == private
                ]
        return sorted(hosts, key=lambda item: (item[1].shard, item[1].replica))


def _sendable(instance: Instance) -> None:
    """Stop where a component cannot be built in another process.

    Raises:
        PlanRefused: If its constructor takes another component.
    """
    for value in (*instance.args, *instance.kwargs.values()):
        other = instance_of(value)
        if other is not None:
            raise PlanRefused(
                f"Component {instance.name}: expected constructor arguments that can be sent to a worker, got "
                f"component {other.name}. Pass its configuration, or name what they share as one absolute state "
                "and plan again."
            )
