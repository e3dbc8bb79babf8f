from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_opt.plan import (
    Plan,
    PlanRefused,
    Refusal,
    live_out_instance,
    renamed_states,
    replicated_components,
    temporal_refusal,
    verify,
)
from rose_opt.transforms import IllegalTransform, Subject, TemporalSplit, apply_all
from rose_trace.records import NodePath
from tests.conftest import Golden
from tests.properties import examples
from tests.reference import Interpreter
from tests.rose_opt.programs import ACT, INTERACT, STEP, Author, batch, ppo
from tests.rose_opt.test_search import CHAINS, facts
from tests.rose_opt.transforms.rewrites import check, runs_the_same
from tests.rose_opt.transforms.test_counterexamples import declaring

ROLLOUT = "iteration/rollout"
SPLIT = f"split-temporal{{loop={ROLLOUT} groups=2}}"
NOTHING = '["none",[],"",[]]'


def refusal(subject: Subject, loop: str = ROLLOUT, groups: int = 2) -> Refusal:
    found = TemporalSplit(loop, groups).check(subject)
    assert found is not None
    assert found.unlock
    return found


def changed(path: str, **fields: object) -> Subject:
    graph = ppo()
    nodes = tuple(replace(n, **fields) if n.path == path else n for n in graph.nodes)  # pyright: ignore
    return batch(replace(graph, nodes=nodes))


def test_a_free_loop_splits_into_chains(golden: Golden) -> None:
    check(golden, "split/chains", batch(ppo()), SPLIT)


def test_a_dependent_loop_is_refused(golden: Golden) -> None:
    outcome = check(golden, "split/dependent", batch(ppo()), SPLIT.replace(ROLLOUT, INTERACT))
    assert str(outcome) == (
        f"split-temporal({INTERACT}): expected a free loop, got one whose body returns a carry that is not None. "
        "Return None as carry if the next iteration does not need it."
    )


@pytest.mark.parametrize(("epochs", "groups", "last"), [(5, 2, 0), (6, 2, 1), (5, 3, 1), (4, 4, 3)])
def test_live_ranges_take_turns_and_the_last_one_is_live_out(
    epochs: int, groups: int, last: int
) -> None:
    subject = batch(ppo(epochs=epochs, steps=2), 4)
    graph = subject.graph
    look = replace(
        graph.node(f"{ROLLOUT}/policy.value"),
        path=NodePath("iteration/sim.look"),
        name="sim.look",
        parent=NodePath("iteration"),
        component="sim",
        declaration=graph.node(STEP).declaration,
        accesses=graph.node(STEP).accesses,
    )
    subject = batch(replace(graph, nodes=(*graph.nodes, look)), 4)
    rewritten = TemporalSplit(ROLLOUT, groups).apply(subject)
    counts = [rewritten.graph.node(f"{ROLLOUT}#{g}").count for g in range(groups)]
    assert sum(filter(None, counts)) == epochs
    assert live_out_instance(epochs, groups) == last
    (access,) = rewritten.graph.node("iteration/sim.look").accesses.accesses
    assert access.state == f"sim.episode@{last}/{groups}"
    for group in range(groups):
        node = rewritten.graph.node(f"{ROLLOUT}#{group}/interact/sim.step")
        assert [a.state for a in node.accesses.accesses] == [f"sim.episode@{group}/{groups}"]
        assert rewritten.graph.node(f"{ROLLOUT}#{group}").turns == (group, groups)
    chains = f"{SPLIT.replace('groups=2', f'groups={groups}')},interleave{{loop={ROLLOUT}}},merge{{loop={ROLLOUT}}}"
    from rose_opt.transforms import parse_composition

    whole = apply_all(parse_composition(chains), subject)
    assert isinstance(whole, Subject)
    runs_the_same(subject, whole, orders=8)


def test_chains_that_bind_live_ranges_to_other_instances_are_seen() -> None:
    """The interpreter is no rubber stamp: the wrong live-out instance is another final state."""
    subject = batch(ppo(epochs=3, steps=2), 4)
    rewritten = TemporalSplit(ROLLOUT, 2).apply(subject).subject
    swapped = {f"sim.episode@{g}/2": f"sim.episode@{1 - g}/2" for g in (0, 1)}
    nodes = tuple(
        replace(
            n,
            accesses=replace(
                n.accesses,
                accesses=tuple(
                    replace(a, state=swapped.get(a.state, a.state)) for a in n.accesses.accesses
                ),
            ),
        )
        for n in rewritten.graph.nodes
    )
    wrong = replace(rewritten.graph, nodes=nodes)
    interpreter = Interpreter(subject.graph, 4)
    assert interpreter.run_shuffled(wrong, random.Random(0)) != interpreter.run_native()


def test_states_and_components_of_a_free_loop() -> None:
    hierarchy = batch(ppo()).hierarchy
    assert renamed_states(hierarchy, ROLLOUT) == ("sim.episode",)
    assert replicated_components(hierarchy, ROLLOUT) == ("sim",)


