"""Inputs of one body: arguments that it could write into, although they are not the component's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rose_exec.digest import FULL_BYTES, digest
from rose_exec.sanitizer.account import memory_of
from rose_exec.sanitizer.memory import Regions
from rose_trace import pytree
from rose_trace.node import ExecutionNode


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arguments in memory, and what they held before the body.

    Attributes:
        leaves: Argument name, leaf and digest of each.
        full_bytes: Contents above this size [bytes] are sampled.
    """

    leaves: tuple[tuple[str, Any, str], ...] = ()
    full_bytes: int = FULL_BYTES

    @staticmethod
    def of(
        node: ExecutionNode,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        kept: Regions,
        full_bytes: int = FULL_BYTES,
    ) -> Inputs:
        """Inputs of a call; none where the arguments do not fit the signature.

        Args:
            node: What is called.
            args: Arguments, the component first.
            kwargs: Keyword arguments.
            kept: Memory of what the program keeps: it is watched anyway.
            full_bytes: Contents above this size [bytes] are sampled.
        """
        try:
            bound = inspect.signature(node.entry).bind(*args, **kwargs).arguments
        except TypeError:
            return Inputs()
        skip = next(iter(bound), None) if node.is_method else None
        found: list[tuple[str, Any, str]] = []
        for name, value in bound.items():
            if name == skip:
                continue
            for leaf in pytree.flatten(value)[0]:
                span = memory_of(leaf)
                if span is not None and not kept.at(*span):
                    found.append((name, leaf, digest(leaf, full_bytes)))
        return Inputs(tuple(found), full_bytes)

    def written(self) -> Iterator[str]:
        """Name of the argument of each leaf that holds something else by now."""
        for name, leaf, before in self.leaves:
            if digest(leaf, self.full_bytes) != before:
                yield name
