from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rose_trace as rose
from rose_trace import dataref, layout
from rose_trace.invocation import Invocation
from rose_trace.native import hot_path
from tests.properties import examples
from tests.rose_trace.native_recording import native_recording, numbers_of

pytestmark = pytest.mark.usefixtures("built")


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Box:
    content: Any
    label: str = "box"
    hidden: int = dataclasses.field(default=0, init=False)


class Words(list[Any]):
    """Not a list exactly: a leaf."""


class Own(torch.Tensor):
    """A subclass, which is asked in Python."""


base = torch.arange(24.0).reshape(4, 6)
array = np.arange(12.0).reshape(3, 4)
LEAVES: list[Any] = [
    base,
    base[1:, ::2],
    base.t(),
    base.flatten()[5],
    base.expand(2, 4, 6),
    torch.zeros(0, 3),
    torch.ones(2, 2, dtype=torch.complex64).conj(),
    torch.ones(2, 2, dtype=torch.complex64).conj().imag,
    torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)),
    torch.zeros(2).requires_grad_().exp(),
    torch.zeros(2, 300, dtype=torch.uint8),
    torch.zeros(4, device="meta"),
    torch.eye(3).to_sparse(),
    torch.nn.Buffer(torch.zeros(2)),
    base.as_subclass(Own),
    array,
    array[::2, 1:],
    base.numpy(),
    np.float32(1),
    np.zeros(3)[::-1],
    None,
    1,
    2**80,
    True,
    "text",
    b"bytes",
    1.5,
    {1, 2},
    object(),
    Words([1]),
    {3: base},
    {},
    (),
    [],
    torch.float32,
]
values: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(range(len(LEAVES))).map(LEAVES.__getitem__),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", "obs.image", "ä"]), inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", 7]), inner, max_size=2),
        st.builds(Pair, inner, inner),
        st.builds(Box, inner),
    ),
    max_leaves=12,
)


@rose.node(pure=True)
def passes(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def _check(row: Invocation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The row has what the walks in Python find; whoever came first gave the storages their numbers."""
    tokens, numbers = dataref.describe_result(
        (args, kwargs), (row.span_id, row.start_ns, row.end_ns)
    )
    assert (row.outputs, numbers_of(row.output_refs)) == (tokens, numbers)
    tokens, numbers = dataref.describe_inputs(args, kwargs)
    assert row.inputs == tokens
    assert numbers_of(row.input_refs)[::3] == numbers[::3]  # their producer is another by now
    assert numbers_of(row.input_refs)[2::3] == numbers[2::3]
    assert [layout.result_signature(row.outputs), layout.input_signature(row.inputs)]


def test_what_is_written_is_what_python_writes(tmp_path: Path) -> None:
    with native_recording(tmp_path / "t.parquet") as native:

        @examples(5_000, 150)
        @given(st.lists(values, max_size=3), st.dictionaries(st.sampled_from("xyz"), values))
        def check(args: list[Any], kwargs: dict[str, Any]) -> None:
            known = dataref.describe_inputs((args, *args), kwargs)
            passes(args, *args, **kwargs)
            row = native.rows[-1]
            assert (row.inputs, numbers_of(row.input_refs)) == known
            _check(row, (args, *args), kwargs)

        @rose.node
        def outer() -> None:
            passes()  # its site is made in Python
            check()

        outer()
        assert native.in_python == ["outer", "passes"]


def test_values_that_are_new_to_both(tmp_path: Path) -> None:
    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            passes()
            for _ in range(50):
                fresh = torch.zeros(3)
                args = (fresh, [fresh[1:], torch.ones(2)], Pair(torch.zeros(1), None))
                passes(*args)
                row = native.rows[-1]
                assert numbers_of(row.input_refs)[1::3] == (0,) * (
                    len(numbers_of(row.input_refs)) // 3
                )
                assert numbers_of(row.output_refs)[1::3] == (row.span_id,) * (
                    len(numbers_of(row.output_refs)) // 3
                )
                _check(row, args, {})

        outer()
        assert native.in_python == ["outer", "passes"]


def test_values_without_end_and_too_large_ones(tmp_path: Path) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: Any = base
    for _ in range(300):
        deep = [deep]
    large = [0] * (dataref.MAX_LEAVES + 1)
    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            passes()
            for value in (cycle, [large, [1]], deep, large):
                known = dataref.describe_inputs((value,), {})
                passes(value)
                assert (native.rows[-1].inputs, numbers_of(native.rows[-1].input_refs)) == known

        outer()
        assert native.in_python == ["outer", "passes"]
        assert [row.inputs is dataref.TOO_LARGE for row in native.rows[1:5]] == [
            True,
            True,
            False,
            False,
        ]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return passes(x)[0][0] * 2


def test_tensors_of_transforms_and_fake_ones(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with native_recording(tmp_path / "t.parquet") as native:

        @rose.node
        def outer() -> None:
            passes()
            torch.vmap(doubled)(torch.ones(3, 2))
            batched = native.rows[-1]
            with FakeTensorMode():
                fake = torch.zeros(2, 3)
                passes(fake)
            row = native.rows[-1]
            assert row.inputs == dataref.describe_inputs((fake,), {})[0]
            assert row.inputs[1] == "tensor"
            assert batched.inputs[1] == "tensor"

        outer()
        assert native.in_python == ["outer", "passes"]


def test_a_freed_address_is_not_taken_for_the_old_storage(tmp_path: Path) -> None:
    addresses: set[int] = set()
    with native_recording(tmp_path / "t.parquet") as native:
        found = hot_path()
        assert found is not None
        gc.collect()
        before = found.known_storages()

        @rose.node
        def outer() -> None:
            passes()
            seen: set[int] = set()
            kept = torch.zeros(2)
            passes(kept)
            ref = numbers_of(native.rows[-1].input_refs)[0]
            for i in range(10_000):
                value = torch.zeros(5)
                addresses.add(value.data_ptr())
                passes(value)
                row = native.rows[-1]
                seen.add(numbers_of(row.input_refs)[0])
                assert numbers_of(row.output_refs)[0] == numbers_of(row.input_refs)[0]
                if i % 500 == 0:
                    native.rows.clear()
            passes(kept[1:])
            assert numbers_of(native.rows[-1].input_refs)[0] == ref
            assert len(seen) == 10_000

        outer()
        assert len(addresses) < 1_000  # they were used again
        gc.collect()
        assert found.known_storages() <= before + 1
    assert found.known_storages() == before
