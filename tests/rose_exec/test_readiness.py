"""Events in, commands out: every rule by which a task may start."""

from __future__ import annotations

import itertools

import pytest

from rose_exec.readiness import (
    MAIN,
    Cancel,
    Command,
    OrderViolation,
    Position,
    Readiness,
    Start,
    StrandId,
    Submission,
    TaskId,
)
from rose_trace.legality import AccessSet, RowRange
from rose_trace.records import Access, StateAccess

READ, UPDATE, REFRESH = StateAccess.READ, StateAccess.UPDATE, StateAccess.REFRESH
PURE = AccessSet()
OPAQUE = AccessSet(opaque=True)
LEFT, RIGHT = RowRange(0, 3), RowRange(3, 6)


def touches(mode: StateAccess, state: str = "policy.weights") -> AccessSet:
    return AccessSet((Access(state, mode),))


def keyed(mode: StateAccess, rows: RowRange | None) -> AccessSet:
    return AccessSet((Access("sim.episode", mode, keyed=True),), rows=rows)


class Machine:
    """A `Readiness` with a worker per task unless told otherwise, and readable commands."""

    def __init__(self, cores: float = 0.0) -> None:
        self.names = [f"w{k}" for k in range(12)]
        self.machine = Readiness(self.names, cores)
        self._ids = itertools.count(1)
        self.ids: dict[str, TaskId] = {}

    def submit(
        self,
        name: str,
        at: Position,
        access: AccessSet = PURE,
        *inputs: str,
        strand: StrandId = MAIN,
        worker: str = "",
        cores: float = 1.0,
    ) -> list[str]:
        self.ids[name] = TaskId(next(self._ids))
        place = worker or self.names[len(self.ids) - 1]
        wanted = frozenset(self.ids[i] for i in inputs)
        return self.told(
            self.machine.submit(
                Submission(self.ids[name], at, strand, access, wanted, place, cores, name)
            )
        )

    def told(self, commands: list[Command]) -> list[str]:
        named = {v: k for k, v in self.ids.items()}
        verbs = {Start: "start", Cancel: "cancel"}
        return [f"{verbs[type(c)]} {named[c.id]}" for c in commands]

    def finish(self, name: str) -> list[str]:
        return self.told(self.machine.finish(self.ids[name]))

    def fail(self, name: str) -> list[str]:
        return self.told(self.machine.fail(self.ids[name]))

    def advance(self, frontier: Position, strand: StrandId = MAIN) -> list[str]:
        return self.told(self.machine.advance(strand, frontier))

    def open(self, number: int, frontier: Position, reservation: AccessSet) -> StrandId:
        self.machine.open(StrandId(number), frontier, reservation)
        return StrandId(number)

    def ready(self) -> list[str]:
        named = {v: k for k, v in self.ids.items()}
        ready = [named[i] for i in self.machine.became_ready]
        self.machine.became_ready.clear()
        return ready


def test_a_task_without_dependencies_starts_at_once() -> None:
    m = Machine()
    assert m.submit("a", (0,)) == ["start a"]
    assert m.machine.active == 1
    assert m.finish("a") == []
    assert m.machine.active == 0


def test_a_task_waits_for_its_inputs() -> None:
    m = Machine()
    m.submit("a", (0,))
    m.submit("b", (1,))
    assert m.submit("c", (2,), PURE, "a", "b") == []
    assert sorted(m.machine.waiting_for(m.ids["c"])) == ["a", "b"]
    assert m.finish("b") == []
    assert m.finish("a") == ["start c"]


def test_inputs_that_are_done_are_not_waited_for() -> None:
    m = Machine()
    m.submit("a", (0,))
    m.finish("a")
    assert m.submit("b", (1,), PURE, "a") == ["start b"]


