from __future__ import annotations

from pathlib import Path

from rose_opt.facts import build_facts
from rose_opt.graph import DataEdge
from rose_trace.records import NodePath
from tests.rose_opt.facts.factory import TENSOR_JSON, Recording, Value
from tests.rose_opt.facts.programs import ppo

INTERACT = "iteration/rollout/interact"


def edge(producer: str, consumer: str, loop: str, **rest: int | bool | None) -> DataEdge:
    return DataEdge(NodePath(producer), NodePath(consumer), NodePath(loop), **rest)  # pyright: ignore[reportArgumentType]


def test_edges_of_the_reference_program(tmp_path: Path):
    graph = build_facts(ppo(Recording()).write(tmp_path / "trace.parquet")).graph
    act, encode, denoise = (
        f"{INTERACT}/policy.act",
        f"{INTERACT}/policy.act/policy.encode",
        f"{INTERACT}/policy.act/policy.denoise",
    )
    step, update = f"{INTERACT}/sim.step", "iteration/learn/trainer.update"
    assert graph.edges == (
        edge("iteration/rollout/sim.reset", act, "iteration/rollout"),
        edge("iteration/rollout/sim.reset", encode, "iteration/rollout"),
        edge(encode, denoise, INTERACT),
        edge(denoise, step, INTERACT),
        edge(denoise, update, "iteration", alignment=0),
        edge(step, act, INTERACT, distance=1),
        edge(step, encode, INTERACT, distance=1),
        edge(step, "iteration/rollout/policy.value", "iteration/rollout"),
        edge(step, update, "iteration", alignment=0),
        edge("iteration/trainer.weights", "iteration/policy.load", "iteration"),
    )
    assert graph.data_edges("iteration/rollout", "iteration/learn") == (
        edge(denoise, update, "iteration", alignment=0),
        edge(step, update, "iteration", alignment=0),
    )


def test_learning_over_all_epochs_waits_for_all_iterations(tmp_path: Path):
    graph = build_facts(ppo(Recording(), learn_from="all").write(tmp_path / "trace.parquet")).graph
    edges = graph.data_edges("iteration/rollout", "iteration/learn")
    assert [(item.all_iterations, item.alignment) for item in edges] == [(True, None)] * 2


def test_consumer_outside_a_loop_that_takes_everything(tmp_path: Path):
    recording = Recording()
    for _ in range(2):
        with recording.iteration():
            made = [
                recording.node("policy.act", reads="weights") for _ in recording.loop("rollout", 3)
            ]
            recording.node("trainer.update", *made, updates="weights")
            recording.node("last", made[-1], pure=True)
    graph = build_facts(recording.write(tmp_path / "trace.parquet")).graph
    act = "iteration/rollout/policy.act"
    assert graph.edges == (
        edge(act, "iteration/trainer.update", "iteration", all_iterations=True),
        edge(act, "iteration/last", "iteration"),
    )


def test_shifted_iterations_and_two_calls_of_one_loop(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        made = [recording.node("make", pure=True) for _ in recording.loop("first", 4)]
        for index in recording.loop("second", 3):
            recording.node("use", made[index + 1], pure=True)
        # The same loop called again: iteration 0 of the second call uses iteration 3 of the first.
        for index in recording.loop("first", 1):
            recording.node("make", made[3 - index], pure=True)
    graph = build_facts(recording.write(tmp_path / "trace.parquet")).graph
    make, use = "iteration/first/make", "iteration/second/use"
    assert graph.edges == (
        edge(make, make, "iteration", alignment=3),
        edge(make, use, "iteration", alignment=1),
    )


def test_value_from_an_earlier_rl_iteration(tmp_path: Path):
    recording = Recording()
    kept = Value(0, 0)
    for index in range(3):
        with recording.iteration():
            recording.node("use", *([kept] if index else []), pure=True)
            kept = recording.node("make", pure=True)
    graph = build_facts(recording.write(tmp_path / "trace.parquet")).graph
    assert graph.edges == (edge("iteration/make", "iteration/use", "iteration", distance=1),)


def test_values_without_producer_give_no_edge(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        recording.node("use", Value(5, 0), Value(6, 123_456), pure=True)
    assert build_facts(recording.write(tmp_path / "trace.parquet")).graph.edges == ()


def test_distance_two(tmp_path: Path):
    recording = Recording()
    with recording.iteration():
        made: list[Value] = []
        for index in recording.loop("loop", 5, carry=TENSOR_JSON):
            made.append(recording.node("make", *made[index - 2 : index - 1], pure=True))
    graph = build_facts(recording.write(tmp_path / "trace.parquet")).graph
    make = "iteration/loop/make"
    assert graph.edges == (edge(make, make, "iteration/loop", distance=2),)
