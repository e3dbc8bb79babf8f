"""Snapshots of components: another instance in the same state, tensors and what shares memory included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rose_trace as rose
from rose_exec.handover import NotCarried
from rose_exec.snapshot import put, taken


class Holder:
    """Anything with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Offering:
    """Says itself what its state is."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.handle = lambda: count

    def snapshot(self) -> Any:
        return {"count": self.count, "at": torch.arange(3)}

    def restore(self, value: Any) -> None:
        self.count = value["count"] + int(value["at"].sum())


class Marked(torch.Tensor):
    """A tensor of a class of its own."""


def moved(component: Any, into: Any) -> Any:
    """The other component in the first one's state, of which nothing is shared."""
    copies = [part.clone() if torch.is_tensor(part) else part.copy() for part in taken(component)]
    put(into, (copies[0], copies[1], copies[2]))
    for part in copies:
        part.fill_(0) if torch.is_tensor(part) else part.fill(0)
    return into


def trained() -> Any:
    model: Any = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    return Holder(model=model, optimizer=optimizer, calls=7, name="x", rows=np.arange(6.0))


def test_a_module_and_its_optimizer_go_on_alike() -> None:
    first = trained()
    second = moved(first, Holder(model=None, extra=1))
    assert (second.calls, second.name) == (7, "x")
    assert not hasattr(second, "extra")
    assert np.array_equal(second.rows, first.rows)
    data = torch.randn(6, 3)
    for holder in (first, second):
        holder.optimizer.zero_grad()
        holder.model(data).square().sum().backward()
        holder.optimizer.step()
    for one, two in zip(
        first.model.state_dict().values(), second.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, two)
    assert second.optimizer.param_groups[0]["params"][0] is next(second.model.parameters())


def test_what_shares_memory_shares_it_again() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    second = moved(Holder(whole=whole, row=whole[1], columns=whole.t(), tied=whole), Holder())
    assert second.tied is second.whole
    second.row += 100
    assert torch.equal(second.columns[:, 1], second.row)
    assert second.columns.stride() == (1, 4)
    assert whole[1, 0] == 4


def test_gradients_and_what_wants_them_are_kept() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    leaf = torch.ones(2, requires_grad=True)
    total: Any = (weight * leaf).sum()
    total.backward()
    second = moved(Holder(weight=weight, frozen=frozen, leaf=leaf), Holder())
    assert torch.equal(second.weight.grad, torch.ones(2))
    assert (second.frozen.requires_grad, second.leaf.requires_grad) == (False, True)
    assert isinstance(second.frozen, torch.nn.Parameter)


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(2).as_subclass(Marked),
        torch.view_as_complex(torch.ones(2, 2)).conj(),
    ],
    ids=["subclass", "conjugate"],
)
def test_other_tensors_go_as_bytes(value: torch.Tensor) -> None:
    second = moved(Holder(value=value), Holder())
    assert type(second.value) is type(value)
    assert torch.equal(second.value.resolve_conj(), value.resolve_conj())


def test_types_and_empty_tensors_are_kept() -> None:
    values = [
        torch.zeros(0),
        torch.zeros(0, 3),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor(True),
    ]
    second = moved(Holder(values=values), Holder())
    assert [v.dtype for v in second.values] == [v.dtype for v in values]
    assert [v.shape for v in second.values] == [v.shape for v in values]
    assert second.values[3].item() is True


def test_a_class_may_say_itself_what_its_state_is() -> None:
    assert moved(Offering(5), Offering(0)).count == 8


def test_what_cannot_be_copied_is_told() -> None:
    weight = torch.ones(2, requires_grad=True)
    with pytest.raises(NotCarried, match="expected no autograd graph"):
        taken(Holder(loss=(weight * 2).sum()))
    with pytest.raises(NotCarried, match="Cannot access storage of SparseTensorImpl"):
        taken(Holder(value=torch.ones(3).to_sparse()))
    with pytest.raises(NotCarried, match="expected attributes that can be pickled"):
        taken(Holder(callback=lambda: None))

    @rose.component
    class Inner:
        pass

    with pytest.raises(NotCarried, match="got component inner inside"):
        taken(Holder(inner=Inner()))
