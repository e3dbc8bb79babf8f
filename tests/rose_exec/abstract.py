"""Random abstract programs of invocations on named states, and a hash interpreter for them.

A value is the hash of everything it was computed from, so two runs agree exactly where every read saw
the same write. A task reads at its start and again at its end and writes at its end: two conflicting
tasks that overlap, or run in the wrong order, leave a trace in the values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rose_exec.readiness import (
    MAIN,
    Command,
    Position,
    Readiness,
    Start,
    StrandId,
    Submission,
    TaskId,
)
from rose_trace.legality import AccessSet, RowRange, union_all
from rose_trace.records import Access, StateAccess

ROWS = 4
GROUPS = (RowRange(0, 2), RowRange(2, 4))
SHARED = ("policy.weights", "trainer.weights", "trainer.moments")
KEYED = ("sim.episode", "sim.history")
CELLS = [(state, 0) for state in SHARED] + [(state, row) for state in KEYED for row in range(ROWS)]

Cell = tuple[str, int]


def digest(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


@dataclass(slots=True)
class Op:
    """One invocation, or one group's fragment of one.

    Attributes:
        key: Position and group; -1 for the whole batch.
        access: What it touches.
        inputs: Keys of the invocations whose results it takes.
        used: Keys of the invocations whose results the glue before it uses.
        worker: Number of the worker.
        cores: Cores it occupies.
    """

    key: tuple[Position, int]
    access: AccessSet
    inputs: list[tuple[Position, int]]
    used: list[tuple[Position, int]]
    worker: int
    cores: float

    def cells(self, reading: bool) -> list[Cell]:
        """Cells it reads (update and read), or writes."""
        if self.access.opaque:
            return CELLS
        rows = range(ROWS) if self.access.rows is None else range(*_bounds(self.access.rows))
        found: list[Cell] = []
        for item in self.access.accesses:
            kinds = (
                (StateAccess.READ, StateAccess.UPDATE)
                if reading
                else (StateAccess.UPDATE, StateAccess.REFRESH)
            )
            if item.mode in kinds:
                found += [(item.state, r) for r in (rows if item.keyed else (0,))]
        return found


def _bounds(rows: RowRange) -> tuple[int, int]:
    return rows.start, rows.stop


@dataclass(slots=True)
class Body:
    """Glue code in program order: invocations, and loops that run in branches or in groups.

    Attributes:
        steps: What it does: an invocation, or bodies that run side by side.
        prefix: Position of the body.
        joined: Whether the body around it waits for its end (a split), or goes on (a branch).
        rows: Rows of the group.
    """

    prefix: Position
    joined: bool = True
    rows: RowRange | None = None
    steps: list[Op | list[Body]] = field(default_factory=list["Op | list[Body]"])

    def ops(self) -> list[Op]:
        """All invocations below, in any order."""
        found: list[Op] = []
        for step in self.steps:
            found += [step] if isinstance(step, Op) else [o for body in step for o in body.ops()]
        return found


@dataclass(slots=True)
class Outcome:
    """What a run computed: the result of every invocation, what each read saw, and the final states."""

    results: dict[tuple[Position, int], str] = field(default_factory=dict[Any, str])
    reads: dict[tuple[Position, int], list[str]] = field(default_factory=dict[Any, list[str]])
    memory: dict[Cell, str] = field(default_factory=dict[Cell, str])


def random_program(draw: Random, size: int = 12) -> Body:
    """A random program of about `size` invocations."""
    return _Writer(draw, size).body((0,), -1, 0)


class _Writer:
    def __init__(self, draw: Random, size: int) -> None:
        self.draw = draw
        self.left = size
        self.before: list[tuple[Position, int]] = []

    def body(self, prefix: Position, group: int, depth: int) -> Body:
        body = Body(prefix)
        while self.left > 0 and (depth == 0 or self.draw.random() < 0.75):
            at = (*prefix, len(body.steps))
            chance = self.draw.random()
            if depth < 2 and chance < 0.15:
                branch = self.body(at, -1, depth + 1)
                branch.joined = False
                body.steps.append([branch])
            elif depth < 2 and chance < 0.3:
                body.steps.append(self.split(at))
            else:
                body.steps.append(self.op(at, group))
        return body

    def split(self, at: Position) -> list[Body]:
        known = list(self.before)
        groups: list[Body] = []
        for group, rows in enumerate(GROUPS):
            self.before = list(known)
            body = Body(at, rows=rows)
            for k in range(self.draw.randint(1, 3)):
                body.steps.append(self.op((*at, k), group))
            groups.append(body)
        self.before = known + [op.key for body in groups for op in body.ops()]
        return groups

    def op(self, at: Position, group: int) -> Op:
        self.left -= 1
        draw = self.draw
        states = draw.sample(SHARED + KEYED, draw.randint(0, 2))
        accesses: list[Access] = []
        for state in states:
            mode = draw.choice(list(StateAccess))
            if group >= 0 and state in SHARED:
                mode = StateAccess.READ  # groups may share only what they read
            accesses.append(Access(state, mode, state in KEYED))
        rows = GROUPS[group] if group >= 0 else None
        opaque = group < 0 and draw.random() < 0.05
        inputs = draw.sample(self.before, min(len(self.before), draw.randint(0, 2)))
        used = draw.sample(self.before, 1) if self.before and draw.random() < 0.15 else []
        key = (at, group)
        self.before.append(key)
        access = AccessSet(() if opaque else tuple(accesses), opaque, rows)
        return Op(key, access, inputs, used, draw.randrange(4), draw.choice([0.5, 1.0, 1.7]))


def native(program: Body) -> Outcome:
    """Every invocation in program order, one after the other."""
    run = _Memory()
    for op in sorted(program.ops(), key=lambda op: op.key):
        run.start(op)
        run.finish(op)
    return run.outcome


class _Memory:
    def __init__(self) -> None:
        self.outcome = Outcome(memory={cell: digest("initial", cell) for cell in CELLS})
        self.seen: dict[tuple[Position, int], list[str]] = {}

    def start(self, op: Op) -> None:
        self.seen[op.key] = self._look(op)

    def finish(self, op: Op) -> None:
        seen = self.seen[op.key]
        out = self.outcome
        out.reads[op.key] = seen
        value = digest(
            op.key, seen, self._look(op), [out.results.get(i, "missing") for i in op.inputs]
        )
        out.results[op.key] = value
        for cell in op.cells(reading=False):
            out.memory[cell] = digest(cell, value)

    def _look(self, op: Op) -> list[str]:
        given = [self.outcome.results.get(i, "missing") for i in op.inputs]
        return given + [self.outcome.memory[cell] for cell in op.cells(reading=True)]


class Stuck(AssertionError):
    """Nothing can happen any more, and the program has not ended."""


@dataclass(slots=True)
class _Strand:
    """One thread of glue code: where it is, and what it waits for."""

    id: StrandId
    stack: list[tuple[Body, int]]
    children: list[StrandId] = field(default_factory=list[StrandId])


class Run:
    """Executes a program through a `Readiness`, with every free choice made by `draw`.

    Args:
        program: The program.
        draw: Chooses which strand goes on, and which running task finishes.
        machine: Makes the state machine from the names of its workers and its cores.
    """

    def __init__(
        self, program: Body, draw: Random, machine: Callable[[list[str], float], Readiness]
    ) -> None:
        self.draw = draw
        self.machine = machine([f"w{k}" for k in range(4)], draw.choice([0.0, 2.0, 3.0]))
        self.memory = _Memory()
        self.strands: dict[StrandId, _Strand] = {MAIN: _Strand(MAIN, [(program, 0)])}
        self.ids: dict[tuple[Position, int], TaskId] = {}
        self.ops: dict[TaskId, Op] = {}
        self.running: list[TaskId] = []
        self.done: set[tuple[Position, int]] = set()
        self.strand_count = 0

    def outcome(self) -> Outcome:
        """Run to the end."""
        while self.strands or self.running:
            choices: list[Callable[[], None]] = [
                lambda s=s: self._step(s) for s in self.strands.values() if self._can_step(s)
            ]
            choices += [lambda t=t: self._finish(t) for t in self.running]
            if not choices:
                raise Stuck(f"{self.machine.active} tasks wait for each other")
            self.draw.choice(choices)()
        if self.machine.active:
            raise Stuck(f"{self.machine.active} tasks never started")
        return self.memory.outcome

    def _can_step(self, strand: _Strand) -> bool:
        if any(child in self.strands for child in strand.children):
            return False
        body, at = strand.stack[-1]
        if at == len(body.steps):
            return True
        step = body.steps[at]
        if isinstance(step, Op):
            known = all(key in self.ids for key in step.inputs)
            return known and all(key in self.done for key in step.used)
        return True

    def _step(self, strand: _Strand) -> None:
        strand.children.clear()
        body, at = strand.stack[-1]
        if at == len(body.steps):
            del self.strands[strand.id]
            if strand.id != MAIN:
                self._perform(self.machine.close(strand.id))
            else:
                self._perform(self.machine.advance(MAIN, (1,)))
            return
        strand.stack[-1] = (body, at + 1)
        step = body.steps[at]
        if isinstance(step, Op):
            self._submit(strand, step)
            return
        for part in step:
            self.strand_count += 1
            child = StrandId(self.strand_count)
            reach = union_all(op.access for op in part.ops())
            self.machine.open(
                child, part.prefix, AccessSet(reach.accesses, reach.opaque, part.rows)
            )
            self.strands[child] = _Strand(child, [(part, 0)])
            if part.joined:
                strand.children.append(child)
        self._perform(self.machine.advance(strand.id, (*body.prefix, at + 1)))

    def _submit(self, strand: _Strand, op: Op) -> None:
        place, _ = op.key
        item = TaskId(len(self.ids) + 1)
        inputs = frozenset(self.ids[key] for key in op.inputs)
        self.ids[op.key] = item
        self.ops[item] = op
        self._perform(self.machine.advance(strand.id, place))
        self._perform(
            self.machine.submit(
                Submission(
                    item,
                    place,
                    strand.id,
                    op.access,
                    inputs,
                    f"w{op.worker}",
                    op.cores,
                    str(op.key),
                )
            )
        )

    def _perform(self, commands: list[Command]) -> None:
        for command in commands:
            assert isinstance(command, Start)
            self.running.append(command.id)
            self.memory.start(self.ops[command.id])

    def _finish(self, item: TaskId) -> None:
        self.running.remove(item)
        self.memory.finish(self.ops[item])
        self.done.add(self.ops[item].key)
        self._perform(self.machine.finish(item))
