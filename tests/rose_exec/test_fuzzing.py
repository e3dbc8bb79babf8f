"""Other orders that the declarations allow: a right program keeps its bits, a wrong one does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rose_exec.fuzz import fuzz
from rose_exec.policies import RandomOrder, Step, in_program_order
from rose_exec.readiness import Readiness, Submission, TaskId
from rose_exec.refs import Immediate, defer
from rose_trace.legality import AccessSet
from rose_trace.pytree import Leaf
from tests.rose_exec import programs
from tests.rose_exec.failing import ROWS, Program
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.sanitizer import wrong
from tests.rose_exec.test_programs import with_functions_and_fences, with_suspended_calls
from tests.rose_exec.test_replay import REWIRE, SPLIT

TRANSFORMS = (SPLIT, "interleave", "merge", REWIRE)


def test_a_right_program_passes_for_every_seed() -> None:
    found = fuzz(programs.build, seeds=range(12))
    assert found.differences == ()
    assert found.orders == 12
    assert found.overtakings > 100


def test_so_does_it_under_a_plan() -> None:
    plan = observed_plan(
        programs.build, *TRANSFORMS, rows=programs.ROWS, processes=("trainer", "policy")
    )
    found = fuzz(programs.build, plan=plan, seeds=range(8))
    assert found.differences == ()
    assert found.orders == 8


@pytest.mark.parametrize("build", [with_functions_and_fences, with_suspended_calls])
def test_fences_functions_and_coroutines(build: Callable[[], Any]) -> None:
    assert fuzz(build, seeds=range(4)).differences == ()


def test_sharded_rows_are_compared_with_the_rows_of_the_whole() -> None:
    split = ("split-spatial{loop=root/interact groups=2}", "interleave", "merge")
    plan = observed_plan(with_functions_and_fences, *split, rows=ROWS, processes=("learner",))
    assert fuzz(with_functions_and_fences, plan=plan, seeds=range(4)).differences == ()


@pytest.mark.parametrize(
    ("build", "subject"),
    [
        (wrong.one_component(wrong.DrawsTorch), "root/rollout/interact/policy.act["),
        (wrong.reads_undeclared, "root/"),
        (wrong.shared_module, "root/"),
        (wrong.one_simulator(wrong.ReusesBuffer), "root/learning/summed["),
    ],
    ids=["generator", "read", "shared module", "buffer"],
)
def test_a_wrong_annotation_shows(build: wrong.Build, subject: str) -> None:
    found = fuzz(build, seeds=range(8))
    assert found.differences
    assert any(d.subject.startswith(subject) for d in found.differences)
    assert str(found.differences[0]).startswith(
        f"{found.differences[0].subject}: expected the native "
    )


def test_a_seed_gives_the_same_run_again() -> None:
    one, two = (fuzz(wrong.reads_undeclared, seeds=range(6)) for _ in range(2))
    assert one == two
    assert one.differences


def test_an_executor_that_forgets_states_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    submit = Readiness.submit

    def forgetful(machine: Readiness, submission: Submission) -> Any:
        return submit(machine, dataclasses.replace(submission, access=AccessSet()))

    monkeypatch.setattr(Readiness, "submit", forgetful)
    assert fuzz(programs.build, seeds=range(3)).differences


def steps(*tasks: int) -> list[Step]:
    return [Step((k,), TaskId(k), True, f"node{k}") for k in tasks]


def test_policies() -> None:
    assert in_program_order(steps(3, 1, 2)).task == 1
    picked = [RandomOrder(seed)(steps(0, 1, 2, 3)).task for seed in range(40)]
    assert set(picked) == {0, 1, 2, 3}
    assert picked == [RandomOrder(seed)(steps(0, 1, 2, 3)).task for seed in range(40)]
    alone = RandomOrder(1)
    assert [alone(steps(7)).task for _ in range(30)] == [7] * 30  # a delay holds up nothing alone


def test_branches_that_use_values_in_glue_do_not_hold_each_other_up() -> None:
    plan = observed_plan(lambda: Program().iteration, *TRANSFORMS, rows=ROWS)

    def run(built: Program, index: int) -> Any:
        return built.iteration()

    found = fuzz(Program, run, plan=plan, seeds=range(4))
    assert found.differences == ()


def test_waiting_for_one_value_does_not_hold_up_another() -> None:
    ready = threading.Event()

    def wait(value: Any) -> Any:
        if value.value == "first":
            assert ready.wait(30)
        return value.get()

    first, second = (defer(Immediate(text), Leaf("str"), wait) for text in ("first", "second"))
    waiting = threading.Thread(target=lambda: str(first))
    waiting.start()
    assert str(second) == "second"
    ready.set()
    waiting.join()
    assert str(first) == "first"
