"""Torch settings that glue code makes hold for the nodes it calls, wherever they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rose_trace as rose
from tests.rose_exec.test_programs import both


@rose.component
class Net:
    """Torch settings decide what it computes."""

    def __init__(self) -> None:
        import torch

        self.weights = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()

    @rose.node(reads="weights")
    def forward(self, x: Any) -> Any:
        import torch

        return {"y": torch.nn.functional.linear(x, self.weights), "made": torch.ones(2)}


def under_torch_settings() -> Callable[[], Any]:
    import torch

    net = Net()

    @rose.iteration(name="root")
    def iteration() -> Any:
        x = torch.linspace(0, 1, 6).view(2, 3)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            low = net.forward(x)
        torch.set_default_dtype(torch.float64)
        try:
            with torch.no_grad():
                high = net.forward(x.float())
        finally:
            torch.set_default_dtype(torch.float32)
        with torch.inference_mode():
            low_y = low["y"].float().numpy()
        return low_y, str(low["y"].dtype), str(high["made"].dtype), low["y"].requires_grad

    return iteration


@pytest.mark.parametrize("processes", [(), ("net",)], ids=["inline", "process"])
def test_torch_settings_travel_with_the_call(processes: tuple[str, ...]) -> None:
    both(under_torch_settings, processes=processes)


@rose.component
class Seeded:
    """Draws from torch's own generator, and loads torch only then."""

    def __init__(self) -> None:
        import torch

        self.weights = torch.rand(3)

    @rose.node(reads="weights")
    def look(self) -> Any:
        return self.weights


@pytest.mark.parametrize("seed", [None, 11])
def test_a_constructor_in_a_worker_goes_on_with_the_generator(seed: int | None) -> None:
    import torch

    def build() -> Callable[[], Any]:
        torch.manual_seed(seed if seed is not None else torch.Generator().initial_seed())  # pyright: ignore[reportUnknownMemberType]
        seeded = Seeded()

        @rose.iteration(name="root")
        def iteration() -> Any:
            return seeded.look(), torch.rand(2)

        return iteration

    both(build, processes=("seeded",))
