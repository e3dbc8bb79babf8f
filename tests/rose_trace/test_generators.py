"""Draws from process-wide generators are told in the trace, and planning treats them as states."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

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


def test_cuda_generators_are_known_and_set_before_cuda_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch: Any = pytest.importorskip("torch")
    seed = torch.manual_seed
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    usual = generators.capture()
    seed(7)
    first = generators.capture()
    seven = (7).to_bytes(8, "little") + bytes(8)  # a seed, and nothing drawn
    assert first.cuda is not None
    assert [state.tobytes() for state in first.cuda] == [seven, seven]
    drawn = np.frombuffer(seven[:8] + (4).to_bytes(8, "little"), np.uint8)
    later = dataclasses.replace(first, cuda=(drawn, drawn))
    generators.restore(later)
    assert generators.changed(later, generators.capture()) == ()
    assert generators.changed(first, generators.capture()) == ("cuda",)
    seed(9)
    again = generators.capture().cuda
    assert again is not None
    assert again[1].tobytes()[:8] == (9).to_bytes(8, "little")
    generators.restore(usual)
