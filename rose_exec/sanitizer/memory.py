"""Which watched values live at an address: views share memory, whatever they are called."""

from __future__ import annotations

import bisect
from collections.abc import Mapping

from rose_exec.sanitizer.look import Leaf


class Regions:
    """Which watched values live at an address.

    Args:
        leaves: What was seen, by path.
    """

    def __init__(self, leaves: Mapping[str, Leaf]) -> None:
        spans = sorted((leaf.start, leaf.stop, path) for path, leaf in leaves.items() if leaf.stop)
        self._starts: list[int] = []
        self._regions: list[tuple[int, list[tuple[int, int, str]]]] = []
        for span in spans:
            if self._regions and span[0] < self._regions[-1][0]:
                stop, inside = self._regions[-1]
                inside.append(span)
                self._regions[-1] = max(stop, span[1]), inside
            else:
                self._starts.append(span[0])
                self._regions.append((span[1], [span]))

    def at(self, start: int, stop: int) -> list[str]:
        """Paths of the values that share memory with ``start:stop``."""
        index = max(bisect.bisect_right(self._starts, start) - 1, 0)
        found: list[str] = []
        while index < len(self._starts) and self._starts[index] < stop:
            inside = self._regions[index][1]
            found += [path for low, high, path in inside if low < stop and start < high]
            index += 1
        return found
