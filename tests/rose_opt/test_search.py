"""Candidates in the order of the paper, what sorts them, and what has no room."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from rose_opt.capacity import activity_refusal, lane_refusal, memory_refusal
from rose_opt.facts import Activity, Facts, LowActivityWindow
from rose_opt.feasible import Candidate, Enumeration, feasible, free_loops
from rose_opt.graph import Graph
from rose_opt.optimize import plan
from rose_opt.placement import place
from rose_opt.search import candidates, describe, targets
from rose_opt.settings import Memory, PlanSettings
from rose_opt.transforms import SpatialSplit, Subject, TemporalSplit, parse_composition
from rose_opt.transforms.estimates import estimated_ns, fixed_share
from rose_trace.records import NodePath
from tests.rose_opt.programs import (
    ACT,
    INTERACT,
    STEP,
    UPDATE,
    Author,
    Took,
    batch,
    measured,
    ppo,
    probe,
)

ROLLOUT = "iteration/rollout"
LEARN = "iteration/learn"
NOTHING = '["none",[],"",[]]'
CHAINS = f"split-temporal{{loop={ROLLOUT} groups=2}},interleave{{loop={ROLLOUT}}},merge{{loop={ROLLOUT}}}"
ROWS = f"split-spatial{{loop={INTERACT} groups=2}},interleave{{loop={INTERACT}}},merge{{loop={INTERACT}}}"


def hierarchy() -> Graph:
    """Two free loops inside each other, movable loops and single nodes beside the inner one."""
    author = Author({"sim": ("episode",)}, ("sim",))
    author.add("it", "iteration")
    author.add("it/o", "loop", count=4, structure=NOTHING)
    author.add("it/o/log.before", pure=True)
    author.add("it/o/p", "loop", count=4, structure=NOTHING)
    author.add("it/o/p/sim.reset", refreshes="episode", rows=True)
    author.add("it/o/p/sim.step", updates="episode", rows=True)
    author.add("it/o/p/policy.act", reads="weights", rows=True)
    author.add("it/o/critic.score", reads="weights", rows=True)
    author.add("it/o/fit", "loop", count=4, structure=NOTHING)
    author.add("it/o/fit/critic.look", reads="weights", rows=True)
    author.add("it/o/fixed", "loop", count=4, structure=NOTHING, rewritable=False)
    author.add("it/o/fixed/other.look", pure=True)
    author.add("it/o/log.after", pure=True)
    author.flow("it/o/p/policy.act", "it/o/critic.score", "it/o")
    return author.graph()


def enumerated(
    graph: Graph, target: str, groups: int = 2, fits: bool = True, works: Sequence[str] = ()
) -> list[str]:
    subject = batch(graph)
    ask = Enumeration(
        subject,
        groups,
        fits=lambda _: fits,
        works=lambda c: describe(c.composition) in works,
        apart=lambda split, path: path.endswith(("sim.reset", "sim.step")),
    )
    return [
        f"{c.partner.rpartition('/')[2]}: {describe(c.composition)}" for c in feasible(ask, target)
    ]


def grouped(kind: str, loop: str, groups: int) -> str:
    return f"{kind}{{loop={loop} groups={groups}}},interleave{{loop={loop}}},merge{{loop={loop}}}"


BESIDE = [
    # other movable loops of the graph around the target's loop
    "fit: rewire{node=it/o/fit beside=it/o/p}",
    # splittable downstream consumers that are no loops
    "critic.score: split-spatial{loop=it/o/critic.score groups=2},rewire{node=it/o/critic.score beside=it/o/p}",
    # other nodes that are no loops
    "log.before: rewire{node=it/o/p beside=it/o/log.before}",
    "log.after: rewire{node=it/o/log.after beside=it/o/p}",
]


def test_a_target_in_free_loops_tries_chains_nearest_loop_first() -> None:
    graph = hierarchy()
    assert free_loops(batch(graph), "it/o/p/sim.step") == ("it/o/p", "it/o")
    chains = [grouped("split-temporal", loop, 2) for loop in ("it/o/p", "it/o")]
    by_rows = grouped("split-spatial", "it/o/p", 2)
    assert enumerated(graph, "it/o/p/sim.step") == [
        *(f"{w}: {s}" for w in ("sim.reset", "sim.step", "policy.act") for s in chains),
        *BESIDE,
        # beyond the paper, after all of its own: by rows as well
        *(f"{w}: {by_rows}" for w in ("sim.reset", "sim.step", "policy.act")),
    ]


def test_a_target_is_its_own_partner_only_where_groups_have_engines_of_their_own() -> None:
    found = enumerated(hierarchy(), "it/o/p/policy.act")
    assert [text.partition(":")[0] for text in found[:4]] == [
        "sim.reset",
        "sim.reset",
        "sim.step",
        "sim.step",
    ]
    assert not any(text.startswith("policy.act") for text in found)


def test_rows_are_split_where_no_free_loop_fits_the_memory() -> None:
    found = enumerated(hierarchy(), "it/o/p/sim.step", fits=False)
    assert found[:3] == [
        f"sim.reset: {grouped('split-temporal', 'it/o/p', 2)}",
        f"sim.reset: {grouped('split-temporal', 'it/o', 2)}",
        f"sim.reset: {grouped('split-spatial', 'it/o/p', 2)}",
    ]


def test_rows_are_split_where_no_loop_is_free_and_groups_count_up() -> None:
    graph = ppo(extra={"updates": "mean", "rows": True})  # carried statistics: no loop is free
    subject = batch(graph)
    ask = Enumeration(subject, 3, lambda _: True, lambda _: True, lambda _, __: False)
    texts = [describe(c.composition) for c in feasible(ask, STEP)]
    assert texts[:2] == [grouped("split-spatial", INTERACT, k) for k in (2, 3)]


def test_a_target_in_a_body_moves_first_then_what_follows_then_the_body_itself() -> None:
    author = Author()
    author.add("it", "iteration")
    for name in ("a", "b", "c"):
        author.add(f"it/x.{name}", pure=True)
    author.add("it/whole", composite=True)
    for name in ("d", "e"):
        author.add(f"it/whole/y.{name}", pure=True)
    author.add("it/z.f", pure=True)
    graph = author.graph()
    assert enumerated(graph, "it/x.b") == [
        "x.a: rewire{node=it/x.b beside=it/x.a}",
        "x.c: rewire{node=it/x.c beside=it/x.b}",
        "whole: rewire{node=it/whole beside=it/x.b}",
        "z.f: rewire{node=it/z.f beside=it/x.b}",
    ]
    inside = "rewire{node=it/whole/y.e beside=it/whole/y.d}"
    assert enumerated(graph, "it/whole/y.e", works=[inside]) == [f"y.d: {inside}"]
    assert enumerated(graph, "it/whole/y.e") == [
        f"y.d: {inside}",
        "x.c: rewire{node=it/whole beside=it/x.c}",
        "x.b: rewire{node=it/whole beside=it/x.b}",
        "x.a: rewire{node=it/whole beside=it/x.a}",
        "z.f: rewire{node=it/z.f beside=it/whole}",
    ]


def test_the_body_of_a_composite_stands_for_its_target() -> None:
    subject = batch(ppo())
    ask = Enumeration(subject, 2, lambda _: False, lambda _: False, lambda _, __: True)
    found = list(feasible(ask, f"{ACT}/policy.denoise"))
    assert {c.target for c in found} == {f"{ACT}/policy.denoise"}
    assert f"sim.step: {ROWS}" in [
        f"{c.partner.rpartition('/')[2]}: {describe(c.composition)}" for c in found
    ]


def facts(**program: object) -> Facts:
    took = {
        f"{ACT}/policy.encode": Took(10.0),
        f"{ACT}/policy.denoise": Took(10.0),
        STEP: Took(24.0),
        UPDATE: Took(60.0),
    }
    return measured(ppo(epochs=4, steps=6, **program), took)  # pyright: ignore


def test_chains_are_tried_where_instances_are_allowed() -> None:
    one = candidates(facts(), PlanSettings(cores=4.0, max_groups=2))
    assert [describe(c.composition) for c in one.of(STEP)] == [ROWS]
    two = candidates(facts(), PlanSettings(cores=4.0, max_groups=2, memory=Memory(2)))
    assert [describe(c.composition) for c in two.of(STEP)] == [CHAINS, ROWS]
    assert [c.extra for c in two.of(STEP)] == [False, True]
    assert [describe(c.composition) for c in two.of(UPDATE)] == [
        f"rewire{{node={LEARN} beside={ROLLOUT}}}"
    ]
    (refused,) = [r for r in one.refusals if r.subject == ROLLOUT and "instance" in r.reason]
    assert str(refused) == (
        f"split-temporal({ROLLOUT}): expected at most 1 whole instance of sim, got 2 (every chain needs its own "
        "'sim.episode'). Allow them with --max-instances 2 if 2 whole instances of sim fit in memory."
    )


def test_candidates_are_sorted_by_mismatch_then_by_enumeration() -> None:
    settings = PlanSettings(cores=4.0, max_groups=4)
    found = candidates(facts(), settings).of(STEP)
    # T(v) = 24 ms. T̂(act) = 20 (1/2 + 1/2k) = 15, 13.3, 12.5 ms; T̂(step) = 18, 16, 15 ms.
    assert [(c.partner, c.mismatch_ns) for c in found] == [
        (STEP, 6_000_000),
        (STEP, 8_000_000),
        (STEP, 9_000_000),
    ]
    assert [c.composition[0] for c in found] == [SpatialSplit(INTERACT, k) for k in (2, 3, 4)]
    fewer = candidates(facts(), dataclasses.replace(settings, max_alternatives=2))
    assert len(fewer.of(STEP)) == 2
    first = candidates(facts(), dataclasses.replace(settings, max_targets=1))
    assert {c.target for c in first.found} == {targets(facts())[0]}


def test_ties_keep_the_order_of_the_enumeration() -> None:
    known = facts()
    timings = {
        path: dataclasses.replace(timing, mean_ns=1000) for path, timing in known.timings.items()
    }
    same = dataclasses.replace(known, timings=timings)
    found = candidates(same, PlanSettings(cores=4.0, max_groups=2)).of(STEP)
    assert found[0].partner == ACT  # the first child of the loop, as in the enumeration


def test_two_batch_sizes_tell_the_fixed_share() -> None:
    known = facts()
    assert fixed_share(known, STEP) == 0.5
    assert estimated_ns(known, STEP, 4) == 15_000_000  # (T/4 + T) / 2
    # 24 ms for the whole, 15 ms for a half: 6 ms are fixed, 18 ms go with the rows.
    half = dataclasses.replace(known, probes=(probe(STEP, 15.0, groups=2, variant="shard"),))
    assert fixed_share(half, STEP) == pytest.approx(0.25)
    assert estimated_ns(half, STEP, 4) == pytest.approx(6e6 + 18e6 / 4)
    # The nearest measured batch size counts; a part dearer than the whole is all fixed.
    both = dataclasses.replace(
        known,
        probes=(
            probe(STEP, 15.0, groups=2, variant="shard"),
            probe(STEP, 30.0, groups=4, variant="shard"),
        ),
    )
    assert estimated_ns(both, STEP, 4) == 24_000_000
    assert estimated_ns(both, STEP, 2) == 15_000_000
    # Composites and loops: their children's shares by time.
    encode = dataclasses.replace(known, probes=(probe(f"{ACT}/policy.encode", 5.0),))
    assert fixed_share(encode, ACT) == pytest.approx((0.0 + 0.5) / 2)


def window(path: str, activity: float, rank: int) -> LowActivityWindow:
    return LowActivityWindow(NodePath(path), 1000, 10, 1.0, activity, 1.0, True, 1.0, 0, rank)


def test_rank_comes_before_mismatch_and_activity_must_leave_room() -> None:
    known = facts()
    busy = dataclasses.replace(
        known,
        windows=(
            window(STEP, 0.1, 2),
            window(f"{ACT}/policy.encode", 0.95, 4),
            window(f"{ACT}/policy.denoise", 0.95, 3),
            window(UPDATE, 0.3, 1),
        ),
    )
    found = candidates(busy, PlanSettings(cores=4.0, max_groups=2))
    assert list(dict.fromkeys(c.target for c in found.found))[:2] == [UPDATE, STEP]
    text = SpatialSplit(INTERACT, 2).text
    assert activity_refusal(busy, text, STEP, ACT, 0.1) is None  # 1.05 of 1.1
    refused = activity_refusal(busy, text, STEP, ACT, 0.0)
    assert refused is not None
    assert refused.reason == "expected SM activities of at most 1.00 together, got 0.10 and 0.95"
    assert activity_refusal(known, text, STEP, ACT, 0.0) is None  # unknown is no reason
    host = dataclasses.replace(busy, activity=Activity("cpu", ("host",), 1, 1, False, 1))
    assert activity_refusal(host, text, STEP, ACT, 0.0) is None  # cores are counted elsewhere


def test_partners_need_lanes_of_their_own() -> None:
    known = facts()
    workers = place(Subject.of(known).hierarchy, {INTERACT: 2}, ())
    text = SpatialSplit(INTERACT, 2).text
    assert lane_refusal(known, workers, text, STEP, ACT) is None
    assert lane_refusal(known, workers, text, STEP, STEP) is None
    refused = lane_refusal(known, workers, text, f"{ACT}/policy.encode", f"{ACT}/policy.denoise")
    assert refused is not None
    assert refused.reason == "expected lanes of their own, got both on worker inline"


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        (Memory(2, gpu_bytes=100, gpu_peak_bytes=50, component_gpu_bytes={"sim": 40}), ""),
        (
            Memory(2, gpu_bytes=100, gpu_peak_bytes=51, component_gpu_bytes={"sim": 40}),
            "expected at most 90 bytes of GPU memory, got 91 with 2 instances of sim",
        ),
        (
            Memory(2, host_bytes=100, host_peak_bytes=80, component_host_bytes={"sim": 40}),
            "expected at most 90 bytes of host memory, got 120 with 2 instances of sim",
        ),
    ],
)
def test_instances_must_fit_gpu_and_host(memory: Memory, reason: str) -> None:
    found = memory_refusal(batch(ppo()).hierarchy, TemporalSplit(ROLLOUT, 2), memory)
    assert (found.reason if found else "") == reason


def test_a_plan_of_chains_is_priced_and_says_where_instances_live() -> None:
    settings = PlanSettings(cores=4.0, max_groups=2, memory=Memory(2), dispatch_ns=1000)
    made = plan(facts(), settings)
    asked = plan(facts(), dataclasses.replace(settings, transforms=CHAINS))
    assert CHAINS in [",".join(item.transforms) for item in made.alternatives]
    assert asked.chains() == {ROLLOUT: 2}
    assert [str(r) for w in asked.workers for r in w.residents if r.component == "sim"] == [
        "sim@0/2",
        "sim@1/2",
    ]
    sim = asked.component("sim")
    assert sim is not None
    assert (sim.shards, sim.replicas) == (1, 2)
    assert asked.equivalence == "exact"  # batches stay whole
    # Four epochs of six steps: 20 ms of policy on one worker, 24 ms of simulation on two.
    body = 0.1 + 6 * (20.0 + 24.0) + 0.1
    native, rest = 4 * body, 4 * 60.0 + 0.2
    assert asked.predicted.native_ns == pytest.approx((native + rest) * 1e6, rel=1e-6)
    assert 2 * body + rest <= asked.predicted.iteration_ns / 1e6 < 0.8 * native + rest
    assert asked.predicted.lower_bound_ns / 1e6 <= 2 * body + rest + 1e-6


def test_what_is_tried_together_takes_one_split_of_a_loop() -> None:
    made = plan(facts(), PlanSettings(cores=4.0, max_groups=4))
    for item in made.alternatives:
        tried = parse_composition(",".join(item.transforms))
        loops = [t.loop for t in tried if isinstance(t, SpatialSplit | TemporalSplit)]
        assert len(set(loops)) == len(loops)


def test_a_dependent_loop_is_refused_with_what_the_trace_showed() -> None:
    from rose_opt.facts import Evidence, LoopFact, LoopKind

    evidence = Evidence("state", "iteration 1 updates 'sim.episode' (invocation 87)", "")
    fact = LoopFact(NodePath(ROLLOUT), LoopKind.DEPENDENT, (evidence,), 1)
    graph = ppo()
    nodes = tuple(n for n in graph.nodes if n.name != "sim.reset")
    edges = tuple(e for e in graph.edges if not e.producer.endswith("sim.reset"))
    known = dataclasses.replace(facts(), graph=Graph(nodes, edges), loops={ROLLOUT: fact})
    search = PlanSettings(transforms=CHAINS)
    from rose_opt.plan import PlanRefused

    with pytest.raises(PlanRefused, match=r"sim\.step updates 'sim\.episode'"):
        plan(known, search)


def test_a_candidate_reads_back() -> None:
    found = candidates(facts(), PlanSettings(cores=4.0, max_groups=2, memory=Memory(2)))
    for item in found.found:
        assert isinstance(item, Candidate)
        assert parse_composition(describe(item.composition)) == item.composition


def test_what_the_trace_showed_to_depend_is_not_tried_in_chains() -> None:
    # Declarations alone say free; in the trace some iteration looked before it was reset.
    from rose_opt.facts import Evidence, LoopFact, LoopKind

    fact = LoopFact(NodePath(ROLLOUT), LoopKind.DEPENDENT, (Evidence("state", "", ""),), 1)
    known = dataclasses.replace(facts(), loops={ROLLOUT: fact})
    found = candidates(known, PlanSettings(cores=4.0, max_groups=2, memory=Memory(2)))
    assert [describe(c.composition) for c in found.of(STEP)] == [ROWS]


def test_a_loop_that_a_state_keeps_in_order_is_told_with_its_invocation_and_what_unlocks_it() -> (
    None
):
    from rose_opt.facts import Evidence, LoopFact, LoopKind
    from tests.rose_opt.transforms.test_counterexamples import declaring

    reset = NodePath(f"{ROLLOUT}/sim.reset")
    subject = declaring(
        batch(ppo(epochs=4, steps=6)),
        reset,
        refreshes="episode",
        updates="generator.numpy",
        rows=True,
    )
    text = "iteration 1 updates 'generator.numpy' (node 'sim.reset', invocation 87) updated by iteration 0"
    evidence = Evidence("state", text, "", state="generator.numpy", reader=reset, writer=reset)
    fact = LoopFact(NodePath(ROLLOUT), LoopKind.DEPENDENT, (evidence,), 1)
    known = dataclasses.replace(facts(), graph=subject.graph, loops={ROLLOUT: fact})
    found = candidates(known, PlanSettings(cores=4.0, max_groups=2, memory=Memory(2)))
    (told,) = [
        r for r in found.refusals if r.subject == ROLLOUT and r.transform == "split-temporal"
    ]
    assert str(told) == (
        f"split-temporal({ROLLOUT}): expected a free loop, got dependent: {reset} updates 'generator.numpy', which "
        f"the iteration before has left as {reset} made it ({text}). Let sim.reset draw from "
        "rose_trace.rng.RowGenerator, keyed by seed, row and iteration, instead of the carried "
        f"'generator.numpy'. hoist-rng{{loop={ROLLOUT} generator=numpy}} would unlock it, which the executor cannot "
        f"do: draw from 'generator.numpy' before {ROLLOUT}, or from rose_trace.rng.RowGenerator inside it."
    )
