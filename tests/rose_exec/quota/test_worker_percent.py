"""A worker of a plan is a client of the program's daemon, at the plan's percentage, or is not started."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rose_exec.driver import Driver
from rose_exec.quota.mps import PERCENTAGE, MpsError, daemon
from rose_exec.replay import replay
from rose_exec.tune import TuneSettings, tune
from rose_exec.worker_trials import worker_quota
from rose_opt.measure import IterationMeasurement, QuotaLevel, search_quota
from rose_opt.plan import Plan, PlanRefused, verify
from rose_trace import hooks
from rose_trace.component import program
from tests.rose_exec import programs
from tests.rose_exec import worker_requests as requests
from tests.rose_exec.observe import observed_plan
from tests.rose_exec.quota import limited_program
from tests.rose_exec.test_tune import Offered, offered
from tests.rose_exec.worker_requests import plain

REWIRE = "rewire{node=iteration/learn beside=iteration/rollout}"


def plan(percent: int, kind: str = "process") -> Plan:
    made = observed_plan(programs.build, REWIRE, processes=("trainer",))
    (worker,) = (worker for worker in made.workers if worker.name == "trainer")
    limited = dataclasses.replace(worker, percent=percent, kind=kind)
    workers = (limited if each is worker else each for each in made.workers)
    return dataclasses.replace(made, workers=tuple(workers))


@pytest.fixture
def told_of_a_daemon(
    control: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> Generator[None]:
    """A daemon runs, and this process is told of it."""
    control()
    with daemon() as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.usefixtures("told_of_a_daemon")
def test_a_worker_starts_at_its_percentage() -> None:
    with replay(plan(40), build=programs.build, strict=True) as session:
        worker = session._placement.workers["trainer"]
        told = plain(worker.run(requests.job(os.getenv, PERCENTAGE)).result(120))
        assert session.built() is not None
    assert told == "40"
    assert PERCENTAGE not in os.environ


@pytest.mark.parametrize("told", [None, "/nowhere"])
def test_without_a_daemon_it_is_not_started(
    control: Callable[..., None], monkeypatch: pytest.MonkeyPatch, told: str | None
) -> None:
    control()
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    if told is not None:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", told)
    with (
        pytest.raises(MpsError, match=r"Worker of 40 %: expected (an MPS|a running) daemon"),
        replay(plan(40), build=programs.build, strict=True),
    ):
        pass


@pytest.mark.parametrize(("percent", "kind"), [(101, "process"), (-1, "process"), (50, "inline")])
def test_a_percentage_is_one_of_a_process(percent: int, kind: str) -> None:
    with pytest.raises(PlanRefused, match="expected a percentage in"):
        verify(plan(percent, kind))


class Iterations:
    """Takes the less time the nearer a worker is to 60 %."""

    def __init__(self) -> None:
        self.percents: list[int] = []

    def iteration(self, plan: Plan) -> IterationMeasurement:
        (percent,) = (worker.percent for worker in plan.workers if worker.name == "trainer")
        self.percents.append(percent)
        return IterationMeasurement(1000 + abs(percent - 60))


def test_the_percentage_of_a_worker_is_searched() -> None:
    levels = [QuotaLevel(k, 12 * k, 10 * k) for k in range(1, 11)]
    measured = Iterations()
    found: Any = worker_quota("trainer", levels)(plan(0), measured)
    trials, offered = found
    result = search_quota(trials, offered, 1040)
    assert result.level.percent == 60
    assert measured.percents[0] == 100
    (limited,) = (w for w in trials.limited(result.level).workers if w.name == "trainer")
    assert limited.percent == 60
    assert worker_quota("nobody", levels)(plan(0), measured) is None


class Clock:
    """Ticks by what runs: natively, or with the trainer's process at a percentage."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        driver = hooks.active
        if isinstance(driver, Driver):
            percents = [w.percent for w in driver._plan.workers if w.name == "trainer"]
            self.now += 1000 + abs((percents[0] or 100) - 60)
        else:
            self.now += 5000
        return self.now


@pytest.mark.usefixtures("told_of_a_daemon")
def test_tuning_puts_the_percentage_into_the_plan(tmp_path: Path) -> None:
    with program():
        iteration = programs.build()
    search = Offered({REWIRE: plan(0)}, offered().base, "iteration", 1.0)
    levels = [QuotaLevel(k, 24 * k, 20 * k) for k in range(1, 6)]
    tuning = tune(
        iteration,
        folder=tmp_path,
        rounds=1,
        search=lambda _: search,
        quota=worker_quota("trainer", levels),
        settings=TuneSettings(activity="none", clock=Clock(), warm_up=0),
    )
    assert tuning.quota is not None
    assert tuning.quota.level.percent == 60
    assert tuning.plan is not None
    assert [w.percent for w in tuning.plan.workers if w.name == "trainer"] == [60]


@pytest.mark.usefixtures("told_of_a_daemon")
@pytest.mark.parametrize(
    ("factor", "below", "bits", "percent"),
    [
        (1.0, 0, "exact", 60),  # nothing is wrong
        (1.001, 70, "exact", 80),  # the best level gives other bits
        (1.001, 70, "any", 60),  # which may be those of another order of sums
        (1.5, 70, "any", 80),  # or may not
        (math.nan, 70, "any", 80),
        (math.nan, 100, "exact", 0),
    ],
)
def test_a_percentage_that_changes_results_is_not_trained_with(
    tmp_path: Path,
    factor: float,
    below: int,
    bits: Any,
    percent: int,
) -> None:
    build = functools.partial(limited_program.build, factor, below)
    with program():
        iteration = build()
    with program():
        native = build()
    base = dataclasses.replace(observed_plan(build), kept_native=True)
    search = Offered({"move": observed_plan(build, processes=("trainer",))}, base, "iteration", 1.0)
    levels = [QuotaLevel(k, 24 * k, 20 * k) for k in range(1, 6)]
    results: list[Any] = []
    np.random.seed(3)
    tuning = tune(
        iteration,
        folder=tmp_path,
        rounds=1,
        on_iteration=lambda _, result: results.append(result),
        search=lambda _: search,
        quota=worker_quota("trainer", levels),
        settings=TuneSettings(activity="none", clock=Clock(), warm_up=0, bits=bits),
    )
    assert tuning.plan is not None
    assert [w.percent for w in tuning.plan.workers if w.name == "trainer"] == [percent]
    assert len(results) == tuning.iterations
    np.random.seed(3)
    expected = [native() for _ in results]
    if percent == 60 and factor != 1.0:
        assert results == pytest.approx(expected, rel=0.1)
    else:
        assert results == expected
    refused = (
        [trial.failed for trial in tuning.quota.trials if trial.failed] if tuning.quota else []
    )
    assert bool(refused) == (percent != 60)
    for text in refused:
        assert re.match(
            r"Iteration \d+ with workers at their percentages: expected what it comes to", text
        )
        assert "Limit a lane instead" in text