@pytest.mark.parametrize(
    ("first", "second", "ordered"),
    [
        (READ, READ, False),
        (UPDATE, READ, True),  # RAW
        (REFRESH, READ, True),  # RAW
        (READ, UPDATE, True),  # WAR
        (READ, REFRESH, True),  # WAR: a refresh takes the place where the value lives
        (UPDATE, UPDATE, True),  # WAW
        (REFRESH, REFRESH, True),  # WAW
        (UPDATE, REFRESH, True),
        (REFRESH, UPDATE, True),
    ],
)
def test_two_accesses_to_one_state(first: StateAccess, second: StateAccess, ordered: bool) -> None:
    m = Machine()
    m.submit("a", (0,), touches(first))
    assert m.submit("b", (1,), touches(second)) == ([] if ordered else ["start b"])
    assert m.finish("a") == (["start b"] if ordered else [])


def test_different_states_never_wait() -> None:
    m = Machine()
    m.submit("a", (0,), touches(UPDATE, "trainer.weights"))
    assert m.submit("b", (1,), touches(UPDATE, "policy.weights")) == ["start b"]


def test_a_write_waits_for_every_reader_and_readers_run_together() -> None:
    m = Machine()
    m.submit("w", (0,), touches(UPDATE))
    m.submit("r1", (1,), touches(READ))
    m.submit("r2", (2,), touches(READ))
    m.submit("x", (3,), touches(REFRESH))
    assert m.finish("w") == ["start r1", "start r2"]
    assert m.finish("r1") == []
    assert m.finish("r2") == ["start x"]


def test_keyed_rows_meet_only_where_they_overlap() -> None:
    m = Machine()
    assert m.submit("left", (0,), keyed(UPDATE, LEFT)) == ["start left"]
    assert m.submit("right", (0,), keyed(UPDATE, RIGHT)) == ["start right"]
    assert m.submit("left again", (1,), keyed(UPDATE, LEFT)) == []
    assert m.submit("middle", (2,), keyed(READ, RowRange(2, 4))) == []
    assert m.submit("all", (3,), keyed(READ, None)) == []
    assert m.finish("right") == []
    assert m.finish("left") == ["start left again"]
    assert m.finish("left again") == ["start middle", "start all"]


def test_every_fragment_of_an_invocation_is_waited_for() -> None:
    m = Machine()
    shared = AccessSet((Access("sim.difficulty", UPDATE),), rows=LEFT)
    other = AccessSet((Access("sim.difficulty", UPDATE),), rows=RIGHT)
    m.submit("slow", (0,))
    m.submit("shard 0", (1,), shared, "slow")
    m.submit("shard 1", (1,), other)
    assert m.submit("after", (2,), shared) == []
    assert m.finish("shard 1") == []
    assert m.finish("slow") == ["start shard 0"]
    assert m.finish("shard 0") == ["start after"]


def test_a_task_submitted_late_goes_before_every_fragment() -> None:
    m = Machine()
    strand = m.open(1, (1,), OPAQUE)
    m.advance((2,))
    m.submit("shard 0", (2,), touches(UPDATE, "sim.difficulty"))
    m.submit("shard 1", (2,), touches(UPDATE, "sim.difficulty"))
    assert m.submit("late", (1, 0), touches(READ, "sim.difficulty"), strand=strand) == [
        "start late"
    ]
    assert m.told(m.machine.close(strand)) == []
    assert m.finish("late") == ["start shard 0", "start shard 1"]


def test_an_access_that_is_not_keyed_meets_every_row() -> None:
    m = Machine()
    m.submit("right", (0,), keyed(UPDATE, RIGHT))
    m.submit("left", (1,), keyed(UPDATE, LEFT))
    alias = AccessSet((Access("sim.episode", READ),), rows=LEFT)
    assert m.submit("alias", (2,), alias) == []
    assert m.finish("left") == []
    assert m.finish("right") == ["start alias"]


def test_an_opaque_task_is_a_fence_for_everything() -> None:
    m = Machine()
    m.submit("a", (0,), touches(READ))
    m.submit("b", (1,))
    assert m.submit("fence", (2,), OPAQUE) == []
    assert m.submit("pure", (3,)) == []
    assert m.submit("other", (4,), touches(READ, "x")) == []
    assert m.finish("a") == []
    assert m.finish("b") == ["start fence"]
    assert m.finish("fence") == ["start pure", "start other"]


