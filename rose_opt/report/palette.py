"""Colours of nodes: the same in every timeline of a page, told apart by colour-blind readers too.

Leaves have hues; loops and composites, which only hold other nodes, are grey.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HUES = (
    "#0072b2",  # Okabe and Ito, less black, in the order of greatest distance
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#f0e442",
    "#332288",  # Tol, muted
    "#999933",
    "#882255",
    "#44aa99",
)
OTHER = "#8a8a8a"
CONTAINERS = {"iteration": "#e4e4e4", "loop": "#d6d6d6", "exec": "#c4c4c4"}
_DARK, _LIGHT = "#111111", "#ffffff"


@dataclass(frozen=True, slots=True)
class Palette:
    """Numbered nodes with their colours and labels.

    Attributes:
        paths: Node paths, by number.
        labels: Shortest ends of the paths that tell them apart.
        fills: Colour of each node.
        inks: Colour of text on it.
        leaves: Numbers of the nodes that hold no others, by time, longest first.
    """

    paths: tuple[str, ...]
    labels: tuple[str, ...]
    fills: tuple[str, ...]
    inks: tuple[str, ...]
    leaves: tuple[int, ...]

    @property
    def numbers(self) -> dict[str, int]:
        """Number of each path."""
        return {path: number for number, path in enumerate(self.paths)}


def make_palette(kinds: Mapping[str, str], leaf_ns: Mapping[str, int]) -> Palette:
    """Give every node a number, a label and a colour.

    Args:
        kinds: Kind of every node of all timelines, by path.
        leaf_ns: Time of every leaf, by path [ns]; the longest get colours of their own.

    Returns:
        The palette; leaves beyond the hues share one grey.
    """
    ranked = sorted(leaf_ns, key=lambda path: (-leaf_ns[path], path))
    hue = {path: HUES[n] if n < len(HUES) else OTHER for n, path in enumerate(ranked)}
    paths = tuple(kinds)
    fills = tuple(hue.get(path) or CONTAINERS.get(kinds[path], OTHER) for path in paths)
    number = {path: n for n, path in enumerate(paths)}
    return Palette(
        paths,
        short_names(paths),
        fills,
        tuple(map(ink_on, fills)),
        tuple(number[path] for path in ranked),
    )


def short_names(paths: Iterable[str]) -> tuple[str, ...]:
    """Shortest ends of paths that tell them apart.

    >>> short_names(["i/rollout/sim.step", "i/eval/sim.step", "i/learn"])
    ('rollout/sim.step', 'eval/sim.step', 'learn')
    """
    parts = {path: path.split("/") for path in paths}
    length = dict.fromkeys(parts, 1)
    while True:
        ends: dict[str, list[str]] = {}
        for path, words in parts.items():
            ends.setdefault("/".join(words[-length[path] :]), []).append(path)
        again = [
            path
            for several in ends.values()
            if len(several) > 1
            for path in several
            if length[path] < len(parts[path])
        ]
        if not again:
            return tuple("/".join(words[-length[path] :]) for path, words in parts.items())
        for path in again:
            length[path] += 1


def ink_on(fill: str) -> str:
    """Colour of text on a background: the one of black and white that differs more.

    >>> ink_on("#f0e442"), ink_on("#332288")
    ('#111111', '#ffffff')
    """
    channels = [int(fill[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return _DARK if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else _LIGHT
