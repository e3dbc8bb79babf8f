from __future__ import annotations

import gc
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import rose_trace as rose
from rose_trace import dataref, layout
from rose_trace.layout import Signature

Rows = list[dict[str, Any]]
Recorded = Callable[[Callable[[], Any]], Rows]


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Step:
    obs: Any
    reward: float


def describe_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Signature, Sequence[int]]:
    tokens, numbers = dataref.describe_inputs(args, kwargs)
    return layout.input_signature(tokens), numbers


def describe_result(value: Any) -> tuple[Signature, Sequence[int]]:
    tokens, numbers = dataref.describe_result(value, (1, 2, 3))
    return layout.result_signature(tokens), numbers


def _refs(value: Any) -> list[tuple[str, int, int, int]]:
    """Slot, reference, offset and bytes of every leaf of one argument."""
    signature, numbers = describe_inputs((value,), {})
    return [
        (leaf.slot, numbers[3 * i], numbers[3 * i + 2] * leaf.unit, leaf.nbytes)
        for i, leaf in enumerate(signature.leaves)
    ]


def test_views_share_the_reference_and_differ_in_bytes() -> None:
    whole = torch.zeros(4, 8)
    (_, ref, offset, nbytes), (_, same, start, part) = _refs((whole, whole[1:3]))
    assert ref == same != 0
    assert (offset, nbytes) == (0, 4 * 8 * 4)
    assert (start, part) == (8 * 4, 2 * 8 * 4)


def test_a_strided_view_covers_its_first_to_its_last_element() -> None:
    whole = torch.zeros(4, 8)
    [(_, _, offset, nbytes)] = _refs(whole[:, 2])
    assert (offset, nbytes) == (2 * 4, 3 * 8 * 4 + 4)
    [(_, _, _, nothing)] = _refs(whole[:0])
    assert nothing == 0


def test_a_storage_keeps_its_reference_when_its_tensors_go() -> None:
    whole = torch.zeros(4, 8)
    ref = _refs(whole)[0][1]
    part = whole[2:]
    del whole
    gc.collect()
    assert _refs(part)[0][1] == ref
    assert _refs(part.detach())[0][1] == ref
    assert _refs(part.clone())[0][1] not in (0, ref)


def test_freed_addresses_are_never_mistaken() -> None:
    seen = {_refs(torch.zeros(256))[0][1] for _ in range(2000)}
    seen |= {_refs(np.zeros(256))[0][1] for _ in range(2000)}
    assert len(seen) == 4000


def test_arrays_have_the_identity_of_their_buffer() -> None:
    whole = np.zeros((4, 8), np.float32)
    view = whole[1:][:, 2:]
    (_, ref, _, nbytes), (_, same, offset, part) = _refs((whole, view))
    assert ref == same != 0
    assert nbytes == 128
    assert (offset, part) == (32 + 8, 2 * 32 + 6 * 4)
    [(_, backwards, start, _)] = _refs(whole[::-1])
    assert (backwards, start) == (ref, 3 * 32)
    assert _refs(whole.copy())[0][1] not in (0, ref)


def test_an_array_of_a_tensor_is_the_tensors_storage() -> None:
    tensor = torch.zeros(6)
    (_, ref, _, _), (_, same, offset, nbytes) = _refs((tensor, tensor.numpy()[2:]))
    assert (same, offset, nbytes) == (ref, 8, 16)


def test_arrays_over_one_foreign_buffer() -> None:
    with mmap.mmap(-1, 64) as owner:
        a, b = np.frombuffer(owner, np.uint8), np.frombuffer(memoryview(owner), np.uint8)[8:]
        (_, ref, start, _), (_, other, later, _) = _refs((a, b))
        assert ref == other != 0
        assert later - start == 8
        del a, b
    unwatched = np.frombuffer(bytearray(8), np.uint8)  # whoever else writes there cannot be known
    assert _refs(unwatched)[0][1] == 0


def test_slots_of_nested_containers() -> None:
    value = {
        "a": Pair(torch.zeros(1), [torch.zeros(1), 3]),
        "b": Step(np.zeros(2), 1.0),
        "c": None,
        "d": {1: "x"},
    }
    slots = [slot for slot, *_ in _refs(value)]
    assert slots == ["0.a.left", "0.a.right.0", "0.a.right.1", "0.b.obs", "0.b.reward", "0.d"]
    signature, _ = describe_inputs((1,), {"x": (2, torch.zeros(1))})
    assert [leaf.slot for leaf in signature.leaves] == ["0", "x.0", "x.1"]
    assert [leaf.dtype for leaf in signature.leaves] == ["int", "int", "float32"]
    assert describe_result(torch.zeros(2))[0].leaves[0].slot == ""
    assert describe_inputs((), {})[0].leaves == ()


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2, 3),
        (torch.zeros(2), [np.zeros((1, 2), np.int16)], {"k": None}),
        Pair(1, "x"),
        Step(torch.zeros(1), 2.0),
        {"a": {}, "b": ()},
        {1: 2},
        np.float32(3),
        object(),
        torch.zeros(2, dtype=torch.bfloat16).requires_grad_(),
        None,
    ],
)
def test_the_structure_is_that_of_pytree_and_leaves_match_it(value: Any) -> None:
    from rose_trace import pytree

    for _ in range(2):  # made, then remembered
        signature, numbers = describe_result(value)
        flat, structure = pytree.flatten(value)
        assert signature.structure == structure.to_json()
        assert len(signature.leaves) == len(flat) == len(numbers) // 3


