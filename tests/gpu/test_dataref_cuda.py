"""Identity of values on a CUDA device, read from recorded rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import rose_trace as rose

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

Rows = list[dict[str, Any]]
Recorded = Callable[[Callable[[], Any]], Rows]
DEVICE = "cuda"


class Pair(NamedTuple):
    left: Any
    right: Any


@rose.node(pure=True)
def make(rows: int) -> torch.Tensor:
    return torch.zeros(rows, 8, device=DEVICE)


@rose.node(pure=True)
def use(*values: Any) -> None:
    del values


@rose.node(updates="shared.values")
def add(values: torch.Tensor) -> torch.Tensor:
    return values.add_(1.0)


def of(rows: Rows, node: str) -> Rows:
    return [row for row in rows if row["node"] == node]


def span(ref: dict[str, Any]) -> tuple[int, int]:
    """First byte and one past the last byte."""
    return ref["offset"], ref["offset"] + ref["nbytes"]


def test_views_and_writes_in_place_are_byte_ranges_of_one_storage(recorded: Recorded) -> None:
    def program() -> None:
        whole = make(4)
        use(whole, whole[1:3], whole[:, 2])
        use(add(whole[2:]))
        use(whole)

    rows = recorded(program)
    made, added = of(rows, "make")[0], of(rows, "add")[0]
    whole, middle, column = of(rows, "use")[0]["inputs"]
    assert {ref["device"] for ref in (whole, middle, column)} == {"cuda:0"}
    assert whole["ref"] == middle["ref"] == column["ref"] == made["outputs"][0]["ref"] != 0
    assert (span(whole), span(middle), span(column)) == ((0, 128), (32, 96), (8, 8 + 3 * 32 + 4))
    assert whole["producer"] == made["span_id"]
    # Written in place: same storage, the writer as producer, also for who looks at all of it.
    assert added["inputs"][0]["ref"] == added["outputs"][0]["ref"] == whole["ref"]
    assert span(added["outputs"][0]) == (64, 128)
    assert [row["inputs"][0]["producer"] for row in of(rows, "use")[1:]] == [added["span_id"]] * 2


def test_an_address_that_is_used_again_is_not_the_same_value(recorded: Recorded) -> None:
    addresses: set[int] = set()

    def program() -> None:
        for _ in range(10_000):
            value = make(32)
            addresses.add(value.data_ptr())
            del value  # the allocator hands the same block out again

    refs = [row["outputs"][0]["ref"] for row in of(recorded(program), "make")]
    assert len(addresses) < 100
    assert len(refs) == len(set(refs)) == 10_000
    assert 0 not in refs


def test_arrays_of_pinned_tensors_are_the_tensors_storage(recorded: Recorded) -> None:
    pinned = torch.zeros(6, pin_memory=True)

    def program() -> None:
        use(pinned, pinned.numpy()[2:], pinned.to(DEVICE, non_blocking=True))

    (row,) = of(recorded(program), "use")
    tensor, array, copy = row["inputs"]
    assert tensor["ref"] == array["ref"] != 0
    assert (span(tensor), span(array)) == ((0, 24), (8, 24))
    assert copy["ref"] not in (0, tensor["ref"])
    assert (tensor["device"], copy["device"]) == ("cpu", "cuda:0")


def test_nested_containers(recorded: Recorded) -> None:
    shared = torch.zeros(3, device=DEVICE)

    def program() -> None:
        use({"a": Pair(shared, [shared[1:], 7]), "b": None, "c": (torch.zeros(1),)})

    (row,) = of(recorded(program), "use")
    assert [(ref["slot"], ref["device"]) for ref in row["inputs"]] == [
        ("0.a.left", "cuda:0"),
        ("0.a.right.0", "cuda:0"),
        ("0.a.right.1", ""),
        ("0.c.0", "cpu"),
    ]
    left, part, number, other = (ref["ref"] for ref in row["inputs"])
    assert left == part != 0
    assert number == 0
    assert other not in (0, left)


@rose.component
class Captured:
    """A policy that replays one captured graph: its output lives in one place."""

    def __init__(self) -> None:
        self.weights = torch.full((8,), 2.0, device=DEVICE)
        self.given = torch.zeros(4, 8, device=DEVICE)
        self.output = torch.zeros(0)
        self.graph = torch.cuda.CUDAGraph()

    @rose.node(reads="weights", rows=True)
    def scale(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.weights

    @rose.node(updates="graph")
    def capture(self) -> None:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self.scale(self.given)
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(self.graph):
            self.output = self.scale(self.given)

    @rose.node(reads=("weights", "graph"), rows=True)
    def act(self, obs: torch.Tensor) -> torch.Tensor:
        self.given.copy_(obs)
        self.graph.replay()
        return self.output


@rose.node(pure=True, rows=True)
def step(action: torch.Tensor) -> torch.Tensor:
    return action + 1.0


@rose.iteration(name="replays")
def replays(policy: Captured) -> torch.Tensor:
    obs = torch.ones(4, 8, device=DEVICE)
    for _ in range(4):
        obs = step(policy.act(obs))
    return obs


def test_outputs_of_a_captured_graph_are_told_apart_by_their_producer(recorded: Recorded) -> None:
    policy = Captured()
    final: list[torch.Tensor] = []

    def program() -> None:
        policy.capture()
        final.append(replays(policy))

    rows = recorded(program)
    acts, steps = of(rows, "captured.act"), of(rows, "step")
    refs = {act["outputs"][0]["ref"] for act in acts}
    assert len(refs) == 1
    assert refs != {0}
    assert [s["inputs"][0]["ref"] for s in steps] == [*refs] * 4
    assert [s["inputs"][0]["producer"] for s in steps] == [act["span_id"] for act in acts]
    # What was recorded during the capture neither broke it nor has a device end.
    expected = torch.full((4, 8), 16.0 + 8 + 4 + 2 + 1, device=DEVICE)
    assert torch.equal(final[0], expected)
    inside = of(rows, "captured.scale")
    assert len(inside) == 2
    assert inside[1]["device_end_ns"] is None


def test_facts_order_a_replay_behind_the_readers_of_the_one_before(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="the optimizer's database is not installed here")
    from rose_opt.facts import build_facts
    from rose_trace.component import program
    from rose_trace.records import Access, StateAccess

    with program():
        policy = Captured()
    policy.capture()
    path = tmp_path / "trace.parquet"
    with rose.record(path, activity="none"):
        for _ in range(2):
            replays(policy)
    nodes = {node.name: node.accesses.accesses for node in build_facts(path).graph.nodes}
    state = "buffer.captured.act"
    assert Access(state, StateAccess.UPDATE) in nodes["captured.act"]
    assert Access(state, StateAccess.READ) in nodes["step"]


def test_devices_are_told_apart(recorded: Recorded) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    first, second = (torch.zeros(4, device=f"cuda:{k}") for k in range(2))
    (row,) = of(recorded(lambda: use(first, second)), "use")
    assert [ref["device"] for ref in row["inputs"]] == ["cuda:0", "cuda:1"]
    assert row["inputs"][0]["ref"] != row["inputs"][1]["ref"]