def test_a_branch_holds_what_it_may_still_conflict_with() -> None:
    m = Machine()
    branch = m.open(1, (0,), touches(READ))
    m.advance((1,))
    assert m.submit("reset", (1,), touches(REFRESH, "sim.episode")) == ["start reset"]
    assert m.submit("load", (2,), touches(REFRESH)) == []
    assert m.machine.waiting_for(m.ids["load"]) == ("branch 1",)
    assert m.submit("act", (0, 0), touches(READ), strand=branch) == ["start act"]
    assert m.told(m.machine.close(branch)) == []
    assert m.finish("act") == ["start load"]


def test_a_branch_lets_go_of_what_it_has_passed() -> None:
    m = Machine()
    branch = m.open(1, (0,), touches(UPDATE))
    m.open(2, (0,), PURE)
    m.advance((9,))
    assert m.submit("early", (0, 5), touches(READ), strand=StrandId(2)) == []
    assert m.advance((0, 4), branch) == []
    assert m.advance((0, 5), branch) == ["start early"]


def test_the_main_program_reserves_everything_until_it_has_passed() -> None:
    m = Machine()
    branch = m.open(1, (3,), touches(UPDATE))
    assert m.submit("step", (3, 0), touches(UPDATE), strand=branch) == []
    assert m.advance((4,)) == ["start step"]


def test_a_branch_opened_within_a_branch_takes_over_what_that_held() -> None:
    m = Machine()
    outer = m.open(1, (0,), touches(UPDATE))
    m.advance((1,))
    assert m.submit("load", (1,), touches(REFRESH)) == []
    inner = m.open(2, (0, 3), touches(UPDATE))
    assert m.told(m.machine.close(outer)) == []
    assert m.submit("update", (0, 3, 0), touches(UPDATE), strand=inner) == ["start update"]
    assert m.finish("update") == []
    assert m.told(m.machine.close(inner)) == ["start load"]


def test_an_unannounced_access_that_comes_too_late_is_reported() -> None:
    m = Machine()
    branch = m.open(1, (0,), PURE)
    m.advance((1,))
    m.submit("load", (1,), touches(REFRESH))
    with pytest.raises(OrderViolation) as caught:
        m.submit("act", (0, 0), touches(READ), strand=branch)
    assert str(caught.value) == (
        "act: expected only the accesses that were recorded for its branch, got read of "
        "'policy.weights' against refresh of 'policy.weights': load, which comes later in the program, "
        "has already started. Record a new trace that covers this path and plan again."
    )
    m.machine.close(branch)
    assert m.machine.active == 1  # load


def test_an_unannounced_access_in_time_is_enforced_from_then_on() -> None:
    m = Machine()
    branch = m.open(1, (0,), PURE)
    m.advance((1,))
    m.submit("busy", (1,), PURE, worker="w0")
    m.submit("load", (2,), touches(REFRESH), worker="w0")
    assert m.submit("act", (0, 0), touches(READ), strand=branch, worker="w1") == ["start act"]
    assert m.finish("busy") == []
    assert m.finish("act") == []  # the branch may touch it again
    assert m.submit("act again", (0, 1), touches(READ), strand=branch, worker="w1") == [
        "start act again"
    ]
    assert m.told(m.machine.close(branch)) == []
    assert m.finish("act again") == ["start load"]


def test_groups_that_meet_without_announcing_it_are_reported() -> None:
    m = Machine()
    left, right = m.open(1, (0,), PURE), m.open(2, (0,), PURE)
    m.advance((1,))
    m.submit("left", (0, 0), touches(UPDATE, "sim.count"), strand=left)
    with pytest.raises(OrderViolation, match="left, which comes later in the program, belongs to"):
        m.submit("right", (0, 0), touches(UPDATE, "sim.count"), strand=right)


