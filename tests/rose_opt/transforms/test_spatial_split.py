from __future__ import annotations

import pytest

from rose_opt.plan import Refusal
from rose_opt.transforms import IllegalTransform, SpatialSplit
from tests.conftest import Golden
from tests.rose_opt.programs import INTERACT, ROWS, batch, ppo, tensor
from tests.rose_opt.transforms.rewrites import check

SPLIT = f"split-spatial{{loop={INTERACT} groups=2}}"


def refusal(**program: object) -> Refusal:
    subject = batch(ppo(**program))  # pyright: ignore[reportArgumentType]
    found = SpatialSplit(INTERACT, 2).check(subject)
    assert found is not None
    return found


def test_an_interaction_loop_splits_into_groups_of_rows(golden: Golden) -> None:
    check(golden, "split/interaction-loop", batch(ppo()), SPLIT)


def test_three_groups_of_uneven_length_cover_all_rows_once() -> None:
    rewritten = SpatialSplit(INTERACT, 3).apply(batch(ppo(), 64))
    parts = [rewritten.graph.node(f"{INTERACT}#{g}").accesses.rows for g in range(3)]
    assert [(p.start, p.stop) for p in parts if p] == [(0, 21), (21, 42), (42, 64)]
    assert rewritten.forward[f"{INTERACT}/sim.step"] == tuple(
        f"{INTERACT}#{g}/sim.step" for g in range(3)
    )


def test_one_simulator_that_steps_all_rows_is_refused(golden: Golden) -> None:
    # SEMANTICS: one scene steps all environments, so step(A) advances B.
    program = ppo(batch_states=())
    outcome = check(golden, "split/one-scene", batch(program), SPLIT)
    assert str(outcome) == (
        f"split-spatial({INTERACT}): expected groups that touch nothing in common, got update of "
        f"'sim.episode' against update of 'sim.episode' ({INTERACT}/sim.step of group 0 against "
        f"{INTERACT}/sim.step of group 1). Declare batch_states=['episode'] on sim if one row of "
        "'sim.episode' belongs to one row of the batch; a statistic over the whole batch belongs after "
        "the loop."
    )


def test_a_simulator_without_shards_is_refused(golden: Golden) -> None:
    outcome = check(golden, "split/no-shards", batch(ppo(shardable=())), SPLIT)
    assert str(outcome) == (
        f"split-spatial({INTERACT}): expected components that can be built as shards, got sim whose batch "
        "states sim.episode are touched inside the loop. Give sim a classmethod shard(cls, index, count, "
        "*args) that returns the constructor arguments of one shard."
    )


def test_an_undeclared_leaf_is_refused(golden: Golden) -> None:
    outcome = check(golden, "split/undeclared", batch(ppo(step={"rows": True})), SPLIT)
    assert str(outcome) == (
        f"split-spatial({INTERACT}): expected every leaf to declare its states, got {INTERACT}/sim.step "
        "without a declaration. Declare what sim.step touches: reads=, updates=, refreshes= or pure=True."
    )


def test_a_node_that_mixes_rows_is_refused(golden: Golden) -> None:
    outcome = check(golden, "split/mixes-rows", batch(ppo(step={"updates": "episode"})), SPLIT)
    assert str(outcome) == (
        f"split-spatial({INTERACT}): expected every leaf to work row by row, got {INTERACT}/sim.step "
        "without rows=True. Declare @rose.node(rows=True) on sim.step if its row i depends on row i alone."
    )


def test_running_statistics_inside_the_loop_are_refused(golden: Golden) -> None:
    program = ppo(extra={"updates": "mean", "rows": True})
    outcome = check(golden, "split/running-statistics", batch(program), SPLIT)
    assert "update of 'stats.mean' against update of 'stats.mean'" in str(outcome)
    assert str(outcome).endswith("a statistic over the whole batch belongs after the loop.")


def test_draws_from_a_shared_generator_are_refused(golden: Golden) -> None:
    # SEMANTICS: slices of one draw differ from separate draws, and interleaving permutes them.
    program = ppo(extra={"updates": "generator.torch", "rows": True})
    outcome = check(golden, "split/generator", batch(program), SPLIT)
    assert str(outcome) == (
        f"split-spatial({INTERACT}): expected groups that touch nothing in common, got update of "
        f"'generator.torch' against update of 'generator.torch' ({INTERACT}/stats.observe of group 0 "
        f"against {INTERACT}/stats.observe of group 1). Let stats.observe draw from "
        "rose_trace.rng.RowGenerator, keyed by seed, row and step, instead of the shared "
        "'generator.torch'."
    )


def test_a_reader_of_the_whole_batch_state_is_refused() -> None:
    # The group's own step is keyed, but another node looks at everybody's episode.
    found = refusal(extra={"reads": "sim.episode", "rows": True})
    assert "update of 'sim.episode' against read of 'sim.episode'" in found.reason


def test_a_node_elsewhere_that_uses_the_whole_simulator_is_refused() -> None:
    subject = batch(ppo(step={"updates": "episode", "rows": True}))
    nodes = list(subject.graph.nodes)
    reset = next(n for n in nodes if n.name == "sim.reset")
    from dataclasses import replace

    nodes[nodes.index(reset)] = replace(reset, declaration=replace(reset.declaration, rows=False))
    graph = replace(subject.graph, nodes=tuple(nodes))
    found = SpatialSplit(INTERACT, 2).check(batch(graph))
    assert found is not None
    assert found.reason == (
        "expected every node of sim, which is built as shards, to work row by row, got "
        "iteration/rollout/sim.reset without rows=True"
    )


@pytest.mark.parametrize(
    ("rows", "groups", "reason"),
    [
        (3, 4, "expected 2 to 3 groups for 3 rows, got 4"),
        (64, 1, "expected 2 to 64 groups for 64 rows, got 1"),
        (None, 2, "expected a batch whose rows the trace shows, got no tensor with rows"),
    ],
)
def test_the_number_of_groups_fits_the_batch(rows: int | None, groups: int, reason: str) -> None:
    found = SpatialSplit(INTERACT, groups).check(batch(ppo(), rows))
    assert found is not None
    assert found.reason == reason


def test_a_loop_around_a_loop_names_the_inner_one() -> None:
    found = SpatialSplit("iteration/rollout", 2).check(batch(ppo()))
    assert found is not None
    assert found.unlock == f"Split {INTERACT} instead."


def test_applying_a_refused_split_raises_the_refusal() -> None:
    split = SpatialSplit(INTERACT, 2)
    subject = batch(ppo(shardable=()))
    with pytest.raises(IllegalTransform) as caught:
        split.apply(subject)
    assert caught.value.refusal == split.check(subject)


def test_candidates_are_the_innermost_loop_of_the_target() -> None:
    subject = batch(ppo())
    found = list(SpatialSplit.candidates(subject, f"{INTERACT}/sim.step", 3))
    assert found == [SpatialSplit(INTERACT, 2), SpatialSplit(INTERACT, 3)]
    assert list(SpatialSplit.candidates(subject, "iteration/policy.load", 3)) == []


def test_text_form_reads_back() -> None:
    split = SpatialSplit(INTERACT, 2)
    assert SpatialSplit.parse(split.text) == split
    assert str(split.text) == SPLIT
    assert ROWS == 64
    assert tensor(2)
