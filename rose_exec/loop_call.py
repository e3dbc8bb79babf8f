"""One call of a loop from glue code.

Paper: §4.2 "Execution", App. A.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rose_exec.readiness import Position
from rose_trace.loop import LoopNode

AnyLoop = LoopNode[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class LoopCall:
    """One call of a loop, or the part of it that a branch runs.

    Attributes:
        position: Place in the native program order.
        path: Node path.
        loop: The loop.
        carry: What the first iteration is handed.
        items: One item per iteration.
        turns: First iteration and step: iteration i of a chain is iteration ``first + step * i`` of the
            loop.
    """

    position: Position
    path: str
    loop: AnyLoop
    carry: Any
    items: Iterable[Any]
    turns: tuple[int, int] = (0, 1)

    @property
    def name(self) -> str:
        """Name of the loop with its component."""
        return self.loop.full_name(self.loop.instance)