def test_a_late_submission_goes_first_where_nothing_started() -> None:
    m = Machine()
    branch = m.open(1, (0,), touches(UPDATE))
    m.advance((1,))
    m.submit("held", (1,), touches(READ))
    m.submit("update", (0, 0), touches(UPDATE), strand=branch)
    assert m.told(m.machine.close(branch)) == []
    assert m.finish("update") == ["start held"]


def test_a_worker_runs_one_task_at_a_time_in_program_order() -> None:
    m = Machine()
    m.submit("a", (0,), worker="w0")
    branch = m.open(1, (0,), PURE)
    m.advance((9,))
    assert m.submit("late", (2,), worker="w0") == []
    assert m.submit("early", (0, 1), strand=branch, worker="w0") == []
    assert m.ready() == ["a", "late", "early"]
    assert m.finish("a") == ["start early"]
    assert m.finish("early") == ["start late"]


def test_cores_are_never_oversubscribed_and_nobody_overtakes() -> None:
    m = Machine(cores=2.0)
    assert m.submit("a", (0,), cores=1.5) == ["start a"]
    assert m.submit("b", (1,), cores=1.0) == []
    assert m.submit("c", (2,), cores=0.5) == []
    assert m.finish("a") == ["start b", "start c"]


def test_a_task_that_wants_more_than_there_is_runs_alone() -> None:
    m = Machine(cores=2.0)
    for name, cores in (("a", 0.7), ("b", 0.1), ("c", 0.2)):
        m.submit(name, (0,), cores=cores)
    assert m.submit("all", (1,), cores=3.0) == []
    assert m.finish("a") == m.finish("c") == []
    assert m.finish("b") == ["start all"]


def test_a_failure_cancels_what_comes_later_and_lets_earlier_work_finish() -> None:
    m = Machine()
    m.submit("a", (0,), touches(UPDATE, "x"))
    m.submit("b", (1,), touches(READ, "x"))
    m.submit("c", (2,))
    m.submit("d", (3,))
    m.submit("e", (4,), PURE, "d")
    assert m.fail("c") == ["cancel e"]
    assert m.machine.stopped_at == (2, 0)
    assert m.finish("d") == []  # it had started; it runs to its end
    assert m.finish("a") == ["start b"]
    assert m.submit("too late", (5,)) == ["cancel too late"]
    assert m.submit("fragment", (2,)) == ["start fragment"]  # of the invocation that failed
    assert m.submit("earlier", (1, 5)) == ["start earlier"]


def test_the_earliest_failure_decides_what_still_runs() -> None:
    m = Machine()
    m.submit("a", (0,))
    m.submit("b", (1,))
    m.submit("c", (2,), PURE, "a")
    m.submit("d", (4,), PURE, "a")
    assert m.fail("b") == ["cancel c", "cancel d"]
    assert m.told(m.machine.stop((3,))) == []
    assert m.machine.stopped_at == (1, 0)


def test_glue_that_stops_cancels_what_has_not_started() -> None:
    m = Machine()
    m.submit("a", (0,), touches(UPDATE))
    m.submit("b", (1,), touches(UPDATE))
    m.submit("c", (2,), touches(UPDATE))
    assert m.told(m.machine.stop((1,))) == ["cancel b", "cancel c"]
    assert m.finish("a") == []
    assert m.machine.active == 0


def test_an_iteration_after_a_failure_starts_clean() -> None:
    m = Machine()
    m.submit("a", (0,), touches(UPDATE))
    m.fail("a")
    m.machine.reset()
    assert m.machine.stopped_at is None
    assert m.submit("b", (1,), touches(UPDATE)) == ["start b"]


def test_ready_tasks_are_reported_when_only_their_worker_is_missing() -> None:
    m = Machine()
    m.submit("a", (0,), worker="w0")
    m.submit("b", (1,), worker="w0")
    m.submit("c", (2,), PURE, "a", worker="w1")
    assert m.ready() == ["a", "b"]
    m.finish("a")
    assert m.ready() == ["c"]