def test_a_loop_that_writes_nothing_needs_no_instances() -> None:
    author = Author()
    author.add("it", "iteration")
    author.add("it/look", "loop", count=4, structure=NOTHING)
    author.add("it/look/critic.score", reads="weights", rows=True)
    subject = batch(author.graph(), 4)
    assert TemporalSplit("it/look", 4).check(subject) is None
    assert replicated_components(subject.hierarchy, "it/look") == ()
    assert refusal(subject, "it/look", 5).reason == "expected 2 to 4 groups for 4 iterations, got 5"


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        (changed(ROLLOUT, rewritable=False), "got rose.iterations"),
        (
            changed(ROLLOUT, count=None),
            "expected a fixed number of iterations, got one that varies",
        ),
        (changed(ROLLOUT, structure=None), "a carry that is not None"),
        (batch(ppo(step={"rows": True})), f"got {STEP} without a declaration"),
        (changed(f"{ROLLOUT}/sim.reset", calls_per_parent=None), "which is not always called"),
        (changed(STEP, calls_per_parent=0), "which is not always called"),
        (changed(INTERACT, count=None), "which is not always called"),
        (
            batch(ppo(extra={"reads": "sim.episode", "rows": True})),
            "expected only nodes of sim to touch 'sim.episode', got iteration/rollout/interact/stats.observe",
        ),
        (
            declaring(batch(ppo()), STEP, updates="episode", reads="config", rows=True),
            "",
        ),
        (
            declaring(
                declaring(batch(ppo()), STEP, updates="episode", reads="config", rows=True),
                "iteration/policy.load",
                refreshes="weights",
                updates="sim.config",
            ),
            "to touch only what every iteration refreshes, got read of 'sim.config' by "
            f"{STEP}, written by iteration/policy.load",
        ),
        (
            declaring(
                batch(ppo()), f"{ROLLOUT}/policy.value", reads="weights", refreshes="log.last"
            ),
            "got one of 'log.last', which belongs to no component",
        ),
    ],
    ids=[
        "fixed",
        "varies",
        "carry",
        "undeclared",
        "reset-not-always",
        "step-never",
        "inner-varies",
        "foreign-reader",
        "constant",
        "configured",
        "global",
    ],
)
def test_what_stands_against_chains(subject: Subject, reason: str) -> None:
    found = TemporalSplit(ROLLOUT, 2).check(subject)
    if not reason:
        assert found is None
        return
    assert found is not None
    assert reason in found.reason
    assert found.unlock
    if "carry" not in reason and "fixed" not in reason:
        assert found.nodes or "component" in found.reason
    with pytest.raises(IllegalTransform) as caught:
        TemporalSplit(ROLLOUT, 2).apply(subject)
    assert caught.value.refusal == found


def test_values_carried_from_iteration_to_iteration_are_refused() -> None:
    graph = ppo()
    edge = replace(
        graph.edges[0],
        producer=NodePath(f"{ROLLOUT}/policy.value"),
        consumer=NodePath(f"{ACT}/policy.encode"),
        loop=NodePath(ROLLOUT),
        distance=1,
    )
    found = refusal(batch(replace(graph, edges=(*graph.edges, edge))))
    assert "which takes what iteration/rollout/policy.value made 1 iteration before" in found.reason


@pytest.mark.parametrize(
    "composition",
    [
        f"split-spatial{{loop={INTERACT} groups=2}},{SPLIT}",
        f"{SPLIT},split-spatial{{loop={INTERACT} groups=2}}",
        f"rewire{{node=iteration/learn beside={ROLLOUT}}},{SPLIT}",
        f"{SPLIT},rewire{{node=iteration/learn beside={ROLLOUT}}}",
    ],
)
def test_chains_go_with_no_other_change_of_the_loop(composition: str) -> None:
    from rose_opt.transforms import parse_composition

    assert isinstance(apply_all(parse_composition(composition), batch(ppo())), Refusal)


def test_candidates_are_the_loops_around_the_target_nearest_first() -> None:
    found = list(TemporalSplit.candidates(batch(ppo()), STEP, 3))
    assert found == [TemporalSplit(p, k) for p in (INTERACT, ROLLOUT) for k in (2, 3)]


# Plans ------------------------------------------------------------------------------------------


def planned() -> Plan:
    from rose_opt.optimize import plan
    from rose_opt.settings import PlanSettings

    return plan(facts(), PlanSettings(cores=4.0, transforms=CHAINS))


def test_a_plan_of_chains_reads_back_and_is_legal() -> None:
    made = planned()
    assert Plan.from_json(made.to_json()) == made
    verify(made)


def test_an_edited_plan_is_refused() -> None:
    made = planned()
    components = tuple(replace(c, replicas=1) for c in made.components)
    with pytest.raises(PlanRefused, match="expected 2 whole instances of sim, got 1"):
        verify(replace(made, components=components))
    with pytest.raises(PlanRefused, match="expected 2 replicas of sim in the workers, got 1"):
        verify(replace(made, workers=made.workers[:-1]))
    twice = (*made.transforms, *(replace_loop(t, INTERACT) for t in made.transforms[:1]))
    with pytest.raises(PlanRefused, match="split-temporal"):
        verify(replace(made, transforms=twice))


def replace_loop(transform: object, loop: str) -> object:
    arguments = tuple((k, loop if k == "loop" else v) for k, v in transform.arguments)  # pyright: ignore
    return replace(transform, arguments=arguments)  # pyright: ignore


def test_a_plan_must_not_ask_for_what_nobody_performs() -> None:
    from rose_opt.plan import Transformation

    hoist = Transformation.parse(f"hoist-rng{{loop={ROLLOUT} generator=torch}}")
    with pytest.raises(PlanRefused, match="a trace does not tell what is drawn"):
        verify(replace(planned(), transforms=(hoist,)))


@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 2**32))
@examples(30, 15)
def test_any_number_of_chains_computes_the_same(epochs: int, groups: int, seed: int) -> None:
    subject = batch(ppo(epochs=epochs, steps=2), 4)
    outcome = temporal_refusal(subject.hierarchy, ROLLOUT, groups)
    assert (outcome is None) == (groups <= epochs)
    if outcome is None:
        from rose_opt.transforms import Interleave

        split = TemporalSplit(ROLLOUT, groups).apply(subject).subject
        whole = Interleave(ROLLOUT).apply(split)
        interpreter = Interpreter(subject.graph, 4)
        found = interpreter.run_shuffled(whole.graph, random.Random(seed))
        assert found == interpreter.run_native()
