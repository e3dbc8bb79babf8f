"""Private copies in plans: where they are found, what they cost, and when they are not worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rose_opt.copying import LOAD_NS_PER_BYTE, SAVE_NS_PER_BYTE, UNKNOWN_BYTES, copy_cost
from rose_opt.explain import explain
from rose_opt.facts import Facts
from rose_opt.optimize import plan
from rose_opt.placement import place
from rose_opt.plan import Plan, PlanRefused, Preparations, PrivateCopy, Transformation, verify
from rose_opt.search import candidates, describe
from rose_opt.settings import Memory, PlanSettings
from rose_opt.simulator.execution import SimulatedExecution
from rose_opt.simulator.program import unroll
from rose_opt.transforms import Subject
from tests.conftest import Golden
from tests.rose_opt.programs import ACT, STEP, UPDATE, Took, batch, measured, ppo

ROLLOUT = "iteration/rollout"
PRIVATE = f"privatise{{state=policy.weights readers={ROLLOUT}}}"
BOTH = f"{PRIVATE},rewire{{node=iteration/learn beside={ROLLOUT}}}"
FOUR = PlanSettings(cores=4.0, max_groups=2)
COPY = PrivateCopy("policy", ROLLOUT, ("policy.weights",))


def facts(learning_ms: float = 200.0, **memory: int) -> Facts:
    """Rollout and learning on one set of weights, as long as each other."""
    took = {
        f"{ACT}/policy.encode": Took(5.0),
        f"{ACT}/policy.denoise": Took(5.0),
        STEP: Took(15.0),
        UPDATE: Took(learning_ms),
    }
    found = measured(ppo(epochs=4, steps=8, shared_module=True, shardable=()), took)
    sizes = {f"host_bytes of {name}": size for name, size in memory.items()}
    return replace(found, memory=sizes)


def planned(found: Facts, settings: PlanSettings = FOUR) -> Plan:
    made = plan(found, settings)
    verify(made)
    return made


def test_learning_beside_rollout_on_a_copy_is_found_and_told(golden: Golden) -> None:
    made = planned(facts(policy=40_000_000))
    assert ",".join(map(str, made.transforms)) == BOTH
    assert made.equivalence == "exact"
    assert made.predicted.iteration_ns < 0.8 * made.predicted.native_ns
    assert not any(refusal.transform == "rewire" for refusal in made.refusals)
    golden.check("explain/private.txt", explain(made) + "\n")


def test_the_simulator_runs_the_copy_and_agrees() -> None:
    found = facts(policy=40_000_000)
    made = planned(found)
    seen = SimulatedExecution(found).iteration(made).duration_ns
    assert seen == pytest.approx(made.predicted.iteration_ns, rel=0.05)
    tasks = unroll(found, made)
    cost = copy_cost(found, Memory(), FOUR.dispatch_ns, COPY)
    (save,) = [task for task in tasks if task.name == "policy~rollout#save"]
    (load,) = [task for task in tasks if task.name == "policy~rollout#load"]
    assert (save.workers, load.workers) == (("inline",), ("policy~rollout",))
    assert (save.solo_ns, load.solo_ns) == (cost.save_ns, cost.load_ns)
    assert load.after == (tasks.index(save),)
    first = next(task for task in tasks if task.name == f"{ACT}/policy.encode" or task.name == ACT)
    update = next(task for task in tasks if task.name == UPDATE)
    assert tasks.index(load) in first.after
    assert tasks.index(save) in update.after


def test_a_copy_costs_by_its_size() -> None:
    small, large = (copy_cost(facts(policy=n), Memory(), 0, COPY) for n in (0, 10**9))
    assert large.save_ns - small.save_ns == round(10**9 * SAVE_NS_PER_BYTE)
    assert large.load_ns - small.load_ns == round(10**9 * LOAD_NS_PER_BYTE)
    told = copy_cost(facts(policy=5), Memory(component_host_bytes={"policy": 7}), 0, COPY)
    assert (told.total_bytes, told.known) == (7, True)
    unknown = copy_cost(facts(), Memory(), 0, COPY)
    assert (unknown.total_bytes, unknown.known) == (UNKNOWN_BYTES, False)


def test_a_copy_that_takes_longer_than_it_gains_is_no_plan() -> None:
    made = planned(facts(policy=2 * 10**9))
    assert made.kept_native
    assert [item.transforms for item in made.alternatives][1:] == [tuple(BOTH.split(","))]


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        (Memory(max_instances=1), "expected at most 1 whole instance of policy, got 2"),
        (
            Memory(host_bytes=2 * 10**8, host_peak_bytes=10**8 + 5 * 10**7),
            "expected at most 180000000 bytes of host memory, got 190000000",
        ),
        (
            Memory(
                gpu_bytes=10**8, gpu_peak_bytes=8 * 10**7, component_gpu_bytes={"policy": 2 * 10**7}
            ),
            "expected at most 90000000 bytes of GPU memory, got 100000000",
        ),
    ],
    ids=["instances", "host", "gpu"],
)
def test_a_copy_that_has_no_room_is_refused(memory: Memory, reason: str) -> None:
    made = planned(facts(policy=40_000_000), replace(FOUR, memory=memory))
    assert made.kept_native
    assert any(reason in refusal.reason for refusal in made.refusals)
    with pytest.raises(PlanRefused, match="expected at most"):
        plan(facts(policy=40_000_000), replace(FOUR, memory=memory, transforms=BOTH))


def test_a_copy_is_tried_only_where_it_unlocks_something() -> None:
    shared = candidates(facts(policy=1), FOUR)
    assert BOTH in {describe(item.composition) for item in shared.found}
    apart = measured(ppo(epochs=4, steps=8), {UPDATE: Took(200.0)})
    found = candidates(apart, FOUR)
    assert found.found
    assert not any("privatise" in describe(item.composition) for item in found.found)


def test_a_copy_goes_with_a_split_by_rows() -> None:
    graph = ppo(epochs=4, steps=8, shared_module=True)
    took = {f"{ACT}/policy.encode": Took(20.0), STEP: Took(40.0), UPDATE: Took(300.0)}
    found = replace(measured(graph, took), memory={"host_bytes of policy": 1000})
    made = planned(found)
    names = [transform.name for transform in made.transforms]
    assert names == ["privatise", "split-spatial", "interleave", "merge", "rewire"]
    engines = {order.worker for order in made.orders}
    assert engines == {"policy~rollout", "sim[0/2]", "sim[1/2]"}


def test_where_components_live() -> None:
    hierarchy = batch(ppo(shared_module=True)).hierarchy
    copies = Preparations.of(tuple(Transformation.parse_all(PRIVATE)))
    rewires = (("iteration/learn", ROLLOUT),)
    found = place(hierarchy, {}, rewires, {}, copies)
    assert found.processes == ("sim",)
    assert found.worker("policy", path=f"{ACT}/policy.encode") == "policy~rollout"
    assert found.worker("policy", path="iteration/policy.load") == "inline"
    assert found.worker("trainer") == "inline"
    apart = place(batch(ppo()).hierarchy, {}, rewires)
    assert apart.processes == ("trainer",)
    sim = Preparations((("sim.episode", "iteration/rollout/interact"),))
    with pytest.raises(ValueError, match="expected sim in one piece, got it split"):
        place(hierarchy, {"iteration/rollout/interact": 2}, (), {}, sim)


def test_what_shares_its_state_is_not_moved_alone() -> None:
    """Without a copy, too: in a process of its own the trainer would hold weights of its own."""
    hierarchy = Subject.of(facts()).hierarchy
    assert "trainer" not in place(hierarchy, {}, (("iteration/learn", ROLLOUT),)).processes
