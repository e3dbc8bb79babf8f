from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose_trace import pytree
from rose_trace.pytree import Leaf, Structure


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Step:
    obs: Any
    extra: Any = None
    made: int = field(default=3, init=False)


leaves = st.one_of(st.integers(), st.text(max_size=3), st.booleans(), st.just({1: 2}))
trees: st.SearchStrategy[Any] = st.recursive(
    st.one_of(leaves, st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Step, inner, inner),
    ),
)


@given(trees)
def test_round_trips(value: Any) -> None:
    flat, structure = pytree.flatten(value)
    again = pytree.unflatten(structure, iter(flat))
    assert again == value
    assert type(again) is type(value)
    assert len(list(structure.leaves())) == len(flat)
    decoded = Structure.from_json(structure.to_json())
    assert decoded == structure
    assert decoded.to_json() == structure.to_json()
    assert structure.matches(structure)
    assert pytree.map_leaves(lambda leaf: leaf, value) == value
    count: list[Any] = []
    pytree.map_leaves(count.append, value)
    assert len(count) == len(flat)


@given(trees, trees)
def test_matching_is_equality_up_to_shapes(a: Any, b: Any) -> None:
    first, second = pytree.flatten(a)[1], pytree.flatten(b)[1]
    assert first.matches(second) == (first == second)  # no tensors here: nothing else may differ


def test_leaves_are_described() -> None:
    assert pytree.describe_leaf(torch.zeros(2, 3, dtype=torch.bfloat16)) == Leaf(
        "tensor", "bfloat16", (2, 3)
    )
    assert pytree.describe_leaf(np.zeros((4,), np.int16)) == Leaf("array", "int16", (4,))
    assert pytree.describe_leaf("x") == Leaf("str")
    big, small = pytree.flatten([torch.zeros(4, 3)])[1], pytree.flatten([torch.zeros(2, 3)])[1]
    assert big != small
    assert big.matches(small)
    assert not big.matches(pytree.flatten([np.zeros((4, 3))])[1])
    assert not big.matches(pytree.flatten((torch.zeros(4, 3),))[1])


def test_classes_are_found_by_name() -> None:
    assert pytree.resolve_class(f"{__name__}:Pair") is Pair

    @dataclass
    class Local:
        x: int

    structure = pytree.flatten(Local(3))[1]
    assert pytree.unflatten(Structure.from_json(structure.to_json()), iter([4])) == Local(4)
    for missing in ("no.such.module:X", f"{__name__}:Nothing"):
        with pytest.raises(LookupError, match=f"Class {missing}: expected an importable class"):
            pytree.resolve_class(missing)
