"""The steady state as a CP-SAT model: one start per phase, modulo the period.

Phase p of step n starts at `tau + period * (wraps before it + n)`. A group's chain crosses the
end of the period exactly once, because its step n+1 waits for its step n. Phases that exclude
each other must not overlap within the period, nor reach the first of them one period later;
other capacity is a cumulative over two copies of every phase.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from rose_opt.schedule.capacity import RESOURCES
from rose_opt.schedule.model import PhaseId
from rose_opt.schedule.solver import weighted, when
from rose_opt.schedule.ticks import KAPPA_SCALE, TickLoop, TickPhase, TickPlacement


@dataclass(slots=True)
class _Op:
    """Variables of one phase: tau, duration, end = tau + duration, one literal per mode."""

    phase: TickPhase
    tau: cp_model.IntVar
    length: cp_model.IntVar
    end: cp_model.IntVar
    chosen: list[cp_model.IntVar]
    wraps: cp_model.IntVar
    overlaps: list[tuple[int, cp_model.IntVar]] = field(
        default_factory=list[tuple[int, cp_model.IntVar]]
    )


class SteadyModel:
    """The model for periods in `low..high`.

    Args:
        loop: The loop, in ticks.
        low: Least period [ticks].
        high: Largest period [ticks]; the period is fixed where it equals `low`.
        minimize: "period", or "span" (with a fixed period); anything feasible if None.
    """

    def __init__(self, loop: TickLoop, low: int, high: int, minimize: str | None) -> None:
        self.model = cp_model.CpModel()
        self._loop = loop
        self._high = high
        self.period = self.model.new_int_var(low, high, "period")
        self._ops = {phase.id: self._add_op(phase) for phase in loop.phases}
        self._tie_modes()
        self._add_chains()
        for clique in loop.cliques:
            self._exclude([self._ops[key] for key in clique])
        if loop.cumulative:
            self._limit_resources()
        if loop.kappa:
            self._add_contention()
        if minimize == "period":
            self.model.minimize(self.period)
        elif minimize == "span":
            self.model.minimize(self._add_span())

    def _add_op(self, phase: TickPhase) -> _Op:
        model, high = self.model, self._high
        shortest = min(mode.ticks for mode in phase.modes)
        longest = high if self._loop.kappa else max(mode.ticks for mode in phase.modes)
        tau = model.new_int_var(0, high - 1, f"tau {phase.id}")
        length = model.new_int_var(shortest, min(high, longest), f"length {phase.id}")
        end = model.new_int_var(0, 2 * high - 1, f"end {phase.id}")
        model.add(end == tau + length)
        model.add(tau < self.period)
        model.add(length <= self.period)
        chosen = [model.new_bool_var(f"mode {phase.id} {mode.index}") for mode in phase.modes]
        model.add_exactly_one(chosen)
        op = _Op(phase, tau, length, end, chosen, model.new_bool_var(f"wraps {phase.id}"))
        if not self._loop.kappa:
            model.add(length == self._solo(op))
        return op

    @staticmethod
    def _solo(op: _Op) -> cp_model.LinearExpr:
        """Duration alone, in the chosen mode [ticks]."""
        ticks = [mode.ticks for mode in op.phase.modes]
        return weighted(list(zip(ticks, op.chosen, strict=True)))

    def _tie_modes(self) -> None:
        if not self._loop.shared_modes:
            return
        first: dict[str, _Op] = {}
        for op in self._ops.values():
            leader = first.setdefault(op.phase.id.name, op)
            ours = {mode.index: on for mode, on in zip(op.phase.modes, op.chosen, strict=True)}
            for mode, on in zip(leader.phase.modes, leader.chosen, strict=True):
                if leader is not op:
                    self.model.add(on == ours.pop(mode.index, 0))
            if leader is not op:
                for on in ours.values():
                    self.model.add(on == 0)

    def _add_chains(self) -> None:
        """Precedence along each chain, one crossing of the period's end, and normal form."""
        for chain in self._loop.chains:
            ops = [self._ops[phase.id] for phase in chain]
            for before, after in zip(ops, ops[1:] + ops[:1], strict=True):
                crossing = before.wraps
                when(self.model.add(after.tau >= before.end), ~crossing)
                when(self.model.add(after.tau + self.period >= before.end), crossing)
            self.model.add_exactly_one(op.wraps for op in ops)
        self.model.add(self._first(0).tau == 0)
        for left, right in itertools.pairwise(range(len(self._loop.chains))):
            if self._alike(left, right):
                self.model.add(self._first(left).tau <= self._first(right).tau)

    def _first(self, chain: int) -> _Op:
        return self._ops[self._loop.chains[chain][0].id]

    def _alike(self, left: int, right: int) -> bool:
        """Whether two groups can change places."""
        a, b = self._loop.chains[left], self._loop.chains[right]
        return [(p.id.name, p.engine, p.modes) for p in a] == [
            (p.id.name, p.engine, p.modes) for p in b
        ]

    def _exclude(self, ops: list[_Op]) -> None:
        """No two of `ops` overlap, within the period or across its end."""
        self.model.add_no_overlap(
            self.model.new_interval_var(op.tau, op.length, op.end, "") for op in ops
        )
        earliest = self.model.new_int_var(0, self._high - 1, "")
        for op in ops:
            self.model.add(op.tau >= earliest)
            self.model.add(op.end <= earliest + self.period)
        self.model.add(sum(op.length for op in ops) <= self.period)

    def _limit_resources(self) -> None:
        intervals: list[tuple[cp_model.IntervalVar, tuple[int, int, int]]] = []
        for op in self._ops.values():
            later = self.model.new_int_var(0, 2 * self._high - 1, "")
            self.model.add(later == op.tau + self.period)
            for start in (op.tau, later):
                end = self.model.new_int_var(0, 3 * self._high - 1, "")
                for mode, on in zip(op.phase.modes, op.chosen, strict=True):
                    if any(mode.units):
                        interval = self.model.new_optional_interval_var(
                            start, op.length, end, on, ""
                        )
                        intervals.append((interval, mode.units))
        for axis in range(len(RESOURCES)):
            limit = self._loop.limits[axis]
            users = [(interval, units[axis]) for interval, units in intervals if units[axis]]
            if limit is not None and users:
                self.model.add_cumulative(
                    [interval for interval, _ in users], [demand for _, demand in users], limit
                )

    def _add_contention(self) -> None:
        """Every duration pays for the overlaps that it has: d >= T + sum(kappa * overlap)."""
        ops = list(self._ops.values())
        everything: list[cp_model.IntVar] = []
        for a, b in itertools.combinations(ops, 2):
            left, right = a.phase, b.phase
            if left.id.group == right.id.group or left.engine == right.engine:
                continue
            overlap = self._overlap(a, b)
            everything.append(overlap)
            for op, other in ((a, b), (b, a)):
                weight = self._loop.kappa.get((op.phase.id.name, other.phase.id.name), 0)
                if weight:
                    op.overlaps.append((weight, overlap))
        for op in ops:
            needed = KAPPA_SCALE * self._solo(op) + weighted(op.overlaps)
            self.model.add(KAPPA_SCALE * op.length >= needed)
        # Bonferroni: what the phases cover is at least their lengths less all pairwise overlaps.
        self.model.add(sum(op.length for op in ops) - sum(everything) <= self.period)

    def _overlap(self, a: _Op, b: _Op) -> cp_model.IntVar:
        """A variable that is at least the overlap of two phases in the steady state [ticks].

        The phase that starts first in the period meets the other twice: with its end, and with
        its own start one period later. Each meeting is the smaller of two lengths.
        """
        model = self.model
        a_first, head_full, tail_full = (model.new_bool_var("") for _ in range(3))
        head, tail, total = (model.new_int_var(0, self._high, "") for _ in range(3))
        for early, late, order in ((a, b, a_first), (b, a, ~a_first)):
            when(model.add(early.tau <= late.tau), order)
            when(model.add(head >= early.end - late.tau), order, ~head_full)
            when(model.add(head >= late.length), order, head_full)
            when(model.add(tail >= late.end - early.tau - self.period), order, ~tail_full)
            when(model.add(tail >= early.length), order, tail_full)
        model.add(total == head + tail)
        model.add(total <= a.length)
        model.add(total <= b.length)
        return total

    def _add_span(self) -> cp_model.IntVar:
        """From the first start to the last end of one step of all groups, period fixed."""
        period = self._high
        span = self.model.new_int_var(0, 3 * period, "span")
        begin = self.model.new_int_var(0, period - 1, "begin")
        chains = self._loop.chains
        alike = all(self._alike(0, number) for number in range(1, len(chains)))
        for number, chain in enumerate(chains):
            first, last = self._ops[chain[0].id], self._ops[chain[-1].id]
            late = 0 if alike else self.model.new_bool_var(f"late {number}")
            start = first.tau + period * late
            self.model.add(begin <= start)
            self.model.add(span >= last.end + period * (1 - last.wraps) + period * late - begin)
        return span

    def hint(self, found: TickPlacement) -> None:
        """Start the search from `found`, which may have another period."""
        add = self.model.add_hint
        add(self.period, found.period)
        offset = found.placed[self._loop.chains[0][0].id][0]
        for chain in self._loop.chains:
            starts = [found.placed[phase.id][0] - offset for phase in chain]
            next_starts = [*starts[1:], starts[0] + found.period]
            for phase, start, after in zip(chain, starts, next_starts, strict=True):
                op, (_, length, mode) = self._ops[phase.id], found.placed[phase.id]
                add(op.tau, start % found.period)
                add(op.length, length)
                add(op.end, start % found.period + length)
                add(op.wraps, after // found.period > start // found.period)
                for option, on in zip(op.phase.modes, op.chosen, strict=True):
                    add(on, option.index == mode)

    def solution(self, solver: cp_model.CpSolver) -> TickPlacement:
        """Return what `solver` found, moved so that the first phase starts at 0."""
        period = solver.value(self.period)
        placed: dict[PhaseId, tuple[int, int, int]] = {}
        for chain in self._loop.chains:
            stage = 0
            for phase in chain:
                op = self._ops[phase.id]
                mode = next(
                    mode.index
                    for mode, on in zip(phase.modes, op.chosen, strict=True)
                    if solver.value(on)
                )
                start = solver.value(op.tau) + period * stage
                placed[phase.id] = start, solver.value(op.length), mode
                stage += solver.value(op.wraps)
        return aligned(self._loop, period, placed)


def aligned(
    loop: TickLoop, period: int, placed: Mapping[PhaseId, tuple[int, int, int]]
) -> TickPlacement:
    """Choose which groups start a period later so that the span is least; start at 0."""
    firsts = [placed[chain[0].id][0] for chain in loop.chains]
    lasts = [sum(placed[chain[-1].id][:2]) for chain in loop.chains]
    span, begin = min(
        (max(end + period * (f < b) for f, end in zip(firsts, lasts, strict=True)) - b, b)
        for b in firsts
    )
    moved: dict[PhaseId, tuple[int, int, int]] = {}
    for chain, first in zip(loop.chains, firsts, strict=True):
        for phase in chain:
            start, length, mode = placed[phase.id]
            moved[phase.id] = start + period * (first < begin) - begin, length, mode
    return TickPlacement(period, span, moved)