def test_shapes_types_and_devices_do_not_share_a_signature() -> None:
    values: list[Any] = [
        torch.zeros(2, 3),
        torch.zeros(3, 2),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(3, 2).t(),
        torch.zeros(2, 3, device="meta"),
        np.zeros((2, 3)),
        np.zeros((2, 3), np.float32),
        np.zeros((3, 2)).T,
        (torch.zeros(2, 3),),
        [torch.zeros(2, 3)],
        {"a": torch.zeros(2, 3)},
        {"b": torch.zeros(2, 3)},
        1,
        1.0,
        True,
        np.float32(1),
    ]
    signatures = [describe_inputs((value,), {})[0] for value in values]
    assert len({id(s) for s in signatures}) == len(values)
    again = [describe_inputs((value,), {})[0] for value in values]
    assert [id(s) for s in again] == [id(s) for s in signatures]


def test_values_without_a_storage_are_unknown() -> None:
    sparse = torch.eye(3).to_sparse()
    assert [ref for _, ref, *_ in _refs((sparse, 1, "x", object(), np.float32(1)))] == [0] * 5
    cycle: list[Any] = []
    cycle.append(cycle)
    signature, numbers = describe_inputs((cycle,), {})
    assert signature is layout.TOO_LARGE
    assert numbers == (0, 0, 0)
    assert describe_inputs(([0] * (dataref.MAX_LEAVES + 1), [1]), {})[0] is layout.TOO_LARGE


def test_producers(recorded: Recorded) -> None:
    buffer = torch.zeros(4)

    @rose.node(pure=True)
    def make() -> torch.Tensor:
        return torch.zeros(4)

    @rose.node
    def outer() -> torch.Tensor:
        return make()[1:]

    @rose.node
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    @rose.node
    def use(x: torch.Tensor) -> None: ...

    @rose.node
    def observe() -> torch.Tensor:
        return buffer.add_(1)

    def program() -> None:
        made = outer()
        use(made)
        use(scale(made))
        use(observe())
        use(observe())
        use(torch.zeros(4))

    rows = recorded(program)
    names = {r["span_id"]: (r["node"], r["ordinal"]) for r in rows}
    producers = [names.get(r["inputs"][0]["producer"]) for r in rows if r["node"] == "use"]
    # What a child made keeps the child's name; what is written in place or handed out again does not.
    assert producers == [("make", 0), ("scale", 0), ("observe", 0), ("observe", 1), None]
    uses = [r["inputs"][0]["ref"] for r in rows if r["node"] == "use"]
    assert uses[0] == uses[1] != uses[2] == uses[3] != 0


def test_a_loops_carry_and_outputs_keep_the_name_of_the_node_that_made_them(
    recorded: Recorded,
) -> None:
    @rose.node(pure=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @rose.loop
    def walk(carry: torch.Tensor, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = step(carry)
        return made, made * 2  # the product is glue: the loop hands it out

    @rose.node(pure=True)
    def use(x: Any) -> None: ...

    def program() -> None:
        carry, outputs = walk(torch.zeros(2), count=2)
        use((carry, outputs))

    rows = recorded(program)
    names = {r["span_id"]: (r["node"], tuple(r["iteration"])) for r in rows}
    used = rows[-1]["inputs"]
    assert [(r["slot"], names[r["producer"]]) for r in used] == [
        ("0.0", ("step", (1,))),
        ("0.1.0", ("walk", ())),
        ("0.1.1", ("walk", ())),
    ]
    steps = [r for r in rows if r["node"] == "step"]
    assert steps[1]["inputs"][0]["producer"] == steps[0]["span_id"]
    assert steps[1]["inputs"][0]["ref"] == steps[0]["outputs"][0]["ref"]


def test_inference_and_requires_grad_tensors(recorded: Recorded) -> None:
    @rose.node(pure=True)
    def make() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            inferred = torch.zeros(2)
        return inferred, torch.zeros(2, requires_grad=True)

    rows = recorded(make)
    assert len({r["ref"] for r in rows[0]["outputs"]} - {0}) == 2
