"""What an iteration has come to, to be compared with the same iteration under another plan.

Its result, and the tensors and arrays of what lives on. A client of fewer SMs may compute something else:
libraries choose kernels by the SMs that they see, and on one GPU their products came out wrong
(docs/quotas.md).

Does not handle: plain numbers that a component keeps and that no tensor or result shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rose_exec import handover
from rose_exec.digest import digest, is_tensor
from rose_exec.refs import concrete
from rose_exec.workers.job import isolate
from rose_trace import pytree

CLOSE = 0.01  # ours: how far another order of sums may go, as a part of the largest value


@dataclass(frozen=True, slots=True)
class Outcome:
    """The leaves of a result and of saved states.

    Attributes:
        leaves: Digest and a copy on the host, by name.
    """

    leaves: Mapping[str, tuple[str, Any]]

    @classmethod
    def of(cls, result: Any, saved: Mapping[str, bytes]) -> Outcome:
        """Look at the result of an iteration, and at the states of components after it."""
        found = pytree.flatten(result)[0]
        named = {f"result, leaf {k}": isolate(concrete(leaf)) for k, leaf in enumerate(found)}
        for component, data in saved.items():
            arrays = enumerate(handover.arrays(data))  # copies already
            named |= {f"{component}, tensor {k}": array for k, array in arrays}
        on_host = {name: _on_host(leaf) for name, leaf in named.items()}
        return cls({name: (digest(leaf), leaf) for name, leaf in on_host.items()})

    def difference(self, other: Outcome, exact: bool) -> str:
        """The first leaf in which another outcome differs, in words; empty for none.

        Args:
            other: The other outcome.
            exact: Whether every bit counts; else floating-point values may differ by `CLOSE`.
        """
        if self.leaves.keys() != other.leaves.keys():
            return f"{len(self.leaves)} leaves and {len(other.leaves)}"
        for name, (bits, leaf) in self.leaves.items():
            others_bits, others = other.leaves[name]
            if bits == others_bits:
                continue
            apart, largest = _apart(leaf, others)
            if exact or not apart <= CLOSE * largest:
                return f"{name}: values up to {apart:.3g} apart, the largest {largest:.3g}"
        return ""


def _on_host(leaf: Any) -> Any:
    return leaf.detach().cpu() if is_tensor(leaf) else leaf


def _apart(leaf: Any, other: Any) -> tuple[float, float]:
    """Largest difference of two leaves and largest value of the first; a difference of infinity for a NaN."""
    try:
        a, b = _numbers(leaf), _numbers(other)
        apart = np.abs(a - b)
    except (TypeError, ValueError):
        return np.inf, 0.0
    apart = np.where(np.isnan(apart), np.inf, apart)
    return float(apart.max(initial=0.0)), float(np.abs(a).max(initial=0.0))


def _numbers(leaf: Any) -> Any:
    if is_tensor(leaf):
        leaf = leaf.double().numpy()
    array = np.asarray(leaf)
    if array.dtype.kind != "f":
        raise TypeError("only floating-point values may be close")
    return array.astype(np.float64)
