"""Recorded programs that several tests look at."""

from __future__ import annotations

from itertools import chain

from tests.rose_opt.facts.factory import TENSOR_JSON, Recording, Value


def ppo(
    recording: Recording,
    iterations: int = 2,
    epochs: int = 3,
    steps: int = 4,
    reset: str = "refreshes",
    learn_from: str = "epoch",
    draws: bool = False,
) -> Recording:
    """PPO as in the reference program: rollout epochs, learning on each, then a weight sync.

    Args:
        recording: Where to record.
        iterations: RL iterations.
        epochs: Rollout epochs.
        steps: Steps of an epoch.
        reset: How ``sim.reset`` accesses the episode.
        learn_from: ``epoch`` (learning e uses epoch e) or ``all`` (it uses all epochs).
        draws: Whether ``sim.reset`` draws start states from a carried generator.
    """
    updates = ["episode"] if reset == "updates" else ["np_random"] if draws else []
    refreshes = ["episode"] if reset == "refreshes" else []
    for _ in range(iterations):
        with recording.iteration():
            recorded: list[list[Value]] = []
            for _ in recording.loop("rollout", epochs):
                obs = recording.node(
                    "sim.reset", ns=50, rows=True, updates=updates, refreshes=refreshes
                )
                kept: list[Value] = []
                for _ in recording.loop("interact", steps, carry=TENSOR_JSON):
                    with recording.composite("policy.act", rows=True) as act:
                        act["inputs"] = [obs.row(0)]
                        prefix = recording.node(
                            "policy.encode", obs, ns=200, reads="weights", rows=True
                        )
                        action = recording.node(
                            "policy.denoise", prefix, ns=100, reads="weights", rows=True
                        )
                    obs = recording.node("sim.step", action, ns=600, updates="episode", rows=True)
                    kept += [action, obs]
                    recording.now_ns += 10
                recording.node("policy.value", obs, ns=100, reads="weights", rows=True)
                recorded.append(kept)
            for epoch in recording.loop("learn", epochs):
                used = recorded[epoch] if learn_from == "epoch" else chain(*recorded)
                recording.node("trainer.update", *used, ns=1_000, cores=2.0, updates="weights")
            weights = recording.node("trainer.weights", ns=20, reads="weights")
            recording.node("policy.load", weights, ns=30, refreshes="weights", outputs=0)
    return recording
