"""Whatever the order of events, planned execution computes what serial execution computes.

Random programs of invocations, branches and groups go through the state machine with random workers,
random progress of every branch and random completions. The same check finds each kind of dependency
that is left out, so it can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_exec.readiness import (
    Command,
    OrderViolation,
    Position,
    Readiness,
    StrandId,
    Submission,
    TaskId,
)
from rose_trace.legality import AccessSet, Conflict, conflicting, first_conflict
from rose_trace.records import Access, StateAccess
from tests.properties import examples
from tests.rose_exec.abstract import Run, Stuck, native, random_program


@examples(250, 100)
@given(st.integers(0, 2**32), st.integers(1, 24), st.randoms(use_true_random=False))
def test_any_order_of_events_computes_the_serial_result(seed: int, size: int, draw: Random) -> None:
    program = random_program(Random(seed), size)
    assert Run(program, draw, Readiness).outcome() == native(program)


class NoData(Readiness):
    """Starts tasks whose inputs are not there."""

    def submit(self, submission: Submission) -> list[Command]:
        return super().submit(replace(submission, inputs=frozenset[TaskId]()))


class NoReservation(Readiness):
    """Does not know what its branches may still submit."""

    def open(self, strand: StrandId, frontier: Position, reservation: AccessSet) -> None:
        super().open(strand, frontier, AccessSet())

    def _check_announced(self, submission: Submission) -> None:
        """Takes every submission as announced."""


def kind(earlier: Access, later: Access) -> str:
    if not earlier.mode.writes:
        return "WAR"
    return "WAW" if later.mode is StateAccess.REFRESH else "RAW"


def without(dropped: str) -> Callable[[AccessSet, AccessSet], Conflict | None]:
    def conflict(earlier: AccessSet, later: AccessSet) -> Conflict | None:
        if earlier.opaque or later.opaque:
            return first_conflict(earlier, later)
        for a in earlier.accesses:
            for b in later.accesses:
                if conflicting(a, b, earlier.rows, later.rows) and kind(a, b) != dropped:
                    return Conflict(a, b)
        return None

    return conflict


def without_fences(earlier: AccessSet, later: AccessSet) -> Conflict | None:
    return None if earlier.opaque or later.opaque else first_conflict(earlier, later)


def without_rows(earlier: AccessSet, later: AccessSet) -> Conflict | None:
    """Takes accesses to different groups of rows as meeting never, whichever rows they are."""
    for a in earlier.accesses:
        for b in later.accesses:
            if conflicting(a, b) and not (a.keyed and earlier.rows != later.rows):
                return Conflict(a, b)
    return first_conflict(earlier, later) if earlier.opaque or later.opaque else None


def mismatches(machine: Callable[[list[str], float], Readiness], programs: int = 150) -> int:
    """In how many of the seeded runs the result differs, or the machine gives up."""
    found = 0
    for seed in range(programs):
        draw = Random(seed)
        program = random_program(draw, 16)
        try:
            found += Run(program, draw, machine).outcome() != native(program)
        except (OrderViolation, Stuck):
            found += 1
    return found


def test_the_seeded_programs_agree_with_every_dependency_in_place() -> None:
    assert mismatches(Readiness) == 0


@pytest.mark.parametrize("machine", [NoData, NoReservation])
def test_leaving_out_data_or_reservations_is_found(machine: type[Readiness]) -> None:
    assert mismatches(machine) > 0


@pytest.mark.parametrize("dropped", ["RAW", "WAR", "WAW"])
def test_leaving_out_state_dependencies_is_found(
    dropped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("readiness", "program_order"):
        monkeypatch.setattr(f"rose_exec.{module}.first_conflict", without(dropped))
    assert mismatches(Readiness) > 0


@pytest.mark.parametrize("conflict", [without_fences, without_rows])
def test_leaving_out_fences_or_rows_is_found(
    conflict: Callable[[AccessSet, AccessSet], Conflict | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("readiness", "program_order"):
        monkeypatch.setattr(f"rose_exec.{module}.first_conflict", conflict)
    assert mismatches(Readiness) > 0


def separates_within_an_invocation(_: AccessSet, __: AccessSet) -> bool:
    return True


def test_separating_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose_exec.program_order._separates", separates_within_an_invocation)
    assert mismatches(Readiness) > 0
