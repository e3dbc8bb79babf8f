"""A training that searches the MPS percentage of its trainer's process; prints what came of it as one JSON object.

Argument: ``elements`` for work whose results do not depend on how many SMs there are, ``products`` for matrix
products, of which libraries may make something else.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import rose_trace as rose
from rose_exec.quota.mps import MpsDaemon
from rose_exec.quota.mps_levels import sms_by_percent
from rose_exec.tune import TuneSettings, tune
from rose_exec.worker_trials import worker_quota
from rose_opt.measure import quota_levels
from rose_trace.component import program
from tests.gpu.worker_programs import DEVICE
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.quota.test_worker_percent import Clock
from tests.rose_exec.test_tune import Offered

PERCENTS = (20, 40, 60, 80, 100)


@rose.component
class Trainer:
    """Weights on the device; notes how many SMs it sees, which is no result."""

    def __init__(self, products: bool, notes: str) -> None:
        self.products, self.notes = products, notes
        self.weights = torch.full((2048, 2048), 0.01, device=DEVICE, dtype=torch.bfloat16)

    @rose.node(updates="weights")
    def learn(self, step: int) -> Any:
        batch = torch.arange(15488, device=DEVICE)[:, None].expand(-1, 2048).bfloat16() * (step + 1)
        if self.products:
            found = batch.cos() @ self.weights  # every row of it counts
            whole = found[:14336].view(7, 2048, 2048).sum(0) + found[-2048:]
            self.weights = torch.tanh(self.weights + whole * 0.01)
        else:
            self.weights = torch.tanh(self.weights + batch[:2048].cos() * 0.1)
        cuda: Any = torch.cuda
        seen = cuda.get_device_properties(0).multi_processor_count if DEVICE != "cpu" else 0
        with open(self.notes, "a", encoding="ascii") as notes:
            notes.write(f"{seen}\n")
        return self.weights.clone()


def build(products: bool, notes: str) -> Callable[[int], Any]:
    """Learns, a step at a time."""
    trainer = Trainer(products, notes)

    @rose.iteration
    def iteration(step: int) -> Any:
        return trainer.learn(step)

    return iteration


def main(work: str, daemon: MpsDaemon) -> None:
    """Tune, then train natively as long, and tell both apart."""
    folder = Path(tempfile.mkdtemp())
    this = functools.partial(build, work == "products", str(folder / "sms"))
    with program():
        iteration = this()
    with program():
        native = this()

    def first() -> Callable[[], Any]:
        whole = this()
        return lambda: whole(0)

    base = dataclasses.replace(observed_plan(first), kept_native=True)
    search = Offered({"move": observed_plan(first, processes=("trainer",))}, base, "iteration", 1.0)
    results: list[Any] = []
    levels = quota_levels(sms_by_percent(daemon, PERCENTS))
    tuning = tune(
        iteration,
        folder=folder,
        rounds=1,
        arguments=lambda index: (index,),
        on_iteration=lambda _, result: results.append(result),
        search=lambda _: search,
        quota=worker_quota("trainer", levels),
        settings=TuneSettings(activity="none", clock=Clock(), warm_up=0),
    )
    assert tuning.quota is not None
    assert tuning.plan is not None
    expected = [native(index) for index in range(tuning.iterations)]
    print(
        json.dumps(
            {
                "same": all(torch.equal(a, b) for a, b in zip(results, expected, strict=True)),
                "sms": sorted(set(map(int, (folder / "sms").read_text().split()))),
                "levels": [[level.percent, level.sms] for level in levels],
                "measured": [t.level.percent for t in tuning.quota.trials if not t.failed],
                "refused": {t.level.percent: t.failed for t in tuning.quota.trials if t.failed},
                "percent": [w.percent for w in tuning.plan.workers if w.name == "trainer"],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    pipe, log = (Path(os.environ[f"CUDA_MPS_{name}_DIRECTORY"]) for name in ("PIPE", "LOG"))
    main(sys.argv[1], MpsDaemon(pipe, log))
