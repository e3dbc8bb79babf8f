"""How large the components of a program are, as a trace tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import rose_trace as rose
from rose_trace.component import program
from rose_trace.component_sizes import component_sizes, held_bytes
from rose_trace.memory import together
from rose_trace.parquet import read_metadata


class Holder:
    """Anything with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@rose.component
class Scale:
    """Holds a module, and an array."""

    def __init__(self, size: int) -> None:
        self.model = torch.nn.Linear(size, 1, bias=False)
        self.rows = np.zeros(size, np.float64)

    @rose.node(reads="weights")
    def weigh(self) -> float:
        return float(self.rows.sum())


@rose.component
class Shop:
    """Holds another component."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.stock = [np.zeros(3, np.uint8)]


class Rude:
    """Answers for its attributes itself."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("not yours")


def test_each_storage_counts_once_whatever_looks_at_it() -> None:
    whole = torch.zeros(10)
    array = np.zeros((4, 4), np.float32)
    held = Holder(whole=whole, view=whole[2:4], twice={"again": [whole, (array, array.T[1:])]})
    held.__dict__["itself"] = held
    assert held_bytes(held) == (10 * 4 + 16 * 4, 0)


def test_gradients_and_optimizers_count() -> None:
    model: Any = torch.nn.Linear(8, 2, bias=False)
    optimizer: Any = torch.optim.Adam(model.parameters())
    model(torch.ones(8)).sum().backward()
    optimizer.step()
    host, gpu = held_bytes(Holder(optimizer=optimizer))
    assert gpu == 0
    assert 4 * 16 * 4 <= host <= 4 * 16 * 4 + 64  # weight, gradient, two moments, and a step count


def test_components_stand_for_themselves_and_the_dead_are_not_counted() -> None:
    with program():
        scale = Scale(5)
        Scale(7)  # nobody keeps it
        shop = Shop(scale)
        assert component_sizes() == {"host_bytes of scale": 5 * 4 + 5 * 8, "host_bytes of shop": 3}
        shop.__dict__["rude"] = Rude()
        assert "host_bytes of scale" in component_sizes()


def test_a_trace_tells_the_sizes(tmp_path: Path) -> None:
    with program():
        scale = Scale(5)

        @rose.iteration
        def iteration() -> float:
            return scale.weigh()

        with rose.record(tmp_path / "trace.parquet"):
            iteration()
    assert read_metadata(tmp_path / "trace.parquet").memory["host_bytes of scale"] == 60


def test_of_several_processes_the_one_that_holds_it_tells() -> None:
    told = [{"host_bytes": 8, "host_bytes of a": 5}, {"host_bytes": 8, "host_bytes of a": 7}]
    assert together([dict(item) for item in told]) == {"host_bytes": 8, "host_bytes of a": 7}
