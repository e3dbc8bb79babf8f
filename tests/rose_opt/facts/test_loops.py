from __future__ import annotations

from pathlib import Path

from rose_opt.facts import Facts, LoopFact, build_facts
from tests.rose_opt.facts.factory import TENSOR_JSON, Recording, Value
from tests.rose_opt.facts.programs import ppo


def fact(facts: Facts, path: str) -> LoopFact:
    return facts.loops[path]


def texts(item: LoopFact) -> list[tuple[str, str]]:
    return [(evidence.cause, evidence.text) for evidence in item.evidence]


def test_epochs_are_free_because_reset_refreshes(tmp_path: Path):
    facts = build_facts(ppo(Recording()).write(tmp_path / "trace.parquet"))
    rollout = fact(facts, "iteration/rollout")
    assert rollout.free
    # One simulator holds one episode, so one epoch at a time until there are more instances.
    assert (rollout.limited_by, rollout.instances) == (("sim.episode",), 1)
    assert rollout.distance is None


def test_reset_that_does_not_refresh_makes_epochs_dependent(tmp_path: Path):
    facts = build_facts(ppo(Recording(), reset="updates").write(tmp_path / "trace.parquet"))
    (evidence,) = fact(facts, "iteration/rollout").evidence
    assert evidence.text == (
        "iteration 1 updates 'sim.episode' (node 'sim.reset', invocation 21) updated by iteration 0 "
        "(node 'sim.step', invocation 19)"
    )
    assert evidence.unlock == (
        "If 'sim.reset' does not inherit 'sim.episode', annotate the access as refresh."
    )
    assert (evidence.state, evidence.distance) == ("sim.episode", 1)


def test_reset_drawing_from_a_carried_generator_makes_epochs_dependent(tmp_path: Path):
    facts = build_facts(ppo(Recording(), draws=True).write(tmp_path / "trace.parquet"))
    rollout = fact(facts, "iteration/rollout")
    assert texts(rollout) == [
        (
            "state",
            "iteration 1 updates 'sim.np_random' (node 'sim.reset', invocation 21) updated by "
            "iteration 0 (node 'sim.reset', invocation 2)",
        )
    ]
    assert rollout.limited_by == ("sim.episode",)


def test_auto_reset_in_the_step_makes_epochs_dependent(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        for _ in recording.loop("rollout", 2):
            for _ in recording.loop("interact", 2, carry=TENSOR_JSON):
                recording.node("sim.step", updates="episode")
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert texts(fact(facts, "iteration/rollout")) == [
        (
            "state",
            "iteration 1 updates 'sim.episode' (node 'sim.step', invocation 6) updated by iteration 0 "
            "(node 'sim.step', invocation 4)",
        )
    ]


def test_reset_in_some_iterations_only_is_dependent(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        for index in recording.loop("rollout", 4):
            if index % 2 == 0:
                recording.node("sim.reset", refreshes="episode")
            recording.node("sim.step", updates="episode")
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert not fact(facts, "iteration/rollout").free


def test_reading_before_the_refresh_inherits(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        for _ in recording.loop("rollout", 2):
            recording.node("sim.look", reads="episode")
            recording.node("sim.reset", refreshes="episode")
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert texts(fact(facts, "iteration/rollout")) == [
        (
            "state",
            "iteration 1 reads 'sim.episode' (node 'sim.look', invocation 4) refreshed by iteration 0 "
            "(node 'sim.reset', invocation 3)",
        )
    ]


def test_state_that_is_only_read_does_not_bind(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        for _ in recording.loop("evaluate", 3):
            recording.node("policy.act", reads="weights")
        recording.node("policy.load", refreshes="weights")
    evaluate = fact(build_facts(recording.write(tmp_path / "t.parquet")), "iteration/evaluate")
    assert evaluate.free
    assert (evaluate.limited_by, evaluate.instances) == ((), None)


def test_one_recorded_iteration_is_judged_as_if_there_were_more(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        for _ in recording.loop("rollout", 1):
            recording.node("sim.step", updates="episode")
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert texts(fact(facts, "iteration/rollout")) == [
        (
            "state",
            "every iteration updates 'sim.episode' (node 'sim.step', invocation 2), which the one "
            "before it has updated (node 'sim.step', invocation 2)",
        )
    ]


def test_carry_makes_a_loop_dependent(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        for _ in recording.loop("scan", 2, carry=TENSOR_JSON):
            recording.node("pure", pure=True)
        for _ in recording.loop("empty", 2, carry='["tuple",[],"",[["none",[],"",[]]]]'):
            recording.node("pure", pure=True)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert texts(fact(facts, "iteration/scan")) == [
        ("carry", "its body returns a carry that is not None")
    ]
    assert fact(facts, "iteration/empty").free


def test_value_handed_past_the_carry_makes_a_loop_dependent(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        made: list[Value] = []
        for index in recording.loop("leak", 5):
            made.append(recording.node("make", *made[max(index - 2, 0) : index - 1], pure=True))
    leak = fact(build_facts(recording.write(tmp_path / "trace.parquet")), "iteration/leak")
    assert texts(leak) == [
        (
            "data",
            "'iteration/leak/make' takes a value that 'iteration/leak/make' made 2 iterations earlier "
            "(invocation 4)",
        )
    ]
    assert (leak.distance, str(leak)) == (2, "dependent distance=2")


def test_undeclared_node_makes_every_loop_around_it_dependent(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        for _ in recording.loop("outer", 2):
            for _ in recording.loop("inner", 2):
                recording.node("log")
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    for path in ("iteration/outer", "iteration/outer/inner"):
        (evidence,) = fact(facts, path).evidence
        assert evidence.cause == "opaque"
        assert evidence.text == "'log' declares nothing, so it may touch any state"
        assert evidence.unlock == (
            "Declare the states of 'log' (reads, updates, refreshes), or pure=True."
        )


def test_loop_that_cannot_be_rewritten(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        for _ in recording.loop("batches", 2, attributes=[("rewritable", "false")]):
            recording.node("pure", pure=True)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert not facts.graph.node("iteration/batches").rewritable
    assert texts(fact(facts, "iteration/batches")) == [
        ("fixed", "its body is not written as carry, output = body(carry, item)")
    ]


def test_the_root_keeps_its_order_and_says_what_it_carries(tmp_path: Path):
    root = fact(build_facts(ppo(Recording()).write(tmp_path / "trace.parquet")), "iteration")
    assert not root.free
    assert [item.state for item in root.evidence] == [None, "policy.weights", "trainer.weights"]
