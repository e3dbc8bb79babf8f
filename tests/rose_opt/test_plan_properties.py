"""Whatever was measured: plans are legal, compute the same, and never promise less than their bound."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from rose_opt.facts import Facts
from rose_opt.optimize import plan
from rose_opt.plan import Plan
from rose_opt.settings import Memory, PlanSettings
from rose_opt.transforms import Subject, apply_all, parse_composition
from tests.properties import examples
from tests.rose_opt.programs import ACT, STEP, UPDATE, Took, measured, ppo, probe
from tests.rose_opt.transforms.rewrites import of_size, runs_the_same

MS = st.floats(0.05, 200.0)
CORES = st.sampled_from((1.0, 2.0, 3.0, 8.0))


@st.composite
def facts(draw: st.DrawFn) -> Facts:
    """The PPO program with random durations, with and without probes, in legal and illegal variants."""
    policy, step, learn = draw(MS), draw(MS), draw(MS)
    threads = draw(st.floats(1.0, 2.0))
    program = ppo(
        epochs=draw(st.integers(1, 3)),
        steps=draw(st.integers(1, 3)),
        shared_module=draw(st.booleans()),
        shardable=draw(st.sampled_from(((), ("sim",), ("sim",)))),
    )
    took = {
        f"{ACT}/policy.encode": Took(policy, threads),
        f"{ACT}/policy.denoise": Took(policy, threads),
        STEP: Took(step),
        UPDATE: Took(learn, threads),
    }
    same = draw(st.sampled_from((True, True, None, False)))
    probes = [
        probe(ACT, draw(MS), threads=1, identical=same),
        probe(ACT, draw(MS), threads=2, identical=True),
        probe(STEP, draw(MS), variant="shard"),
    ]
    found = measured(of_size(program, 4), took, probes if draw(st.booleans()) else (), rows=4)
    sizes = {"host_bytes of policy": draw(st.integers(0, 10**7))}
    return dataclasses.replace(found, memory=sizes if draw(st.booleans()) else {})


@given(facts(), CORES, st.sampled_from(("exact", "any")), st.integers(1, 2))
@examples(50, 15)
def test_plans_keep_their_promises(found: Facts, cores: float, bits: str, instances: int) -> None:
    chosen = PlanSettings(
        cores=cores,
        max_groups=2,
        bits="any" if bits == "any" else "exact",
        memory=Memory(max_instances=instances),
    )
    made = plan(found, chosen)
    assert Plan.from_json(made.to_json()) == made
    predicted = made.predicted
    assert predicted.lower_bound_ns <= predicted.iteration_ns <= predicted.native_ns
    private = [t for t in made.transforms if t.name == "privatise"]
    assert len(made.chains()) + len(private) == 0 or instances == 2
    for item in made.alternatives:
        assert item.lower_bound_ns <= item.predicted_ns
    if made.kept_native:
        assert predicted.iteration_ns == predicted.native_ns
    else:
        assert predicted.iteration_ns < (1 - chosen.min_gain) * predicted.native_ns
    assert all(demand <= cores for demand in made.core_demand.values())
    if bits == "exact":
        assert made.equivalence != "reassociated"
    assert made.predicted.gap == round(1 - predicted.lower_bound_ns / predicted.iteration_ns, 6)
    subject = Subject.of(found)
    for item in made.alternatives:
        rewritten = apply_all(parse_composition(",".join(item.transforms)), subject)
        assert isinstance(rewritten, Subject)
        runs_the_same(subject, rewritten, orders=1)


def test_some_of_those_plans_run_chains_and_some_split_rows() -> None:
    """The property above says something about both kinds of split."""
    rollout = {f"{ACT}/policy.encode": Took(20.0), STEP: Took(40.0)}
    found = measured(of_size(ppo(epochs=4, steps=3), 4), rollout, rows=4)
    chosen = PlanSettings(cores=8.0, max_groups=2, dispatch_ns=1000)
    chains = plan(found, dataclasses.replace(chosen, memory=Memory(max_instances=2)))
    assert [t.name for t in chains.transforms][:3] == ["split-temporal", "interleave", "merge"]
    assert chains.predicted.iteration_ns >= chains.predicted.lower_bound_ns
    probes = [
        probe(ACT, 10.0, threads=1),
        probe(f"{ACT}/policy.encode", 10.0, threads=1),
        probe(STEP, 20.0, variant="shard"),
    ]
    rows = plan(dataclasses.replace(found, probes=tuple(probes)), chosen)
    assert "split-spatial" in [t.name for t in rows.transforms]
