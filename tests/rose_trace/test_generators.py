"""Draws from process-wide generators are told in the trace, and planning treats them as states."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import rose_trace as rose
from rose_trace import generators
from rose_trace.parquet import read_spans


@rose.node(pure=True)
def honest(x: float) -> float:
    return x + 1


@rose.node(pure=True)
def draws(x: float) -> float:
    return x + float(np.random.rand()) + random.random()


def attributes(path: Path) -> dict[str, dict[str, str]]:
    rows = read_spans(path).to_pylist()
    return {row["node"]: dict(row["attributes"] or []) for row in rows}


def test_draws_are_told_and_unchanged(tmp_path: Path) -> None:
    random.seed(1)
    np.random.seed(1)
    plain = [draws(1.0) for _ in range(12)]
    random.seed(1)
    np.random.seed(1)
    with rose.record(tmp_path / "trace.parquet", activity="none"):
        assert [draws(1.0) for _ in range(12)] == plain
        honest(1.0)
    told = attributes(tmp_path / "trace.parquet")
    assert told["draws"]["generators"] == "numpy,random"
    assert "generators" not in told["honest"]


def test_changed_names_each_generator() -> None:
    torch = pytest.importorskip("torch")
    before = generators.capture()
    assert generators.changed(before, generators.capture()) == ()
    torch.rand(1)
    assert generators.changed(before, generators.capture()) == ("torch",)
    generators.restore(before)
    assert generators.changed(before, generators.capture()) == ()
