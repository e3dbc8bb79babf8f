"""Rewrites that look fine and are not: each is refused, and done anyway it computes something else.

Three for each transform. Where a preparation makes the rewrite legal (a private copy, hoisted draws, a copy
of a storage), the prepared rewrite computes the same.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rose_exec.split import merge_trees
from rose_opt.capacity import lane_refusal, memory_refusal
from rose_opt.graph import Graph
from rose_opt.optimize import plan
from rose_opt.placement import place
from rose_opt.plan import Order, OrderStep, Plan, PlanRefused, Refusal, order_refusal, verify
from rose_opt.settings import Memory, PlanSettings
from rose_opt.transforms import (
    ADVISED,
    TRANSFORMS,
    Composition,
    CopyOnBind,
    HoistRNG,
    Interleave,
    Merge,
    Privatise,
    Rewire,
    SpatialSplit,
    Subject,
    TemporalSplit,
    apply_all,
    unlocked,
    unlocking,
)
from rose_trace.legality import AccessSet, partition
from rose_trace.records import Declaration
from tests.reference import Interpreter, linear_extension, order
from tests.rose_opt.programs import (
    ACT,
    INTERACT,
    STEP,
    Author,
    Took,
    batch,
    measured,
    ppo,
    tensor,
)
from tests.rose_opt.transforms.rewrites import of_size, runs_the_same

ROWS = 4
ROLLOUT = "iteration/rollout"
LEARN = Rewire("iteration/learn", ROLLOUT)
SPLIT: Composition = (SpatialSplit(INTERACT, 2), Interleave(INTERACT), Merge(INTERACT))
CHAINS: Composition = (TemporalSplit(ROLLOUT, 2), Interleave(ROLLOUT), Merge(ROLLOUT))


def refused(composition: Composition, subject: Subject) -> str:
    outcome = apply_all(composition, subject)
    assert isinstance(outcome, Refusal)
    assert outcome.unlock
    assert outcome.nodes
    return str(outcome)


def nothing(*_: object) -> None:
    """A check that finds nothing."""


def taken(value: Any) -> Any:
    """Wait for nothing: the value is there."""
    return value.get()


def anyway(composition: Composition, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> Subject:
    """What somebody gets who does not ask."""
    with monkeypatch.context() as patch:
        for kind in (*TRANSFORMS, *ADVISED):
            patch.setattr(kind, "check", nothing)
        for transform in composition:
            subject = transform.apply(subject).subject
    return subject


def goes_wrong(subject: Subject, rewritten: Subject, orders: int = 12) -> bool:
    interpreter = Interpreter(subject.graph, ROWS)
    native = interpreter.run_native()
    return any(
        interpreter.run_shuffled(rewritten.graph, random.Random(seed)) != native
        for seed in range(orders)
    )


def refused_and_wrong(
    composition: Composition, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> str:
    text = refused(composition, subject)
    assert goes_wrong(subject, anyway(composition, subject, monkeypatch))
    return text


def program(**options: object) -> Subject:
    graph = ppo(epochs=3, steps=2, **options)  # pyright: ignore[reportArgumentType]
    return batch(of_size(graph, ROWS), ROWS)


def declaring(subject: Subject, path: str, **declared: object) -> Subject:
    """The program with another declaration of one node."""
    old = subject.graph.node(path)
    words = {k: (v,) if isinstance(v, str) else v for k, v in declared.items()}
    declaration = Declaration(**words)  # pyright: ignore[reportArgumentType]
    accesses = AccessSet(declaration.accesses(old.component, ("episode",)))
    new = replace(old, declaration=declaration, accesses=accesses)
    nodes = tuple(new if node is old else node for node in subject.graph.nodes)
    return replace(subject, graph=replace(subject.graph, nodes=nodes))


# Rewire -----------------------------------------------------------------------------------------


def test_rewire_1_a_shared_module_needs_a_private_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = program(shared_module=True)
    text = refused_and_wrong((LEARN,), subject, monkeypatch)
    assert "read of 'policy.weights' against update of 'policy.weights'" in text
    private = Privatise("policy.weights", ROLLOUT)
    prepared = apply_all((private, LEARN), subject)
    assert isinstance(prepared, Subject)
    runs_the_same(subject, prepared, orders=12)
    assert unlocked((LEARN,), subject) == (private, LEARN)
    assert unlocking((LEARN,), subject) is None  # the program need not do anything


def test_rewire_2_advantages_over_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    # Learning on epoch 1 takes references of epoch 1, and normalises them over every epoch. Somebody who
    # goes by the references alone believes that epoch 1 is enough.
    subject = program(learn_from="all")
    assert "of which one iteration needs" in refused((LEARN,), subject)
    edges = tuple(
        replace(e, all_iterations=False, alignment=0) if e.all_iterations else e
        for e in subject.graph.edges
    )
    believed = replace(subject, graph=replace(subject.graph, edges=edges))
    assert goes_wrong(subject, anyway((LEARN,), believed, monkeypatch))
    assert unlocked((LEARN,), subject) is None
    assert unlocking((LEARN,), subject) is None


def bootstrap() -> Subject:
    """Step, bootstrap value of the last observation, reset for the next epoch: one storage for all."""
    author = Author()
    author.add("it", "iteration")
    author.add("it/sim.step", updates=("episode", "buffer.sim.step"))
    author.add("it/policy.value", reads=("weights", "buffer.sim.step"))
    author.add("it/sim.reset", refreshes="episode", updates="buffer.sim.step")
    author.add("it/policy.act", reads=("weights", "buffer.sim.step"))
    author.flow("it/sim.step", "it/policy.value", "it")
    author.flow("it/sim.reset", "it/policy.act", "it")
    return batch(author.graph(), ROWS)


def test_rewire_3_reset_before_the_last_observation_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = bootstrap()
    early: Composition = (Rewire("it/sim.reset", "it/policy.value"),)
    text = refused_and_wrong(early, subject, monkeypatch)
    assert "read of 'buffer.sim.step' against update of 'buffer.sim.step'" in text
    assert text.endswith("Let sim.step return a copy: it hands the same storage out each time.")
    prepared = apply_all((CopyOnBind("buffer.sim.step"), *early), subject)
    assert isinstance(prepared, Subject)
    runs_the_same(subject, prepared, orders=12)


# Spatial split ----------------------------------------------------------------------------------


def test_spatial_1_one_scene_steps_all_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    text = refused_and_wrong(SPLIT, program(batch_states=()), monkeypatch)
    assert "update of 'sim.episode' against update of 'sim.episode'" in text


def test_spatial_2_slices_of_one_draw_are_not_separate_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = program(extra={"updates": "generator.torch", "rows": True})
    text = refused_and_wrong(SPLIT, subject, monkeypatch)
    assert "rose_trace.rng.RowGenerator" in text
    prepared = apply_all((HoistRNG(INTERACT, "torch"), *SPLIT), subject)
    assert isinstance(prepared, Subject)
    runs_the_same(subject, prepared, orders=12)
    told = unlocking(SPLIT, subject)
    assert told is not None
    assert told.startswith(f"hoist-rng{{loop={INTERACT} generator=torch}} would unlock it")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"step": {"updates": "episode"}}, "without rows=True"),  # batch norm, padding, capacity
        ({"extra": {"updates": "mean", "rows": True}}, "update of 'stats.mean'"),
    ],
    ids=["mixes-rows", "running-statistics"],
)
def test_spatial_3_rows_that_are_not_independent(
    options: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reason in refused_and_wrong(SPLIT, program(**options), monkeypatch)


# Temporal split ---------------------------------------------------------------------------------


def test_temporal_1_start_states_drawn_from_a_carried_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = declaring(
        program(),
        f"{ROLLOUT}/sim.reset",
        refreshes="episode",
        updates="generator.numpy",
        rows=True,
    )
    assert refused(CHAINS, subject) == (
        f"split-temporal({ROLLOUT}): expected a free loop, got dependent: {ROLLOUT}/sim.reset updates "
        f"'generator.numpy', which the iteration before has left as {ROLLOUT}/sim.reset made it. Let sim.reset "
        "draw from rose_trace.rng.RowGenerator, keyed by seed, row and iteration, instead of the carried "
        "'generator.numpy'."
    )
    naive = TemporalSplit(ROLLOUT, 2).rewrite(subject, ("sim.episode",)).subject
    assert goes_wrong(subject, anyway(CHAINS[1:], naive, monkeypatch))
    prepared = apply_all((HoistRNG(ROLLOUT, "numpy"), *CHAINS), subject)
    assert isinstance(prepared, Subject)
    runs_the_same(subject, prepared, orders=12)


def test_temporal_2_one_simulator_holds_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = program()
    shared = TemporalSplit(ROLLOUT, 2).rewrite(subject, ()).subject  # no instance for each chain
    found = Interleave(ROLLOUT).check(shared)
    assert found is not None
    assert "refresh of 'sim.episode' against refresh of 'sim.episode'" in found.reason
    assert goes_wrong(subject, anyway(CHAINS[1:], shared, monkeypatch))
    room = memory_refusal(subject.hierarchy, TemporalSplit(ROLLOUT, 2), Memory(max_instances=1))
    assert room is not None
    assert room.reason == (
        "expected at most 1 whole instance of sim, got 2 (every chain needs its own 'sim.episode')"
    )


def test_temporal_2_a_step_that_resets_by_itself_carries_the_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = program().graph
    nodes = tuple(node for node in graph.nodes if node.name != "sim.reset")
    edges = tuple(e for e in graph.edges if not e.producer.endswith("sim.reset"))
    subject = batch(Graph(nodes, edges), ROWS)
    assert f"dependent: {STEP} updates 'sim.episode'" in refused_and_wrong(
        CHAINS, subject, monkeypatch
    )


@pytest.mark.parametrize(
    ("path", "states", "state"),
    [
        (STEP, ("episode", "solver_cache"), "sim.solver_cache"),
        (f"{ACT}/policy.denoise", ("exploration",), "policy.exploration"),
    ],
    ids=["warm-start", "schedule"],
)
def test_temporal_3_caches_and_schedules_tick_with_every_iteration(
    path: str, states: tuple[str, ...], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = declaring(program(), path, updates=states, rows=True)
    text = refused_and_wrong(CHAINS, subject, monkeypatch)
    assert f"expected a free loop, got dependent: {path} updates '{state}'" in text
    assert f"Declare refreshes='{state.rpartition('.')[2]}'" in text


# Merge ------------------------------------------------------------------------------------------


def test_merge_1_groups_arrive_in_any_order_and_rows_go_home() -> None:
    whole = np.arange(10.0).reshape(5, 2)
    parts = partition(5, 2)
    groups = [whole[p.start : p.stop] for p in parts]
    assert not np.array_equal(np.concatenate(groups[::-1]), whole)  # in order of arrival: B, A
    merged = merge_trees("loop", groups, parts, taken)
    assert np.array_equal(np.asarray(merged), whole)


def test_merge_2_a_mean_of_means_of_ragged_groups_is_another_mean() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, 15.0])
    means = [values[p.start : p.stop].mean() for p in partition(5, 2)]
    assert np.mean(means) != values.mean()
    text = refused(SPLIT, program(result='["leaf","tensor","float32",[]]'))
    assert "a tensor without axes at the top of the result" in text
    assert "or compute it after the loop" in text


@pytest.mark.parametrize(
    ("structure", "problem"),
    [
        ('["leaf","str","",null]', "a plain str at the top"),
        (
            '["list",[],"",[["leaf","tensor","float32",[3]],["leaf","tensor","float32",[5]]]]',
            "a tensor of shape [3] at 0",
        ),
        (tensor(7, 3), "a tensor of shape [7, 3] at the top"),
    ],
    ids=["string", "ragged-list", "shared-tensor"],
)
def test_merge_3_strings_ragged_lists_and_shared_tensors(structure: str, problem: str) -> None:
    assert problem in refused(SPLIT, program(result=structure))


def test_merge_3_none_is_none_and_what_differs_is_refused() -> None:
    ranges = partition(4, 2)
    rows = [np.ones((2, 1)), np.zeros((2, 1))]
    merged = merge_trees("loop", [(r, None) for r in rows], ranges, taken)
    assert merged[1] is None
    with pytest.raises(PlanRefused, match="expected every output to carry one entry per row"):
        merge_trees("loop", ["left", "right"], ranges, taken)
    shared = np.ones((7, 3))  # concatenation would hand out fourteen rows
    with pytest.raises(PlanRefused, match="Return per-row values"):
        merge_trees("loop", [shared, shared.copy()], ranges, taken)


# Interleave -------------------------------------------------------------------------------------


def planned() -> Plan:
    took = {f"{ACT}/policy.encode": Took(10.0), f"{ACT}/policy.denoise": Took(10.0), STEP: Took(20)}
    return plan(measured(ppo(), took), PlanSettings(cores=8.0, max_groups=2))


def followed(orders: tuple[Order, ...], periods: int = 8) -> bool:
    """Whether workers that keep to their orders go on: what is cut off at the end may miss a few periods."""
    done: set[tuple[str, int, int]] = set()
    ahead = dict.fromkeys((o.worker for o in orders), 0)
    moved = True
    while moved:
        moved = False
        for item in orders:
            turn = ahead[item.worker]
            if turn == periods * len(item.cycle):
                continue
            step = item.cycle[turn % len(item.cycle)]
            index = turn // len(item.cycle) - step.distance
            before = [(ACT, step.group, index)] if step.path == STEP else []
            before += [(STEP, step.group, index - 1)] if step.path == ACT else []
            if all(i < 0 or (path, group, i) in done for path, group, i in before):
                done.add((step.path, step.group, index))
                ahead[item.worker] += 1
                moved = True
    return all(ahead[o.worker] >= (periods - 3) * len(o.cycle) for o in orders)


def lanes(policy: tuple[int, int], simulator: tuple[int, int]) -> tuple[Order, ...]:
    return (
        Order("policy", tuple(OrderStep(ACT, group) for group in policy)),
        Order("simulator", tuple(OrderStep(STEP, group) for group in simulator)),
    )


def test_interleave_1_a_cycle_of_hold_and_wait() -> None:
    hierarchy = batch(ppo()).hierarchy
    # The policy serves group 1 first, the simulator steps group 0 first: each waits for the other.
    stuck = lanes((1, 0), (0, 1))
    # ... which is a cycle if group 0 is also an iteration ahead of what it may be.
    held = (
        Order("policy", (OrderStep(ACT, 0), OrderStep(ACT, 1, distance=1))),
        Order("simulator", (OrderStep(STEP, 1), OrderStep(STEP, 0))),
    )
    for orders in (stuck, held, lanes((0, 1), (0, 1))):
        found = order_refusal(hierarchy, {INTERACT: 2}, orders)
        assert (found is None) == followed(orders), orders
    found = order_refusal(hierarchy, {INTERACT: 2}, held)
    assert found is not None
    assert found.reason.startswith("expected orders in which every wait ends, got a cycle")
    made = planned()
    assert verify(made) is None
    with pytest.raises(PlanRefused, match="every wait ends"):
        verify(replace(made, orders=held))


def test_interleave_1_random_orders_are_refused_exactly_where_they_get_stuck() -> None:
    hierarchy = batch(ppo()).hierarchy
    seen: set[bool] = set()
    places = list(itertools.permutations((0, 1)))
    distances = list(itertools.product((0, 1), repeat=2))
    for first, second, a, b in itertools.product(places, places, distances, distances):
        orders = (
            Order("policy", tuple(OrderStep(ACT, g, a[g]) for g in first)),
            Order("simulator", tuple(OrderStep(STEP, g, b[g]) for g in second)),
        )
        works = followed(orders)
        assert (order_refusal(hierarchy, {INTERACT: 2}, orders) is None) == works, orders
        seen.add(works)
    assert seen == {True, False}


def test_interleave_2_a_shared_generator_permutes_draws_and_a_shared_lane_gains_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = declaring(
        program(), f"{ROLLOUT}/policy.value", reads="weights", updates="generator.torch", rows=True
    )
    chains = TemporalSplit(ROLLOUT, 2).rewrite(subject, ("sim.episode",)).subject
    found = Interleave(ROLLOUT).check(chains)
    assert found is not None
    assert "update of 'generator.torch' against update of 'generator.torch'" in found.reason
    assert goes_wrong(subject, anyway(CHAINS[1:], chains, monkeypatch))
    facts = measured(ppo(), {})
    workers = place(Subject.of(facts).hierarchy, {INTERACT: 2}, ())
    lane = lane_refusal(facts, workers, SPLIT[0].text, f"{ACT}/policy.encode", ACT)
    assert lane is not None
    assert lane.reason == "expected lanes of their own, got both on worker inline"


def test_interleave_3_ranks_must_not_choose_their_own_order_around_a_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = program(extra={"updates": "comm.data_parallel", "rows": True})
    text = refused_and_wrong(SPLIT, subject, monkeypatch)
    assert "update of 'comm.data_parallel' against update of 'comm.data_parallel'" in text
    tasks, before = order(anyway(SPLIT, subject, monkeypatch).graph)

    def collectives(rank: int) -> list[str]:
        run = linear_extension(tasks, before, random.Random(rank))
        return [path for path, _ in run if path.endswith("stats.observe")]

    assert collectives(0) != collectives(1)  # left to themselves: NCCL would hang
    assert planned().to_json() == planned().to_json()  # the plan gives all ranks one order
