"""A program unrolled under a plan: who runs what, and what waits for what."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from rose_opt.facts import Facts
from rose_opt.graph import Graph
from rose_opt.optimize import plan
from rose_opt.plan import Plan, Transformation
from rose_opt.settings import Memory, PlanSettings
from rose_opt.simulator import Task
from rose_opt.simulator.program import CannotSimulate, Solo, solo_ns, unroll
from rose_trace.legality import AccessSet
from rose_trace.records import Access, Declaration, NodePath, StateAccess
from tests.rose_opt.programs import ACT, INTERACT, STEP, UPDATE, Took, measured, ppo

SETTINGS = PlanSettings(cores=8.0, max_groups=2, dispatch_ns=1000)
SPLIT = f"split-spatial{{loop={INTERACT} groups=2}},interleave{{loop={INTERACT}}},merge{{loop={INTERACT}}}"
CHAINS = (
    "split-temporal{loop=iteration/rollout groups=2},interleave{loop=iteration/rollout},"
    "merge{loop=iteration/rollout}"
)
REWIRE = "rewire{node=iteration/learn beside=iteration/rollout}"
VALUE = "iteration/rollout/policy.value"
RESET = "iteration/rollout/sim.reset"


def facts(**program: object) -> Facts:
    took = {
        f"{ACT}/policy.encode": Took(4.0, 2.0),
        f"{ACT}/policy.denoise": Took(6.0, 2.0),
        STEP: Took(20.0),
        UPDATE: Took(50.0, 2.0),
    }
    return measured(ppo(epochs=2, steps=3, **program), took)  # pyright: ignore


def planned(known: Facts, transforms: str) -> Plan:
    return plan(known, replace(SETTINGS, transforms=transforms))


def named(tasks: tuple[Task, ...], path: str) -> list[int]:
    return [index for index, task in enumerate(tasks) if task.name == path]


def ancestors(tasks: tuple[Task, ...], index: int) -> set[int]:
    """Everything that must have run before a task."""
    found: set[int] = set()
    open_ = list(tasks[index].after)
    while open_:
        earlier = open_.pop()
        if earlier not in found:
            found.add(earlier)
            open_ += tasks[earlier].after
    return found


def test_the_native_order_runs_every_invocation_on_one_worker() -> None:
    tasks = unroll(facts(), planned(facts(), ""))
    assert Counter(task.name for task in tasks) == {
        RESET: 2,
        ACT: 6,
        STEP: 6,
        VALUE: 2,
        UPDATE: 2,
        "iteration/trainer.weights": 1,
        "iteration/policy.load": 1,
    }
    assert {task.workers for task in tasks} == {("inline",)}
    assert solo_ns(tasks) == facts().iteration.iteration_ns


def test_groups_have_workers_and_rows_of_their_own() -> None:
    tasks = unroll(facts(), planned(facts(), SPLIT))
    steps = named(tasks, STEP)
    assert [tasks[i].workers for i in steps] == [("sim[0/2]",), ("sim[1/2]",)] * 6
    acts = named(tasks, ACT)
    # Acts of both groups wait for the merged reset, later ones for the step of their own group too.
    resets = set(named(tasks, RESET)[:2])
    assert set(tasks[acts[0]].after) == set(tasks[acts[1]].after) == resets
    assert set(tasks[acts[2]].after) - resets == {steps[0]}
    assert set(tasks[acts[3]].after) - resets == {steps[1]}
    # The bootstrap value needs both groups.
    assert set(steps[4:6]) <= set(tasks[named(tasks, VALUE)[0]].after)


def test_a_sharded_component_outside_the_split_runs_on_all_shards() -> None:
    tasks = unroll(facts(), planned(facts(), SPLIT))
    resets = named(tasks, RESET)
    assert [tasks[i].workers for i in resets] == [("sim[0/2]",), ("sim[1/2]",)] * 2
    # The second reset waits for what the same rows did before, not for the other group's.
    first_epoch = named(tasks, STEP)[4:6]
    assert first_epoch[0] in ancestors(tasks, resets[2])
    assert first_epoch[1] not in tasks[resets[2]].after


def test_an_epoch_is_learnt_from_once_it_is_complete() -> None:
    tasks = unroll(facts(), planned(facts(), REWIRE))
    first, second = named(tasks, UPDATE)
    values = named(tasks, VALUE)
    assert tasks[first].workers == ("trainer",)
    assert values[0] in tasks[first].after
    assert values[1] not in ancestors(tasks, first)
    assert {values[1], first} <= ancestors(tasks, second)


def test_learning_from_all_epochs_waits_for_all() -> None:
    known = facts(learn_from="all")
    tasks = unroll(known, planned(known, ""))
    assert set(named(tasks, VALUE)) <= set(tasks[named(tasks, UPDATE)[0]].after)


def test_the_weights_are_loaded_after_every_read() -> None:
    tasks = unroll(facts(), planned(facts(), SPLIT))
    load = named(tasks, "iteration/policy.load")[0]
    assert {*named(tasks, ACT), *named(tasks, VALUE)} <= ancestors(tasks, load)


def test_handing_a_task_to_a_process_costs_what_the_settings_say() -> None:
    plain = unroll(facts(), planned(facts(), ""))
    moved = unroll(facts(), planned(facts(), REWIRE))
    update = named(plain, UPDATE)[0]
    assert moved[update].solo_ns == plain[update].solo_ns + 1000


def test_one_body_of_a_node() -> None:
    made = planned(facts(), SPLIT)
    assert Counter(t.name for t in unroll(facts(), made, INTERACT)) == {ACT: 2, STEP: 2}
    body = unroll(facts(), made, "iteration/rollout")
    assert Counter(t.name for t in body) == {RESET: 2, ACT: 6, STEP: 6, VALUE: 1}
    assert unroll(facts(), made, "iteration") == unroll(facts(), made)


def test_another_machine_scales_solo_times_and_holds_memory() -> None:
    solo = Solo(scale={STEP: 0.5}, memory_bytes={ACT: 7})
    tasks = unroll(facts(), planned(facts(), ""), solo=solo)
    assert tasks[named(tasks, STEP)[0]].solo_ns == 10e6
    assert tasks[named(tasks, ACT)[0]].memory_bytes == 7


def test_what_a_body_calls_twice_is_two_tasks() -> None:
    known = facts()
    step = known.timings[STEP]
    twice = replace(known, timings={**known.timings, STEP: replace(step, count=2 * step.count)})
    assert len(named(unroll(twice, planned(twice, SPLIT)), STEP)) == 2 * 2 * 6
    seldom = replace(known, timings={**known.timings, STEP: replace(step, count=2)})
    assert len(named(unroll(seldom, planned(seldom, "")), STEP)) == 6


def test_an_undeclared_node_is_a_fence() -> None:
    known = facts(extra={})
    tasks = unroll(known, planned(known, ""))
    observe = named(tasks, f"{INTERACT}/stats.observe")
    assert ancestors(tasks, observe[2]) == set(range(observe[2]))


def test_iterations_of_a_loop_in_chains_take_turns() -> None:
    known = measured(ppo(epochs=5, steps=3), {STEP: Took(20.0)})
    settings = replace(SETTINGS, transforms=CHAINS, memory=Memory(max_instances=2))
    tasks = unroll(known, plan(known, settings))
    assert Counter(t.name for t in tasks) == Counter(
        t.name for t in unroll(known, planned(known, ""))
    )
    resets, steps = named(tasks, RESET), named(tasks, STEP)
    homes = [tasks[index].workers for index in resets]
    assert homes == [(f"sim@{epoch % 2}/2",) for epoch in range(5)]
    assert [tasks[index].workers for index in steps] == [home for home in homes for _ in range(3)]
    last = [max(s for s in steps if s < index) for index in [*resets[1:], len(tasks)]]
    for epoch in range(1, 5):
        before = ancestors(tasks, resets[epoch])
        assert last[epoch - 1] not in before  # it is on the other instance
        assert epoch < 2 or last[epoch - 2] in before
    assert {tasks[index].workers for index in named(tasks, UPDATE)} == {("inline",)}


def test_after_chains_the_last_instance_is_found() -> None:
    graph = ppo(epochs=3, steps=2)
    path = NodePath("iteration/sim.look")
    look = replace(
        graph.node(RESET),
        path=path,
        name="sim.look",
        parent=NodePath("iteration"),
        declaration=Declaration(reads=("episode",), rows=True),
        accesses=AccessSet((Access("sim.episode", StateAccess.READ, keyed=True),)),
    )
    known = measured(Graph((*graph.nodes, look), graph.edges), {STEP: Took(20.0)})
    settings = replace(SETTINGS, transforms=CHAINS, memory=Memory(max_instances=2))
    tasks = unroll(known, plan(known, settings))
    (found,) = named(tasks, path)
    assert tasks[found].workers == ("sim@0/2",)  # epoch 2 was the last on it
    steps = named(tasks, STEP)
    assert set(tasks[found].after) & set(steps) == {steps[-1]}


def test_an_unknown_transform_is_refused() -> None:
    odd = replace(planned(facts(), ""), transforms=(Transformation("unroll"),))
    with pytest.raises(CannotSimulate, match=r"got unroll\. Measure this plan live"):
        unroll(facts(), odd)
