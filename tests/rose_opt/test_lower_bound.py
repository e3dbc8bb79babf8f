"""No execution that legality allows beats the bound of a plan, and no prediction is below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_opt.contention import MeasuredContention
from rose_opt.facts import Facts
from rose_opt.graph import Graph
from rose_opt.lower_bound import LowerBound
from rose_opt.optimize import plan
from rose_opt.plan import Plan
from rose_opt.settings import Memory, PlanSettings
from rose_opt.simulator import Contention
from rose_opt.simulator.execution import SimulatedExecution
from tests.properties import examples
from tests.rose_opt.programs import (
    ACT,
    INTERACT,
    STEP,
    UPDATE,
    Author,
    Took,
    measured,
    ppo,
    probe,
    tensor,
)

MS = st.floats(0.05, 80.0)
ROLLOUT = "iteration/rollout"
JUDGE = f"{INTERACT}/judge.score"
SPLIT = f"split-spatial{{loop={INTERACT} groups=2}},interleave{{loop={INTERACT}}},merge{{loop={INTERACT}}}"


def judged(epochs: int, steps: int, carried: bool) -> Graph:
    """PPO with a reward model that scores every step on its own component, beside the next action."""
    author = Author({"sim": ("episode",), "judge": ("history",)}, ("sim", "judge"))
    rows = tensor(8, 4)
    learn = "iteration/learn"
    author.add("iteration", "iteration")
    author.add(ROLLOUT, "loop", count=epochs, structure='["none",[],"",[]]')
    author.add(f"{ROLLOUT}/sim.reset", refreshes="episode", rows=True, structure=rows)
    author.add(INTERACT, "loop", count=steps, structure=rows)
    author.add(ACT, reads="weights", rows=True, structure=rows)
    author.add(STEP, updates="episode", rows=True, structure=rows)
    author.add(JUDGE, updates="history", rows=True, structure=rows)
    author.add(f"{ROLLOUT}/policy.value", reads="weights", rows=True, structure=tensor(8))
    author.add(learn, "loop", count=epochs, structure='["none",[],"",[]]')
    author.add(UPDATE, updates="weights")
    author.add("iteration/trainer.weights", reads="weights")
    author.add("iteration/policy.load", refreshes="weights")
    author.flow(f"{ROLLOUT}/sim.reset", ACT, ROLLOUT)
    author.flow(ACT, STEP, INTERACT)
    author.flow(STEP, ACT, INTERACT, distance=1)
    author.flow(STEP, JUDGE, INTERACT)
    if carried:
        author.flow(JUDGE, ACT, INTERACT, distance=1)
    author.flow(STEP, f"{ROLLOUT}/policy.value", ROLLOUT)
    for producer in (ACT, STEP, JUDGE, f"{ROLLOUT}/policy.value"):
        author.flow(producer, UPDATE, "iteration", alignment=0)
    author.flow("iteration/trainer.weights", "iteration/policy.load", "iteration")
    return author.graph()


@st.composite
def recorded(draw: st.DrawFn) -> Facts:
    """Random programs with random durations, glue and probes."""
    epochs, steps = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    threads = draw(st.floats(1.0, 2.0))
    leaves = [STEP, UPDATE, f"{ROLLOUT}/sim.reset", f"{ROLLOUT}/policy.value"]
    if draw(st.booleans()):
        program = judged(epochs, steps, draw(st.booleans()))
        leaves += [ACT, JUDGE]
    else:
        shardable = draw(st.sampled_from(((), ("sim",))))
        program = ppo(epochs=epochs, steps=steps, shardable=shardable)
        leaves += [f"{ACT}/policy.encode", f"{ACT}/policy.denoise"]
    took = {path: Took(draw(MS), draw(st.sampled_from([0.1, 1.0, threads]))) for path in leaves}
    probes = [
        probe(ACT, draw(MS), threads=1),
        probe(ACT, draw(MS), threads=2),
        probe(STEP, draw(MS), variant="shard"),
    ]
    known = probes if draw(st.booleans()) else ()
    return measured(program, took, known, rows=8, glue_ms=draw(st.sampled_from([0.0, 7.0])))


@st.composite
def contentions(draw: st.DrawFn) -> MeasuredContention:
    """Contention between the nodes of a step, and of learning."""
    paths = (ACT, STEP, JUDGE, UPDATE)
    pairs = draw(st.lists(st.tuples(st.sampled_from(paths), st.sampled_from(paths)), max_size=5))
    return MeasuredContention({pair: draw(st.floats(0.0, 1.2)) for pair in pairs})


CHOSEN = st.builds(
    PlanSettings,
    cores=st.sampled_from((1.0, 2.0, 3.0, 8.0)),
    max_groups=st.just(2),
    dispatch_ns=st.sampled_from((0, 300_000)),
    memory=st.just(Memory(max_instances=2)),
)


def every_plan(
    facts: Facts, chosen: PlanSettings, contention: MeasuredContention
) -> Sequence[Plan]:
    """A plan of each alternative of the search."""
    found = plan(facts, chosen, contention).alternatives
    forced = (replace(chosen, transforms=",".join(item.transforms)) for item in found)
    return [plan(facts, one, contention) for one in forced]


@examples(40, 20)
@given(recorded(), CHOSEN, contentions())
def test_no_execution_beats_the_bound_and_no_prediction_either(
    facts: Facts, chosen: PlanSettings, contention: MeasuredContention
) -> None:
    rates = Contention(contention.kappa)
    machine = SimulatedExecution(facts, rates=rates)
    for made in every_plan(facts, chosen, contention):
        bound = made.predicted.lower_bound_ns
        assert bound <= made.predicted.iteration_ns
        taken = machine.iteration(made).duration_ns
        assert taken >= bound - 2
        amounts = LowerBound(facts, chosen, made.cores, contention.kappa)._by_amounts(made).ns  # pyright: ignore[reportPrivateUsage]
        assert taken >= amounts - 2


@pytest.mark.parametrize("cores", [2.0, 8.0])
def test_the_bound_is_close_where_one_thing_limits(cores: float) -> None:
    took = {
        f"{ACT}/policy.encode": Took(5.0),
        f"{ACT}/policy.denoise": Took(15.0),
        STEP: Took(20.0),
        UPDATE: Took(150.0),
    }
    facts = measured(ppo(epochs=4, steps=8), took)
    settings = PlanSettings(
        cores=cores,
        max_groups=2,
        transforms="rewire{node=iteration/learn beside=iteration/rollout}",
    )
    made = plan(facts, settings)
    # Learning of the last epoch comes after it: what is ready late counts with what comes before.
    assert made.predicted.gap < 0.01


def test_what_only_some_steps_call_counts_with_its_mean() -> None:
    facts = measured(ppo(epochs=2, steps=8), {STEP: Took(40.0)})
    fewer = 12 * 40_000_000  # 4 of 16 calls are left
    timings = dict(facts.timings)
    timings[STEP] = replace(timings[STEP], count=4)
    for path in ("iteration", ROLLOUT, INTERACT):
        known = timings[path]
        timings[path] = replace(known, mean_ns=known.mean_ns - fewer // known.count)
    whole = replace(facts.iteration, iteration_ns=facts.iteration.iteration_ns - fewer)
    seldom = replace(facts, timings=timings, iteration=whole)
    settings = PlanSettings(cores=8.0, transforms=SPLIT)
    made, often = plan(seldom, settings), plan(facts, settings)
    assert made.predicted.native_ns == often.predicted.native_ns - fewer
    assert made.predicted.lower_bound_ns < 0.3 * often.predicted.lower_bound_ns


def test_chains_are_bounded_by_the_work_of_the_longest() -> None:
    facts = measured(ppo(epochs=3, steps=4), {STEP: Took(40.0)})
    chains = f"split-temporal{{loop={ROLLOUT} groups=2}},interleave{{loop={ROLLOUT}}},merge{{loop={ROLLOUT}}}"
    settings = PlanSettings(cores=8.0, transforms=chains, memory=Memory(max_instances=2))
    made = plan(facts, settings)
    # Two of the three epochs are on the first instance of the simulator.
    assert made.predicted.lower_bound_ns >= 2 * 4 * 40e6
    assert made.predicted.bound_by == "engine sim@0/2"
    assert made.predicted.gap < 0.1
