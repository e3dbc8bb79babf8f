"""The planned program gives the native result, bit for bit, under every plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rose_exec.replay import replay
from rose_trace import pytree
from rose_trace.component import program
from tests.rose_exec import programs
from tests.rose_exec.observe import observed_plan

SPLIT = "split-spatial{loop=iteration/rollout/interact groups=2}"
CHAINS = "split-temporal{loop=iteration/rollout groups=2}"
REWIRE = "rewire{node=iteration/learn beside=iteration/rollout}"


def native(iterations: int = 2) -> list[Any]:
    with program():
        iteration = programs.build()
        return [iteration() for _ in range(iterations)]


def assert_identical(a: Any, b: Any) -> None:
    left, one = pytree.flatten(a)
    right, two = pytree.flatten(b)
    assert one == two
    for x, y in zip(left, right, strict=True):
        assert type(x) is type(y)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.mark.parametrize(
    ("transforms", "processes"),
    [
        ((), ()),
        ((SPLIT, "interleave", "merge"), ()),
        ((CHAINS, "interleave", "merge"), ()),
        ((REWIRE,), ("trainer",)),
        ((SPLIT, "interleave", "merge", REWIRE), ("trainer", "policy")),
    ],
    ids=["inline", "split", "chains", "rewire", "both"],
)
def test_planned_run_equals_native(transforms: tuple[str, ...], processes: tuple[str, ...]) -> None:
    plan = observed_plan(programs.build, *transforms, rows=programs.ROWS, processes=processes)
    with replay(plan, build=programs.build, strict=True) as session:
        planned = [session.built() for _ in range(2)]
    assert_identical(planned, native())
