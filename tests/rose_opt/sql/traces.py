"""Traces to query: one with chosen times, one that the recorder saw."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rose_trace as rose
from rose_trace.component import program
from rose_trace.parquet import read_spans, write_table
from tests.rose_opt.facts.factory import START_NS, Recording, Value
from tests.rose_opt.facts.programs import ppo

Array = npt.NDArray[np.float64]


def with_states(recording: Recording) -> Recording:
    """Fill in the accesses that a recorder would see, from the declarations of leaf nodes."""
    writes: Counter[str] = Counter()
    for row in recording.rows:
        declared: dict[str, Any] = json.loads(row["declaration"])
        component = row["node"].partition(".")[0]
        for mode in ("reads", "updates", "refreshes"):
            for name in declared.get(mode, ()):
                state = f"{component}.{name}"
                access = mode.removesuffix("es") if mode == "refreshes" else mode.removesuffix("s")
                row["states"].append({"state": state, "access": access, "version": writes[state]})
                writes[state] += mode != "reads"
    return recording


def sampled(recording: Recording, period_ns: int = 70) -> Recording:
    """Samples over the whole recording with levels that vary, one of seven missing."""
    for number, start in enumerate(range(0, recording.now_ns, period_ns)):
        if number % 7 != 3:
            level = (number * 37 % 101) / 100 if number % 5 else 0.05
            recording.sample(start, start + period_ns, level)
    return recording


def chosen(path: Path, slow: bool = False) -> Path:
    """Three iterations of PPO with a stall, a second thread, device ends and samples."""
    recording = ppo(Recording(), iterations=3, epochs=2)
    stalled = [row for row in recording.rows if row["node"] == "sim.step"][-1]
    recording.now_ns += 4_000
    for row in recording.rows:  # the stall moves all that follows
        for key in ("start_ns", "end_ns"):
            after = row["start_ns"] > stalled["start_ns"] or key == "end_ns"
            if after and row[key] >= stalled["end_ns"]:
                row[key] += 4_000
    for number, row in enumerate(row for row in recording.rows if row["node"] == "trainer.update"):
        if number % 2:
            row["device_end_ns"] = row["end_ns"] + 15
    with recording.iteration():
        first = recording.node("loader.read", ns=300, reads="weights")
        begun = recording.now_ns
        second = recording.node("sim.step", first, ns=500, updates="episode", cores=0.25)
        recording.now_ns = begun + 40
        beside = recording.node("policy.encode", first, ns=200, columns={"thread": 2})
        recording.now_ns = begun + 700
        recording.node("policy.value", second, beside, ns=100 + 900 * slow, reads="weights")
        recording.now_ns += 50
    return sampled(with_states(recording)).write(path)


def gpm(path: Path) -> Path:
    """Calls far shorter than their source resolves, beside one that it does."""
    recording = Recording()
    with recording.iteration():
        for _ in range(5):
            recording.node("short", ns=10_000_000, pure=True)
        recording.node("long", ns=250_000_000, pure=True)
    for start in range(0, 300_000_000, 20_000_000):
        recording.sample(start, start + 20_000_000, 0.2 if start < 240_000_000 else 0.9, "gpm")
    return recording.write(path)


@rose.component
class Policy:
    def __init__(self) -> None:
        self.weights = np.eye(16)

    @rose.node(reads="weights", rows=True)
    def act(self, obs: Array) -> Array:
        return obs @ self.weights

    @rose.node(refreshes="weights")
    def load(self, weights: Array) -> None:
        self.weights = weights


@rose.component(batch_states=["episode"])
class Simulator:
    @rose.node(refreshes="episode", rows=True)
    def reset(self, epoch: int) -> Array:
        return np.full((4, 16), float(epoch))

    @rose.node(updates="episode", rows=True)
    def step(self, action: Array) -> Array:
        return action + 1.0


@rose.component
class Trainer:
    def __init__(self) -> None:
        self.weights = np.eye(16)

    @rose.node(updates="weights")
    def update(self, values: Any) -> None:
        self.weights = self.weights * 0.5

    @rose.node(reads="weights")
    def read(self) -> Array:
        return self.weights.copy()


def recorded(path: Path, steps: int = 6, sampled: int | None = None) -> Path:
    """A program that the recorder saw, with samples written beside it."""
    with program():
        policy, simulator, trainer = Policy(), Simulator(), Trainer()

    @rose.loop
    def interact(obs: Array, step: int) -> tuple[Array, Array]:
        del step
        obs = simulator.step(policy.act(obs))
        return obs, obs

    @rose.iteration
    def iteration() -> None:
        _, kept = interact(simulator.reset(0), count=steps)
        trainer.update(kept)
        policy.load(trainer.read())

    with rose.record(path, steps=sampled):
        for _ in range(4):
            iteration()
    rows: list[dict[str, Any]] = read_spans(path).to_pylist()
    start, end = min(r["start_ns"] for r in rows), max(r["end_ns"] for r in rows)
    period_ns = (end - start) // 200 + 1
    write_table("activity", path, list(_samples(start, end, period_ns)))
    return path


def _samples(start: int, end: int, period_ns: int) -> list[dict[str, Any]]:
    return [
        {
            "run": "test",
            "source": source,
            "device": "cuda:0",
            "start_ns": at,
            "end_ns": at + period_ns,
            "activity": (number * factor % 101) / 100,
            "estimate": False,
        }
        for source, factor in (("pm-sampling", 29), ("nvml-utilisation", 31))
        for number, at in enumerate(range(start, end, period_ns))
    ]


__all__ = ["START_NS", "Value", "chosen", "gpm", "recorded", "sampled", "with_states"]
