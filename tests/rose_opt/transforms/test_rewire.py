from __future__ import annotations

from dataclasses import replace

from rose_opt.transforms import Rewire, apply_all, parse_composition
from tests.conftest import Golden
from tests.rose_opt.programs import INTERACT, UPDATE, batch, ppo
from tests.rose_opt.transforms.rewrites import check

LEARN = "rewire{node=iteration/learn beside=iteration/rollout}"


def test_learning_runs_beside_the_rollout_of_later_epochs(golden: Golden) -> None:
    check(golden, "rewire/learn-beside-rollout", batch(ppo()), LEARN)


def test_learning_beside_a_split_rollout(golden: Golden) -> None:
    both = (
        f"split-spatial{{loop={INTERACT} groups=2}},interleave{{loop={INTERACT}}},"
        f"merge{{loop={INTERACT}}},{LEARN}"
    )
    check(golden, "rewire/learn-beside-split-rollout", batch(ppo()), both)


def test_one_shared_module_is_refused(golden: Golden) -> None:
    # Rollout reads the weights that learning updates: later epochs would act with newer ones.
    outcome = check(golden, "rewire/shared-module", batch(ppo(shared_module=True)), LEARN)
    assert str(outcome) == (
        "rewire(iteration/learn beside iteration/rollout): expected no conflicting access, got read of "
        f"'policy.weights' against update of 'policy.weights' ({INTERACT}/policy.act/policy.encode before "
        f"{UPDATE}). Keep the native order, or let trainer.update work on a state of its own that a later "
        "node copies over."
    )


def test_advantages_over_all_epochs_are_refused(golden: Golden) -> None:
    outcome = check(golden, "rewire/all-epochs", batch(ppo(learn_from="all")), LEARN)
    assert str(outcome) == (
        "rewire(iteration/learn beside iteration/rollout): expected each iteration of iteration/learn to "
        f"need finished iterations of iteration/rollout, got {UPDATE}, of which one iteration needs "
        f"{INTERACT}/policy.act/policy.denoise of every iteration. Let one iteration of iteration/learn "
        "use the values of one iteration of iteration/rollout only (e.g. normalise and shuffle within an "
        "epoch) if the algorithm allows it; Rose never changes what is computed."
    )


def test_a_node_in_between_that_needs_every_epoch_is_refused() -> None:
    # rollout -> whiten(all epochs) -> learn: learning would wait for the whole rollout anyway.
    subject = batch(ppo())
    graph = subject.graph
    whiten = replace(
        graph.node("iteration/trainer.weights"), path="iteration/whiten", name="whiten"
    )
    nodes = list(graph.nodes)
    nodes.insert(nodes.index(graph.node("iteration/learn")), whiten)  # pyright: ignore
    edge = replace(graph.edges[-1], producer=INTERACT + "/sim.step", consumer="iteration/whiten")
    graph = replace(graph, nodes=tuple(nodes), edges=(*graph.edges, edge))
    found = Rewire("iteration/learn", "iteration/rollout").check(batch(graph))
    assert found is not None
    assert "got iteration/whiten, which needs what" in found.reason


def test_loading_weights_beside_the_rollout_is_refused() -> None:
    found = Rewire("iteration/policy.load", "iteration/rollout").check(batch(ppo()))
    assert found is not None
    assert "read of 'policy.weights' against refresh of 'policy.weights'" in found.reason


def test_an_undeclared_leaf_is_never_moved() -> None:
    subject = batch(ppo(step={"rows": True}))
    found = Rewire("iteration/learn", "iteration/rollout").check(subject)
    assert found is not None
    assert "an undeclared access" in found.reason
    assert found.unlock == (
        "Declare what sim.step touches: reads=, updates=, refreshes= or pure=True."
    )


def test_only_siblings_in_program_order() -> None:
    for node, beside in (
        ("iteration/rollout", "iteration/learn"),
        (UPDATE, "iteration/rollout"),
        ("iteration/learn", "iteration/learn"),
    ):
        found = Rewire(node, beside).check(batch(ppo()))
        assert found is not None
        assert found.reason.startswith("expected two children of one parent in program order")


def test_a_loop_that_cannot_be_rewritten_is_no_branch() -> None:
    graph = ppo()
    nodes = tuple(
        replace(n, rewritable=False) if n.path == "iteration/rollout" else n for n in graph.nodes
    )
    found = Rewire("iteration/learn", "iteration/rollout").check(batch(replace(graph, nodes=nodes)))
    assert found is not None
    assert found.reason == (
        "expected a branch that may be moved, got rose.iterations iteration/rollout"
    )


def test_candidates_are_later_loops_beside_the_loops_around_the_target() -> None:
    found = list(Rewire.candidates(batch(ppo()), f"{INTERACT}/sim.step", 2))
    assert found == [Rewire("iteration/learn", "iteration/rollout")]


def test_an_unknown_node_is_named() -> None:
    outcome = apply_all(
        parse_composition("rewire{node=iteration/lern beside=iteration/rollout}"), batch(ppo())
    )
    assert "expected a node of the recorded graph, got 'iteration/lern'" in str(outcome)
