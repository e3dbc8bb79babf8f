"""How many whole instances a plan may have: what a person says, else what there is room for."""

from __future__ import annotations

import pytest

from rose_opt.settings import Memory

GIB = 1 << 30
TOLD = {"host_bytes": 100 * GIB, "host_peak_bytes": 30 * GIB}


@pytest.mark.parametrize(
    ("memory", "most"),
    [
        (Memory(), 1),
        (Memory().measured(TOLD), None),
        (Memory(max_instances=2), 2),
        (Memory(max_instances=1).measured(TOLD), 1),
        (Memory().measured({"host_bytes": 100 * GIB}), 1),
    ],
)
def test_what_is_not_known_is_not_built_twice(memory: Memory, most: int | None) -> None:
    assert memory.most_instances == most


def test_a_further_instance_takes_at_most_what_everything_does() -> None:
    memory = Memory().measured(TOLD)
    assert memory.shortage({"sim": 3}) is None  # 30 and twice 30 of 90
    assert memory.shortage({"sim": 4}) == (
        f"expected at most {90 * GIB} bytes of host memory, got {120 * GIB}"
    )
    assert memory.shortage({"sim": 1}) is None
    assert memory.shortage({"sim": 2, "policy": 3}) is not None


def test_what_is_said_of_a_component_counts() -> None:
    memory = Memory(component_host_bytes={"sim": GIB}).measured(TOLD)
    assert memory.shortage({"sim": 16}) is None
    assert Memory(max_instances=9).measured(TOLD).shortage({"sim": 9}) is None


def test_a_device_has_room_of_its_own() -> None:
    told = {**TOLD, "gpu_bytes": 80 * GIB, "gpu_peak_bytes": 50 * GIB}
    assert "GPU memory" in (Memory().measured(told).shortage({"sim": 2}) or "")
    assert Memory(gpu_bytes=200 * GIB).measured(told).shortage({"sim": 2}) is None
