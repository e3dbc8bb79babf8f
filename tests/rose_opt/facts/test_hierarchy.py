from __future__ import annotations

from pathlib import Path

import pytest

from rose_opt.facts import FactsError, FactsSettings, build_facts
from rose_opt.graph import Graph
from rose_opt.text import graph_text
from rose_trace.records import Access, StateAccess
from tests.rose_opt.facts.factory import Recording, tensor_json
from tests.rose_opt.facts.programs import ppo

PPO = """\
iteration iteration
  loop iteration/rollout count=3 free
    node sim.reset refresh sim.episode
    loop iteration/rollout/interact count=4 dependent
      node policy.act
        node policy.encode read policy.weights
        node policy.denoise read policy.weights
      node sim.step update sim.episode
    node policy.value read policy.weights
  loop iteration/learn count=3 dependent
    node trainer.update update trainer.weights
  node trainer.weights read trainer.weights
  node policy.load refresh policy.weights"""


def test_hierarchy_of_the_reference_program(tmp_path: Path):
    facts = build_facts(ppo(Recording()).write(tmp_path / "trace.parquet"))
    assert graph_text(facts.graph, facts.loops) == PPO
    step = facts.graph.node("iteration/rollout/interact/sim.step")
    assert step.key == "program:sim.step"
    assert (step.component, step.component_class, step.shardable) == ("sim", "program:Sim", True)
    assert step.accesses.accesses == (Access("sim.episode", StateAccess.UPDATE, keyed=True),)
    assert step.structure == tensor_json([4])
    act = facts.graph.node("iteration/rollout/interact/policy.act")
    assert act.composite
    assert not act.accesses.opaque
    assert facts.graph.effective(act.path).accesses == (Access("policy.weights", StateAccess.READ),)


def test_rows_of_nodes_and_loops(tmp_path: Path):
    facts = build_facts(ppo(Recording()).write(tmp_path / "trace.parquet"))
    assert facts.rows["iteration/rollout/interact"] == 4
    assert facts.rows["iteration/rollout/sim.reset"] == 4
    assert "iteration/learn" not in facts.rows
    assert "iteration/learn/trainer.update" not in facts.rows


def test_results_of_several_lengths_have_no_batch_size(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        for length in recording.loop("rollout", 2):
            recording.node("policy.act", reads="weights", rows=True, shape=(length + 3, 2))
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    act = "iteration/rollout/policy.act"
    assert facts.rows == {}
    # Shapes may differ without making the containers differ.
    assert facts.graph.node(act).structure == tensor_json([3, 2])


def test_counts_that_vary(tmp_path: Path):
    recording = Recording()
    for count in (2, 3):
        with recording.iteration():
            for index in recording.loop("rollout", count):
                recording.node("sim.step", updates="episode")
                if index == 0:
                    recording.node("sim.render", reads="episode")
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert facts.graph.node("iteration/rollout").count is None
    assert facts.graph.node("iteration/rollout").calls_per_parent == 1
    assert facts.graph.node("iteration/rollout/sim.step").calls_per_parent == 1
    assert facts.graph.node("iteration/rollout/sim.render").calls_per_parent is None


def test_undeclared_leaf_is_opaque_and_a_composite_is_what_it_calls(tmp_path: Path):
    recording = Recording()
    with recording.iteration(), recording.composite("outer"):
        recording.node("silent")
        recording.node("sim.step", updates="episode")
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert facts.graph.node("iteration/outer/silent").accesses.opaque
    assert not facts.graph.node("iteration/outer").accesses.opaque
    assert facts.graph.effective("iteration/outer").opaque


def test_generators_seen_are_updates(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        recording.node("draw", pure=True, columns={"attributes": [("generators", "torch,numpy")]})
    node = build_facts(recording.write(tmp_path / "trace.parquet")).graph.node("iteration/draw")
    assert node.generators == ("numpy", "torch")
    assert node.accesses.accesses == (
        Access("generator.numpy", StateAccess.UPDATE),
        Access("generator.torch", StateAccess.UPDATE),
    )


def test_one_path_with_two_definitions_is_unknown(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        recording.node("act", pure=True)
        recording.node("act", pure=True, columns={"fingerprint": "another"})
    node = build_facts(recording.write(tmp_path / "trace.parquet")).graph.node("iteration/act")
    assert node.accesses.opaque
    assert not node.rewritable


def test_work_outside_iterations_and_failed_iterations_do_not_count(tmp_path: Path):
    recording = Recording()
    recording.node("warm_up", pure=True)
    with recording.iteration(status="error"):
        recording.node("act", pure=True, ns=900)
    with recording.iteration():
        recording.node("act", pure=True, ns=100)
    facts = build_facts(recording.write(tmp_path / "trace.parquet"))
    assert [node.path for node in facts.graph.nodes] == ["iteration", "iteration/act"]
    assert facts.timings["iteration/act"].total_ns == 100
    assert facts.iteration.used == 1


def test_trace_without_iterations_is_refused(tmp_path: Path):
    recording = Recording()
    recording.node("act", pure=True)
    path = recording.write(tmp_path / "trace.parquet")
    with pytest.raises(FactsError) as error:
        build_facts(path)
    assert str(error.value) == (
        f"{path}: expected a finished call of a rose.iteration, got none. Decorate the function that "
        "is one RL iteration with rose.iteration and record it."
    )


def test_incomplete_trace_is_refused_unless_allowed(tmp_path: Path):
    recording = ppo(Recording())
    recording.reasons = ["process main (pid 1) lost 3 rows"]
    path = recording.write(tmp_path / "trace.parquet")
    with pytest.raises(FactsError) as error:
        build_facts(path)
    assert str(error.value) == (
        f"{path}: expected a complete trace, got one that lost rows (process main (pid 1) lost 3 "
        "rows). Record again, or allow an incomplete trace."
    )
    facts = build_facts(path, FactsSettings(allow_incomplete=True))
    assert graph_text(facts.graph, facts.loops) == PPO


def test_missing_caller_is_refused_unless_allowed(tmp_path: Path):
    recording = ppo(Recording())
    recording.rows = [
        row for n, row in enumerate(recording.rows) if row["node"] != "interact" or n < 20 or n > 40
    ]
    path = recording.write(tmp_path / "trace.parquet")
    with pytest.raises(
        FactsError, match=r"expected the caller of every invocation, got 8 without one"
    ):
        build_facts(path)
    facts = build_facts(path, FactsSettings(allow_incomplete=True))
    assert facts.timings["iteration/rollout/interact"].count == 3


def test_two_builds_are_equal_and_the_graph_survives_json(tmp_path: Path):
    recording = ppo(Recording())
    for start in range(0, recording.now_ns, 70):
        recording.sample(start, start + 70, (start * 37 % 101) / 101)
    path = recording.write(tmp_path / "trace.parquet")
    first, second = build_facts(path), build_facts(path)
    assert first == second
    graph = Graph.from_json(first.graph.to_json())
    assert graph == first.graph
    assert graph.fingerprint() == second.graph.fingerprint()
    graph.verify()
